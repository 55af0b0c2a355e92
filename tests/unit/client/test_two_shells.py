"""The blocking client is made of the asyncio one: the same methods, docstrings and types."""

import ast
import inspect
import re
import subprocess
import sys
from pathlib import Path

import pytest

from fila_cluster import AsyncClient, AsyncConsumer, AsyncDelivery, AsyncProducer, Client, Consumer, Delivery, Producer
from fila_cluster.client.protocol import delivery

ROOT = Path(__file__).parents[3]


def test_the_blocking_client_is_made_of_the_asyncio_one():
    made = subprocess.run(
        [sys.executable, ROOT / ".ci/make_blocking.py", "--check"], capture_output=True, text=True, check=False
    )
    assert made.stderr == ""
    assert made.returncode == 0


def _methods(kind):
    return {name: each for name, each in inspect.getmembers(kind, inspect.isfunction) if not name.startswith("_")}


def _signature(function):
    """As text, without what distinguishes the clients; not of the type variables, of which each module has its own."""
    text = re.sub(
        r"[\w.]*\.(?:Async)?(BatchConsumer|Batch|Client|Consumer|Delivery|MessageBatch|Producer)\b",
        r"\1",
        str(inspect.signature(function)),
    )
    text = text.replace("asyncio.Future", "Future")
    return re.sub(r"collections.abc.Coroutine\[typing.Any, typing.Any, None\]", "None", text)


@pytest.mark.parametrize(
    ("blocking", "asyncio"),
    [(Client, AsyncClient), (Consumer, AsyncConsumer), (Delivery, AsyncDelivery), (Producer, AsyncProducer)],
)
def test_both_have_the_same_methods_with_docstrings(blocking, asyncio):
    here, there = _methods(blocking), _methods(asyncio)
    assert here.keys() == there.keys() - {"aclose"}
    assert {name: _signature(each) for name, each in here.items()} == {name: _signature(there[name]) for name in here}
    assert [name for name, each in here.items() if not each.__doc__ or not there[name].__doc__] == []


def test_what_a_blocking_client_says_of_itself_is_not_about_asyncio():
    assert "await" not in "".join(each.__doc__ for each in [Client, Consumer, *_methods(Client).values()])


def test_the_verbs_of_both_deliveries_take_the_same_arguments():
    """Type checkers read those of the asyncio one from stubs: at run time both are the same functions."""
    tree = ast.parse(Path(delivery.__file__).read_text())
    classes = {each.name: each for each in tree.body if isinstance(each, ast.ClassDef)}
    verbs = {each.name: ast.dump(each.args) for each in classes["Delivery"].body if isinstance(each, ast.FunctionDef)}
    stubs = {
        each.name: ast.dump(each.args)
        for each in ast.walk(classes["AsyncDelivery"])
        if isinstance(each, ast.AsyncFunctionDef)
    }
    assert stubs.keys() == {"ack", "nack", "retry", "fail", "defer", "extend"}
    assert {name: verbs[name] for name in stubs} == stubs
