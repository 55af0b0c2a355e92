"""The shape of the code: classes, functions and folders of a size that a reader can know, and imports in one direction."""

import ast
import re
from collections import Counter
from collections.abc import Iterable, Iterator
from functools import cache
from graphlib import CycleError, TopologicalSorter
from pathlib import Path

import pytest

from tests.architecture.sources import PACKAGES, ROOT, imports_of, name_of, sources, statements, tree_of

CLASS_LINES_MAX = 400
FUNCTION_LINES_MAX = 60
MODULES_MAX = 16
"""Of one folder, without its ``__init__.py``."""
START = re.compile(r"( *)(async def|def|class)\b")
MADE = PACKAGES["fila_cluster"] / "client" / "blocking"
"""Made from other code."""
WITH_TYPES = {
    "fila_cluster": PACKAGES["fila_cluster"],
    "fila_worker.core": PACKAGES["fila_worker"] / "core",
    "fila_router.core": PACKAGES["fila_router"] / "core",
    "fila_cluster.client": PACKAGES["fila_cluster"] / "client",
    "fila_cluster.ops.dashboard": PACKAGES["fila_cluster"] / "ops" / "dashboard",
}
"""Packages in which imports for type checkers count, too."""


@cache
def modules() -> dict[str, Path]:
    """The modules of the product, by name."""
    return {name_of(file): file for file in sources(*PACKAGES.values())}


def arrows_of(package: str, *, type_checking: bool) -> set[tuple[str, str]]:
    """Which part of a package imports which: its folders, and the modules beside them."""
    parts = {module: part_of(module, package) for module in modules() if module.startswith(f"{package}.")}
    arrows = {
        (part, parts[target])
        for module, part in parts.items()
        for imported in imports_of(modules()[module], type_checking=type_checking)
        if (target := imported if imported in parts else imported.rpartition(".")[0]) in parts
    }
    return {(part, other) for part, other in arrows if part != other}


def part_of(module: str, package: str) -> str:
    """The folder of a package that a module is in; for a module beside the folders, the module itself."""
    first = module.removeprefix(f"{package}.").partition(".")[0]
    return first if modules()[f"{package}.{first}"].name == "__init__.py" else f"{first}.py"


def circle_in(arrows: Iterable[tuple[str, str]]) -> str:
    """A circle; empty if there is none."""
    order: TopologicalSorter[str] = TopologicalSorter()
    for part, other in arrows:
        order.add(part, other)
    try:
        order.prepare()
    except CycleError as error:
        return " → ".join(reversed(error.args[1]))
    return ""


@pytest.mark.parametrize("package", WITH_TYPES)
def test_the_parts_of_a_package_form_no_circle_with_types_either(package: str) -> None:
    assert circle_in(arrows_of(package, type_checking=True)) == ""


def test_the_parts_of_each_folder_form_no_circle() -> None:
    packages = [module for module, file in modules().items() if file.name == "__init__.py"]
    circles = {package: circle_in(arrows_of(package, type_checking=False)) for package in packages}
    assert {package: circle for package, circle in circles.items() if circle} == {}


def code() -> list[Path]:
    """All Python files that people write, the product's and others."""
    folders = [*PACKAGES.values(), *(ROOT / name for name in ("tests", "benchmarks", "examples"))]
    return [file for file in sources(*folders) if MADE not in file.parents]


def test_no_folder_has_more_modules_than_a_reader_can_know() -> None:
    sizes = Counter(file.parent for file in code() if file.name != "__init__.py")
    large = {(str(folder), size) for folder, size in sizes.items() if size > MODULES_MAX}
    assert not large, f"a folder has at most {MODULES_MAX} modules: give a topic a folder of its own"


def test_no_class_and_no_function_is_larger_than_a_reader_can_know() -> None:
    large = [(str(file.relative_to(ROOT)), *found) for file in code() for found in large_in(file)]
    assert not large, f"a class has at most {CLASS_LINES_MAX} lines, a function {FUNCTION_LINES_MAX}: split it by topic"


def large_in(file: Path) -> Iterator[tuple[str, int]]:
    """The classes and functions of a file that are too large, with their lines."""
    if not may_have_large(file.read_text().splitlines()):
        return
    for node in statements(tree_of(file).body):
        if isinstance(node, (ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)):
            lines = (node.end_lineno or 0) - node.lineno + 1
            if lines > (CLASS_LINES_MAX if isinstance(node, ast.ClassDef) else FUNCTION_LINES_MAX):
                yield node.name, lines


def may_have_large(lines: list[str]) -> bool:
    """Whether it pays to read a file as Python: a definition has many lines until the next one that is not inside of it."""
    open_: list[tuple[int, int, int]] = []
    starts = [(number, found) for number, line in enumerate(lines) if (found := START.match(line))]
    for number, indent, limit in [
        *(
            (number, len(found[1]), CLASS_LINES_MAX if found[2] == "class" else FUNCTION_LINES_MAX)
            for number, found in starts
        ),
        (len(lines), 0, 0),
    ]:
        while open_ and open_[-1][1] >= indent:
            began, _, most = open_.pop()
            if number - began > most:
                return True
        open_.append((number, indent, limit))
    return False


def test_no_module_has_a_name_that_says_nothing() -> None:
    empty = {"common", "utils", "util", "helpers", "manager", "misc", "base"}
    assert {name_of(file) for file in sources(*PACKAGES.values()) if file.stem in empty} == set()


def test_every_folder_of_modules_is_a_package() -> None:
    """Else its modules are found in a checkout and missing in a wheel's type stubs."""
    folders = {file.parent for file in sources(*PACKAGES.values())}
    assert {folder for folder in folders if not (folder / "__init__.py").is_file()} == set()
