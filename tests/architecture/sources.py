"""The project's sources and what they import, read without running them."""

import ast
from collections.abc import Iterable, Iterator
from functools import cache
from pathlib import Path

ROOT = Path(__file__).parents[2]
PACKAGES = {
    "fila_admission": ROOT / "proto_zmq/fila_admission",
    "fila_process": ROOT / "proto_zmq/fila_process",
    "fila_proto_zmq": ROOT / "proto_zmq/fila_proto_zmq",
    "fila_router": ROOT / "router/fila_router",
    "fila_worker": ROOT / "worker/fila_worker",
    "fila_cluster": ROOT / "fila_cluster",
}


def sources(*folders: Path) -> list[Path]:
    """The Python files below some folders."""
    files = [file for folder in folders for file in sorted(folder.rglob("*.py"))]
    assert files, folders
    return files


def name_of(file: Path) -> str:
    """A file's dotted name, as others import it."""
    base = next(folder.parent for folder in PACKAGES.values() if folder in file.parents)
    parts = file.relative_to(base).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def tree_of(file: Path) -> ast.Module:
    """The syntax tree of a file."""
    return ast.parse(file.read_text())


def statements(body: Iterable[ast.AST], *, type_checking: bool = True) -> Iterator[ast.AST]:
    """All statements of a body, and those in them, without expressions; with or without ``if TYPE_CHECKING`` blocks."""
    for each in body:
        yield each
        if not hasattr(each, "body") and not isinstance(each, ast.Match):
            continue
        parts = ("body", "orelse", "finalbody", "handlers", "cases")
        if (
            not type_checking
            and isinstance(each, ast.If)
            and isinstance(each.test, ast.Name)
            and each.test.id == "TYPE_CHECKING"
        ):
            parts = ("orelse",)
        for part in parts:
            yield from statements(getattr(each, part, ()), type_checking=type_checking)


def imports_of(file: Path, *, type_checking: bool = True) -> frozenset[str]:
    """Dotted names that a file imports, wherever in it: modules, and what is taken from them."""
    return _imports_of(file)[type_checking]


@cache
def _imports_of(file: Path) -> tuple[frozenset[str], frozenset[str]]:
    """The imports at run time, and all. Trees are not kept: the garbage collector would walk them."""
    body = tree_of(file).body
    run_time, everything = ((imported_by(each) for each in statements(body, type_checking=types)) for types in (False, True))
    return frozenset().union(*run_time), frozenset().union(*everything)


def imported_by(node: ast.AST) -> set[str]:
    """What one statement imports; nothing if it is no import."""
    if isinstance(node, ast.ImportFrom):
        return {f"{node.module}.{alias.name}" for alias in node.names}
    return {alias.name for alias in node.names} if isinstance(node, ast.Import) else set()


def roots(names: Iterable[str]) -> set[str]:
    """The packages that the names are in."""
    return {name.partition(".")[0] for name in names}
