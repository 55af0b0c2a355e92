"""The client for Go: its types are current, it is formatted and vetted, and it does what a client must."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.examples.documents import blocks
from tests.integration.clients import scenarios
from tests.integration.clients.generated import GO_CLIENT, go_types, run
from tests.support.cluster.cluster import Cluster
from tests.support.machine import GO, GO_GENERATOR, require

pytestmark = pytest.mark.whole
PROGRAM = Path(__file__).parent / "programs/go/main.go"
MODULE = f"""module tests

go 1.19

require fila-cluster/clients/go v0.0.0

replace fila-cluster/clients/go => {GO_CLIENT}
"""


@pytest.fixture(scope="module")
def programs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A module that uses the client, as others do: with the program of these tests, and with those of its page."""
    require(GO)
    folder = tmp_path_factory.mktemp("module")
    (folder / "go.mod").write_text(MODULE)
    sources = {"tests": PROGRAM.read_text()}
    sources |= {f"page{number}": block.text for number, block in enumerate(b for b in blocks("go.md") if b.language == "go")}
    for name, text in sources.items():
        (folder / name).mkdir()
        (folder / name / "main.go").write_text(text)
        run("go", "build", "-o", f"{name}/program", f"./{name}", cwd=folder)
    return folder


@pytest.fixture(scope="module")
def cluster(programs: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    with scenarios.cluster(tmp_path_factory.mktemp("go")) as cluster:
        yield cluster


def test_its_types_are_current() -> None:
    require(GO_GENERATOR)
    assert (GO_CLIENT / "types.gen.go").read_text() == go_types(), "python -m tests.integration.clients.generated"


def test_it_is_formatted_and_vetted_and_needs_nothing_at_run_time(programs: Path) -> None:
    assert run("gofmt", "-l", GO_CLIENT, programs, cwd=programs) == ""
    run("go", "vet", "./...", cwd=programs)
    run("go", "vet", "./...", cwd=GO_CLIENT)
    assert run("go", "list", "-m", "all", cwd=GO_CLIENT).split() == ["fila-cluster/clients/go"]


def test_it_makes_all_calls(programs: Path, cluster: Cluster) -> None:
    scenarios.makes_all_calls([programs / "tests/program", "calls"], cluster, "calls")


def test_it_works_and_stops(programs: Path, cluster: Cluster) -> None:
    scenarios.works_and_stops([programs / "tests/program", "worker"], cluster, "works")


def test_it_outlives_restarts(programs: Path, cluster: Cluster) -> None:
    scenarios.outlives_restarts([programs / "tests/program", "worker"], cluster, "restarts")


def test_the_programs_of_its_page(programs: Path, cluster: Cluster) -> None:
    scenarios.runs_its_page([programs / "page0/program"], [programs / "page1/program"], cluster)
