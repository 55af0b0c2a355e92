"""Completion on a public class shows what docs/client.md shows, and nothing else."""

import inspect
import re
from collections import defaultdict
from collections.abc import Sequence
from pathlib import Path
from types import ModuleType

import pytest

import fila_cluster
from fila_cluster import AsyncClient, Client
from tests.unit.client.peer import free_port

PAGE = (Path(__file__).parents[3] / "docs/client.md").read_text()
CLASSES = [each for name in fila_cluster.__all__ if isinstance(each := getattr(fila_cluster, name), type)]
BLOCKING = [each for each in CLASSES if not each.__name__.startswith("Async")]


def documented() -> dict[str, set[str]]:
    """The names that the page shows, by class. A heading without a class is a method of the client."""
    found: defaultdict[str, set[str]] = defaultdict(set)
    owner = title = ""
    for line in PAGE.splitlines():
        if line.startswith("### "):
            first, _, name = line[4:].partition(".")
            owner = "Message" if first == "Options of a message" else first if first[0].isupper() else "Client"
            found[owner] |= {name or first} - {owner, "Options of a message"}
        elif line.startswith("| ") and not line.startswith("| `"):
            title = line.split()[1]
        elif line.startswith("| `") and title in {"attribute", "option"}:
            found[owner].add(line.split("`")[1])
        elif line.startswith("Fields: "):
            found[owner] |= set(re.findall(r"`(\w+)` \(", line))
    return found


def shown(owner: type) -> set[str]:
    """What completion shows of a class, without what it has of Python's own types."""
    inherited = {name for kind in (tuple, Sequence) if issubclass(owner, kind) for name in dir(kind)}
    return {name for name in dir(owner) if not name.startswith("_")} - inherited


@pytest.mark.parametrize("owner", BLOCKING)
def test_completion_shows_what_the_page_shows(owner: type) -> None:
    attributes = {"endpoint"} if owner is Client else set()
    assert shown(owner) | attributes == documented()[owner.__name__]


@pytest.mark.parametrize("owner", [each for each in CLASSES if each not in BLOCKING])
def test_the_asyncio_classes_have_the_same_names(owner: type) -> None:
    blocking = getattr(fila_cluster, owner.__name__.removeprefix("Async"))
    iterator = {"aclose"} if "__aiter__" in dir(owner) else set()
    assert shown(owner) == shown(blocking) | iterator


@pytest.mark.parametrize("kind", [Client, AsyncClient])
def test_a_client_has_the_attributes_of_its_class(kind: type) -> None:
    client = kind(f"tcp://127.0.0.1:{free_port()}")
    try:
        assert {name for name in dir(client) if not name.startswith("_")} == shown(kind) | {"endpoint"}
    finally:
        client._io._shut(fila_cluster.errors.FilaError("done"))


def test_the_package_shows_its_exports() -> None:
    assert {name for name in dir(fila_cluster) if not name.startswith("_")} == set(fila_cluster.__all__)
    assert isinstance(fila_cluster.errors, ModuleType)


@pytest.mark.parametrize("owner", CLASSES)
def test_every_public_name_has_a_docstring(owner: type) -> None:
    assert owner.__doc__
    methods = [name for name in shown(owner) if inspect.isfunction(inspect.getattr_static(owner, name))]
    assert [name for name in methods if not getattr(owner, name).__doc__ and owner.__name__ != "AsyncDelivery"] == []
