"""The shape of the packages: no folder too large to know, and folders that depend on each other in one direction."""

from collections.abc import Iterable
from graphlib import CycleError, TopologicalSorter
from pathlib import Path

import pytest

from tests.architecture.sources import PACKAGES, imports_of, name_of, sources

MODULES_MAX = 16
"""Of one folder, without its ``__init__.py``."""
SHAPED = {
    "fila_cluster": PACKAGES["fila_cluster"],
    "fila_worker.core": PACKAGES["fila_worker"] / "core",
    "fila_router.core": PACKAGES["fila_router"] / "core",
    "fila_cluster.client": PACKAGES["fila_cluster"] / "client",
    "fila_cluster.ops.dashboard": PACKAGES["fila_cluster"] / "ops" / "dashboard",
}


def arrows_of(package: str) -> set[tuple[str, str]]:
    """Which part of a package imports which: its folders, and the modules beside them. Imports for type checkers count."""
    modules = {name_of(file): file for file in sources(SHAPED[package]) if file != SHAPED[package] / "__init__.py"}
    parts = {module: part_of(module, package, file) for module, file in modules.items()}
    arrows = {
        (part, parts[target])
        for module, part in parts.items()
        for imported in imports_of(modules[module])
        if (target := imported if imported in parts else imported.rpartition(".")[0]) in parts
    }
    return {(part, other) for part, other in arrows if part != other}


def part_of(module: str, package: str, file: Path) -> str:
    """The folder of a package that a module is in; for a module beside the folders, the module itself."""
    first = module.removeprefix(f"{package}.").partition(".")[0]
    return first if (SHAPED[package] / first).is_dir() else f"{first}.py"


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


@pytest.mark.parametrize("package", SHAPED)
def test_the_parts_of_a_package_form_no_circle(package: str) -> None:
    assert circle_in(arrows_of(package)) == ""


def test_no_folder_has_more_modules_than_a_reader_can_know() -> None:
    files = {file for file in sources(*SHAPED.values()) if file.name != "__init__.py"}
    sizes = {folder: sum(file.parent == folder for file in files) for folder in {file.parent for file in files}}
    assert {(name_of(folder / "__init__.py"), size) for folder, size in sizes.items() if size > MODULES_MAX} == set()


def test_no_module_has_a_name_that_says_nothing() -> None:
    empty = {"common", "utils", "util", "helpers", "manager", "misc", "base"}
    assert {name_of(file) for file in sources(*PACKAGES.values()) if file.stem in empty} == set()


def test_every_folder_of_modules_is_a_package() -> None:
    """Else its modules are found in a checkout and missing in a wheel's type stubs."""
    folders = {file.parent for file in sources(*PACKAGES.values())}
    assert {folder for folder in folders if not (folder / "__init__.py").is_file()} == set()
