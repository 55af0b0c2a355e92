"""Who may import whom, read from the sources, and what a client process really loads."""

import ast
import re
import subprocess
import sys
import tomllib
import zipfile
from pathlib import Path

import pytest

from fila_proto_zmq.version import VERSION

ROOT = Path(__file__).parents[2]
PACKAGES = {
    "fila_process": ROOT / "proto_zmq/fila_process",
    "fila_proto_zmq": ROOT / "proto_zmq/fila_proto_zmq",
    "fila_router": ROOT / "router/fila_router",
    "fila_worker": ROOT / "worker/fila_worker",
    "fila_cluster": ROOT / "fila_cluster",
}
SPARK = PACKAGES["fila_cluster"] / "spark"
DASHBOARD = PACKAGES["fila_cluster"] / "dashboard"
CORES = [PACKAGES["fila_router"] / "core", PACKAGES["fila_worker"] / "core"]
OUTWARD = {
    "asyncio", "concurrent", "datetime", "io", "logging", "multiprocessing", "os", "pathlib", "random", "rocksdict", "secrets",
    "select", "selectors", "shutil", "signal", "socket", "subprocess", "sys", "tempfile", "threading", "time", "uuid", "zmq",
}  # fmt: skip
"""Clock, disk, network, chance and processes: what a core is told instead of asking."""


def imports_of(file: Path, *, type_checking: bool = True) -> set[str]:
    """Dotted names of the modules that a file imports, wherever in it."""
    found = set()
    tree = ast.parse(file.read_text())
    skipped = set() if type_checking else {id(inner) for node in _guarded(tree) for inner in ast.walk(node)}
    for node in ast.walk(tree):
        if id(node) in skipped:
            continue
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{file}: relative imports hide what is imported"
            found.add(node.module or "")
    return found


def _guarded(tree: ast.Module) -> list[ast.If]:
    """The ``if TYPE_CHECKING`` blocks."""
    blocks = (node for node in ast.walk(tree) if isinstance(node, ast.If))
    return [node for node in blocks if isinstance(node.test, ast.Name) and node.test.id == "TYPE_CHECKING"]


def roots(names: set[str]) -> set[str]:
    return {name.partition(".")[0] for name in names}


def sources(folder: Path) -> list[Path]:
    files = sorted(folder.rglob("*.py"))
    assert files, folder
    return files


def each_source(*folders: Path) -> pytest.MarkDecorator:
    files = [file for folder in folders for file in sources(folder)]
    return pytest.mark.parametrize("file", files, ids=[str(file.relative_to(ROOT)) for file in files])


@each_source(*CORES)
def test_a_core_touches_nothing_outside(file: Path) -> None:
    assert roots(imports_of(file)) & OUTWARD == set()


@each_source(*CORES)
def test_a_core_imports_only_cores_and_the_protocol(file: Path) -> None:
    ours = {name for name in imports_of(file) if name.startswith("fila_")}
    package = file.relative_to(ROOT).parts[1]
    assert {name for name in ours if not name.startswith(("fila_proto_zmq", f"{package}.core"))} == set()


@each_source(PACKAGES["fila_proto_zmq"])
def test_the_protocol_needs_the_standard_library_and_msgspec_only(file: Path) -> None:
    allowed = sys.stdlib_module_names | {"fila_proto_zmq", "msgspec"}
    names = roots(imports_of(file))
    assert names - allowed == set()
    assert names & OUTWARD == set()


@pytest.mark.parametrize(
    ("package", "forbidden"),
    [
        ("fila_proto_zmq", {"fila_process", "fila_router", "fila_worker", "fila_cluster"}),
        ("fila_process", {"fila_router", "fila_worker", "fila_cluster", "zmq"}),
        ("fila_router", {"fila_worker", "fila_cluster", "rocksdict"}),
        ("fila_worker", {"fila_router", "fila_cluster"}),
    ],
)
def test_imports_go_one_way(package: str, forbidden: set[str]) -> None:
    used = {str(file.relative_to(ROOT)): roots(imports_of(file)) & forbidden for file in sources(PACKAGES[package])}
    assert {file: names for file, names in used.items() if names} == {}


