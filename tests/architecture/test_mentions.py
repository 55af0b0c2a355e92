"""The pages for contributors mention only files, modules, classes and functions that exist."""

import re
from functools import cache
from pathlib import Path

import pytest

from tests.architecture.sources import PACKAGES, ROOT

READMES = [ROOT / folder / "README.md" for folder in ("proto_zmq", "router", "worker", "tests", "tests/simulation")]
PAGES = [ROOT / "ARCHITECTURE.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs/decisions").glob("*.md")), *READMES]
CODE = ["fila_cluster", "proto_zmq", "router", "worker", "tests", "benchmarks", "examples", ".ci"]
BASES = [ROOT, *PACKAGES.values(), *{folder.parent for folder in PACKAGES.values()}]
BASES += [PACKAGES["fila_worker"] / "core", ROOT / "tests/support", *(page.parent for page in READMES)]
"""Where a path may begin."""
THEIRS = {
    "FILA_KAFKA_CACHE": "the shell",
    "on_commit": "Django",
    "OrderedDict": "Python",
    "TCP_USER_TIMEOUT": "Linux",
}
"""Names that are defined elsewhere."""


def mentions(page: Path) -> list[str]:
    """Return the texts in code font of a page, without its blocks of code."""
    prose = re.sub(r"^```.*?^```", "", page.read_text(), flags=re.MULTILINE | re.DOTALL)
    return [" ".join(text.split()) for text in re.findall(r"`([^`]+)`", prose)]


@cache
def file_names() -> set[str]:
    """Return the names of all files of code."""
    return {file.name for folder in CODE for file in (ROOT / folder).rglob("*.py")}


@cache
def code() -> str:
    """Return all code of the project."""
    return "\n".join(file.read_text() for folder in CODE for file in (ROOT / folder).rglob("*.py"))


@cache
def is_defined(name: str) -> bool:
    """Return whether a class, a function, a parameter or a field has a name. The pattern begins with it, which is fast."""
    kinds = (rf"(?<=\bclass {name})\b", rf"(?<=\bdef {name})\b", rf"(?<=[\s(,]{name})(?=\s*[:=])")
    return name in THEIRS or name in PACKAGES or re.search(f"{name}(?:{'|'.join(kinds)})", code()) is not None


def exists(mention: str) -> bool:
    """Return whether a file, module or name exists. Any other text, such as a command, counts as existing."""
    if re.fullmatch(r"\.?\w[\w.-]*(/[\w.-]+)*/?", mention) and ("/" in mention or mention.endswith((".py", ".md", ".toml"))):
        return any((base / mention).exists() for base in BASES) or mention in file_names()
    if re.fullmatch(r"\w+(\.\w+)+", mention) and mention.partition(".")[0] in {*PACKAGES, "tests", "benchmarks"}:
        return any(base.joinpath(*mention.split(".")).with_suffix(end).exists() for base in BASES for end in ("", ".py"))
    if re.fullmatch(r"\w+(\.\w+)*(\(\))?", mention) and re.search(r"[A-Z_]", mention):
        return all(map(is_defined, mention.removesuffix("()").split(".")))
    return True


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_everything_that_a_page_mentions_exists(page: Path) -> None:
    assert [mention for mention in mentions(page) if not exists(mention)] == []


@pytest.mark.parametrize(
    ("mention", "found"),
    [
        ("fila_worker/core/shard.py", True),
        ("fila_worker/core/shards.py", False),
        ("tests/architecture", True),
        ("fila_cluster.client", True),
        ("fila_cluster.clients", False),
        ("ShardProcess", True),
        ("ShardProcessor", False),
        ("State.settle_writes", True),
        ("open_hosts()", False),
        ("make docs", True),
    ],
)
def test_a_mention_is_recognised(mention: str, found: bool) -> None:
    assert exists(mention) is found


def test_everything_that_a_drawing_mentions_exists() -> None:
    """Paths in drawings have no beginning: ``core/shard`` is in any package."""
    drawings = re.findall(r"^```text\n(.*?)^```", (ROOT / "ARCHITECTURE.md").read_text(), flags=re.MULTILINE | re.DOTALL)
    wanted = {path.strip("/") for drawing in drawings for path in re.findall(r"[a-z_]+(?:/[a-z_]+)+/?", drawing)}
    files = [file.relative_to(ROOT).with_suffix("") for folder in PACKAGES.values() for file in folder.rglob("*.py")]
    paths = {str(path) for file in files for path in (file, file.parent)}
    assert {name for name in wanted if not any(path.endswith(f"/{name}") for path in paths)} == set()
