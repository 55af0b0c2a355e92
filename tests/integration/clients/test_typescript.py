"""The client for TypeScript: its types are current and strict, and it does what a client must."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.examples.documents import blocks
from tests.integration.clients import scenarios
from tests.integration.clients.generated import TYPESCRIPT, install, run, typescript_types
from tests.support.cluster.cluster import Cluster
from tests.support.machine import NODE, require

pytestmark = pytest.mark.whole
PROGRAMS = Path(__file__).parent / "programs/typescript"
STRICT = ["--strict", "--noUncheckedIndexedAccess", "--exactOptionalPropertyTypes", "--noUnusedLocals"]


@pytest.fixture(scope="module")
def built() -> None:
    """The package in ``dist``."""
    require(NODE)
    install()
    run("npx", "tsc", cwd=TYPESCRIPT)


@pytest.fixture(scope="module")
def programs(built: None, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A project that uses the package, as others do: with the programs of these tests, and with the blocks of its page."""
    folder = tmp_path_factory.mktemp("project")
    for file in PROGRAMS.glob("*.ts"):
        (folder / file.name).write_text(file.read_text())
    for number, block in enumerate(each for each in blocks("typescript.md") if each.language == "ts"):
        (folder / f"page{number}.ts").write_text(block.text)
    (folder / "package.json").write_text('{"type": "module"}')
    (folder / "node_modules").mkdir()
    (folder / "node_modules/fila-cluster").symlink_to(TYPESCRIPT)
    (folder / "node_modules/@types").symlink_to(TYPESCRIPT / "node_modules/@types")
    target = ["--target", "ES2022", "--module", "NodeNext", "--types", "node"]
    run(TYPESCRIPT / "node_modules/.bin/tsc", *STRICT, *target, *sorted(folder.glob("*.ts")), cwd=folder)
    return folder


@pytest.fixture(scope="module")
def cluster(programs: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    with scenarios.cluster(tmp_path_factory.mktemp("typescript")) as cluster:
        yield cluster


def test_its_types_are_current(built: None) -> None:
    assert (TYPESCRIPT / "src/door.ts").read_text() == typescript_types(), "python -m tests.integration.clients.generated"


def test_it_needs_nothing_at_run_time(built: None) -> None:
    packed = run("npm", "pack", "--dry-run", "--ignore-scripts", cwd=TYPESCRIPT)
    assert "fila-cluster-" in packed
    assert '"dependencies"' not in (TYPESCRIPT / "package.json").read_text()


def test_it_makes_all_calls(programs: Path, cluster: Cluster) -> None:
    scenarios.makes_all_calls(["node", programs / "calls.js"], cluster, "calls")


def test_it_works_and_stops(programs: Path, cluster: Cluster) -> None:
    scenarios.works_and_stops(["node", programs / "worker.js"], cluster, "works")


def test_it_outlives_restarts(programs: Path, cluster: Cluster) -> None:
    scenarios.outlives_restarts(["node", programs / "worker.js"], cluster, "restarts")


def test_the_programs_of_its_page(programs: Path, cluster: Cluster) -> None:
    scenarios.runs_its_page(["node", programs / "page0.js"], ["node", programs / "page1.js"], cluster)