def test_only_the_store_knows_rocksdb() -> None:
    users = [file for package in PACKAGES.values() for file in sources(package) if "rocksdict" in roots(imports_of(file))]
    assert users == [PACKAGES["fila_worker"] / "storage/rocks.py"]


def test_no_module_has_a_name_that_says_nothing() -> None:
    empty = {"common", "utils", "util", "helpers", "manager", "misc", "base"}
    stems = {file.stem: file for package in PACKAGES.values() for file in sources(package)}
    assert stems.keys() & empty == set()


# --- what is loaded ---------------------------------------------------------------------------------------------------

NOT_FOR_CLIENTS = {
    "click", "rich", "textual", "rocksdict", "lupa", "pyspark", "pydantic", "pydantic_settings", "psutil", "sortedcontainers",
    "fila_process", "fila_worker", "fila_router", "fila_cluster.cli", "fila_cluster.supervisor", "fila_cluster.config",
}  # fmt: skip


def loaded_by(statement: str) -> set[str]:
    """The modules in memory after a statement, in a process of its own."""
    code = f"{statement}\nimport sys; print('\\n'.join(sys.modules))"
    done = subprocess.run([sys.executable, "-P", "-c", code], capture_output=True, text=True, timeout=60, check=True)
    return set(done.stdout.split())


@pytest.mark.parametrize(
    "statement",
    [
        "import fila_cluster.client",
        "from fila_cluster import Client, AsyncClient, Message, Delivery",
        "import fila_cluster.errors",
    ],
)
def test_a_client_drags_in_no_server(statement: str) -> None:
    loaded = loaded_by(statement)
    assert {name for name in loaded if name in NOT_FOR_CLIENTS or name.partition(".")[0] in NOT_FOR_CLIENTS} == set()


def test_the_protocol_drags_in_no_socket() -> None:
    everything = "import fila_proto_zmq.codec, fila_proto_zmq.record, fila_proto_zmq.names, fila_proto_zmq.ids"
    assert roots(loaded_by(everything)) & {"zmq", "fila_worker", "fila_router", "fila_cluster"} == set()


def test_the_cores_drag_in_no_socket_and_no_disk() -> None:
    loaded = roots(loaded_by("import fila_worker.core.shard, fila_worker.core.recovery"))
    assert loaded & {"zmq", "rocksdict", "psutil", "fila_router", "fila_cluster"} == set()


def test_the_router_drags_in_no_store() -> None:
    assert roots(loaded_by("import fila_router.loop")) & {"rocksdict", "fila_worker", "fila_cluster"} == set()


@pytest.mark.parametrize("part", ["fila_worker", "fila_router"])
def test_a_part_that_restarts_loads_nothing_that_it_can_serve_without(part: str) -> None:
    """Its queues are away for as long as this takes: each of these costs 20 to 100 ms of the processor."""
    loaded = loaded_by(f"import {part}.__main__")
    assert loaded & {"structlog", "rich", "asyncio", "importlib.metadata", "email"} == set()


# --- the wheel --------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def project() -> dict:
    return tomllib.loads((ROOT / "pyproject.toml").read_text())


def test_the_wheel_holds_all_packages_under_their_installed_names(project: dict) -> None:
    wheel = project["tool"]["hatch"]["build"]["targets"]["wheel"]["packages"]
    assert {Path(folder).name: ROOT / folder for folder in wheel} == PACKAGES
    assert set(project["tool"]["hatch"]["build"]["dev-mode-dirs"]) == {".", "router", "worker", "proto_zmq"}


@pytest.mark.parametrize("package", PACKAGES)
def test_every_package_is_typed(package: str) -> None:
    assert (PACKAGES[package] / "py.typed").is_file()
    assert (PACKAGES[package] / "__init__.py").is_file()


