"""The project's sources and what they import, read without running them."""

import ast
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


def imports_of(file: Path, *, type_checking: bool = True) -> set[str]:
    """Dotted names that a file imports, wherever in it: modules, and what is taken from them."""
    tree = ast.parse(file.read_text())
    skipped = set() if type_checking else {id(inner) for node in _guarded(tree) for inner in ast.walk(node)}
    return set().union(*(imported_by(node) for node in ast.walk(tree) if id(node) not in skipped))


def imported_by(node: ast.AST) -> set[str]:
    """What one statement imports; nothing if it is no import."""
    if isinstance(node, ast.ImportFrom):
        return {f"{node.module}.{alias.name}" for alias in node.names}
    return {alias.name for alias in node.names} if isinstance(node, ast.Import) else set()


def roots(names: set[str]) -> set[str]:
    """The packages that the names are in."""
    return {name.partition(".")[0] for name in names}


def _guarded(tree: ast.Module) -> list[ast.If]:
    """The ``if TYPE_CHECKING`` blocks."""
    blocks = (node for node in ast.walk(tree) if isinstance(node, ast.If))
    return [node for node in blocks if isinstance(node.test, ast.Name) and node.test.id == "TYPE_CHECKING"]
