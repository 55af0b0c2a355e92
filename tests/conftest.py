"""Fixtures of all tests."""

import gc
import os
import signal
from collections.abc import Iterator
from pathlib import Path
from zlib import crc32

import pytest
from hypothesis import HealthCheck, settings
from xdist.remote import Producer
from xdist.scheduler import LoadScopeScheduling

from fila_cluster import Client
from fila_process.parent import ENDINGS
from tests.support import machine
from tests.support.cluster.cluster import Cluster, running
from tests.support.partitioned import spread_queues, without_those_that_differ

TOGETHER = ("tests/browser/", "tests/site/", "tests/spark/", "tests/field_reports/restarts/")
"""Folders whose tests share a browser, a Java, or a cluster of their own."""
APART = frozenset(
    f"tests/{name}.py"
    for name in ("benchmarks/test_workloads", "simulation/test_hosts", "simulation/test_seeds", "simulation/test_simulation")
)
"""Files with long tests that share nothing: each runs in any process."""
WHOLE = ("tests/benchmarks/", "tests/browser/", "tests/integration/hosts/", "tests/site/")
"""Folders that only ``make test-all`` runs."""

# What a busy machine makes slow is not wrong; and each run tries the same, so that none fails alone.
settings.register_profile("timeless", deadline=None, suppress_health_check=[HealthCheck.too_slow], derandomize=True)
settings.load_profile("timeless")

# A shell starts a job in its background with Ctrl-C ignored, and all programs that tests start would inherit that.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add ``--partitions N``: each queue that a test creates has so many, unless the test names their number."""
    parser.addoption("--partitions", type=int, default=1)


def pytest_configure(config: pytest.Config) -> None:
    """Create queues with the number of partitions that is asked for."""
    spread_queues(config.getoption("--partitions"))


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_auto_num_workers() -> int:
    """Two for each core: many tests wait for something."""
    return 2 * (os.cpu_count() or 1)


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Mark what only ``make test-all`` runs. Begin with the folders that one process works off: they take longest."""
    if config.getoption("--partitions") > 1:
        items[:] = without_those_that_differ(items)
    for item in items:
        if item.nodeid.startswith(WHOLE):
            item.add_marker(pytest.mark.whole)
    items.sort(key=lambda item: not item.nodeid.startswith(TOGETHER))


class Grouped(LoadScopeScheduling):
    """Gives tests to processes by group: a file, or a folder of ``TOGETHER``, or a single test of a file in ``APART``."""

    def _split_scope(self, nodeid: str) -> str:
        file = nodeid.partition("::")[0]
        return nodeid if file in APART else next((folder for folder in TOGETHER if file.startswith(folder)), file)


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Producer) -> Grouped:
    """Return the scheduler of all runs in several processes."""
    return Grouped(config, log)


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Say in one line what was not tested because this machine lacks something."""
    skipped = [
        report.longrepr[2] for report in terminalreporter.stats.get("skipped", []) if isinstance(report.longrepr, tuple)
    ]
    if line := machine.left_out(skipped):
        terminalreporter.write_line(line)


@pytest.hookimpl(trylast=True)
def pytest_collection_finish() -> None:
    """Have garbage collections skip what stays to the end, modules and all tests: hundreds of tests ask for one."""
    gc.collect()
    gc.freeze()


@pytest.fixture(autouse=True)
def _signals_as_before() -> Iterator[None]:
    """A command that is run in this process leaves no handler behind, which would take the Ctrl-C of a later test."""
    before = [signal.getsignal(number) for number in ENDINGS]
    yield
    assert [signal.getsignal(number) for number in ENDINGS] == before


@pytest.fixture(scope="session")
def shared_cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    """Two workers for the whole run. Tests use queues of their own and leave it alone otherwise."""
    with running(tmp_path_factory.mktemp("cluster"), workers=2) as cluster:
        yield cluster


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[Cluster]:
    """A cluster of one worker for one test, which may do with it what it likes."""
    with running(tmp_path / "data") as cluster:
        yield cluster


@pytest.fixture
def client(shared_cluster: Cluster) -> Iterator[Client]:
    """A client of the shared cluster."""
    with shared_cluster.client() as client:
        yield client


@pytest.fixture
def queue(client: Client, request: pytest.FixtureRequest) -> str:
    """A fresh queue of the shared cluster, named after the test; tests of the same name differ by their files."""
    name = "".join(letter if letter.isalnum() else "-" for letter in request.node.name)[:120]
    name += f"-{crc32(request.node.nodeid.encode()):08x}"
    client.create_queue(name)
    return name