def test_the_build_reads_the_version_where_the_parts_do(project: dict) -> None:
    source = project["tool"]["hatch"]["version"]
    found = re.search(source["pattern"], (ROOT / source["path"]).read_text())
    assert "version" in project["project"]["dynamic"]
    assert found is not None
    assert found["version"] == VERSION


def test_every_folder_of_modules_is_a_package() -> None:
    """Or its modules are found in a checkout and missing in a wheel's type stubs."""
    folders = {file.parent for package in PACKAGES.values() for file in sources(package)}
    assert [folder for folder in folders if not (folder / "__init__.py").is_file()] == []


def declared_in(requirements: list[str]) -> set[str]:
    return {re.split(r"[;<>=\[ ]", line)[0] for line in requirements}


def used_by(files: list[Path]) -> set[str]:
    """What is to be installed for these files, by the names that packages have in an index."""
    modules = {"zmq": "pyzmq", "pydantic_settings": "pydantic-settings", "pydantic_core": "pydantic"}
    modules |= {"prometheus_client": "prometheus-client", "opentelemetry": "opentelemetry-sdk"}
    modules |= {"py4j": "pyspark", "markupsafe": "jinja2"}  # theirs, and brought along by them
    used = set().union(*(roots(imports_of(file, type_checking=False)) for file in files))
    return {modules.get(name, name) for name in used - sys.stdlib_module_names - PACKAGES.keys()}


def test_everything_that_is_imported_is_declared(project: dict) -> None:
    declared = declared_in(project["project"]["dependencies"])
    files = [file for package in PACKAGES.values() for file in sources(package) if not {SPARK, DASHBOARD} & {*file.parents}]
    assert used_by(files) - declared == set()


@pytest.mark.parametrize(("extra", "folder"), [("spark", SPARK), ("dashboard", DASHBOARD)])
def test_what_a_part_needs_is_declared_as_its_extra(project: dict, extra: str, folder: Path) -> None:
    declared = declared_in(project["project"]["dependencies"])
    assert used_by(sources(folder)) - declared == declared_in(project["project"]["optional-dependencies"][extra])


@pytest.mark.parametrize(("folder", "library"), [(SPARK, "pyspark"), (DASHBOARD, "nicegui")])
@each_source(*PACKAGES.values())
def test_what_an_extra_brings_is_imported_only_on_use(file: Path, folder: Path, library: str) -> None:
    """At the top of a module by its own package alone; others import it where they run."""
    top = {name for node in ast.parse(file.read_text()).body for name in _imported_by(node)}
    package = f"fila_cluster.{folder.name}"
    if folder not in file.parents:
        assert {name for name in top if name.startswith(package) or name.partition(".")[0] == library} == set()


def _imported_by(node: ast.stmt) -> set[str]:
    if isinstance(node, ast.ImportFrom):
        return {node.module or ""}
    return {alias.name for alias in node.names} if isinstance(node, ast.Import) else set()


def test_a_built_wheel_holds_the_packages_and_nothing_else(tmp_path: Path) -> None:
    pip = [sys.executable, "-m", "pip", "--retries", "0", "--timeout", "5", "wheel", "-q", "--no-deps", "-w", str(tmp_path)]
    built = subprocess.run([*pip, str(ROOT)], capture_output=True, text=True, timeout=60, check=False)
    if built.returncode:
        pytest.skip(f"no build backend to be had here: {built.stderr.strip()[-200:]}")
    (wheel,) = tmp_path.glob("*.whl")
    names = zipfile.ZipFile(wheel).namelist()
    top = {name.partition("/")[0] for name in names}
    assert {name for name in top if not name.endswith(".dist-info")} == set(PACKAGES)
    ours = {f"{package}/{file.relative_to(folder)}" for package, folder in PACKAGES.items() for file in sources(folder)}
    assert {name for name in names if name.endswith(".py")} == ours
    assert "fila_cluster/spark/report/page.html" in names
    assert [name for name in names if "__pycache__" in name or "/tests/" in name] == []
