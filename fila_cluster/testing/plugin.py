"""The pytest plugin: the fixture ``fila``, ``--fila-endpoint``, and stories of queues in the reports of failed tests."""

from collections.abc import Generator, Iterator
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from fila_cluster.testing.kit import Fila

WAIT_S_MAX = 30.0
NAME = "fila"
"""The broker of each test is memory://fila."""
_KEY = pytest.StashKey["Fila"]()


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add the options."""
    group = parser.getgroup("fila", "fila-cluster")
    group.addoption(
        "--fila-endpoint",
        metavar="URL",
        default=None,
        help="run the tests with the fixture `fila` on the broker at URL instead of in memory; it must have no queues, "
        "schedules and templates",
    )
    group.addoption(
        "--fila-wait-max",
        metavar="SECONDS",
        type=float,
        default=WAIT_S_MAX,
        help="with --fila-endpoint: skip tests that advance the clock further at once (default: %(default)s)",
    )


@pytest.fixture
def fila(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> "Iterator[Fila]":
    """A client of this test's own broker: in memory, on a clock that the test moves, or that of ``--fila-endpoint``."""
    from fila_cluster.testing.kit import NotEmptyError, broker, broker_at  # noqa: PLC0415
    from fila_cluster.testing.memory import RealClock  # noqa: PLC0415 # not before a test needs a broker

    endpoint = request.config.getoption("--fila-endpoint")
    if endpoint is None:
        opened = broker(NAME)
    else:
        opened = broker_at(endpoint, RealClock(pytest.skip, request.config.getoption("--fila-wait-max")))
    try:
        with opened as fila:
            monkeypatch.setenv("FILA_ENDPOINT", fila.endpoint)
            request.node.stash[_KEY] = fila
            yield fila
    except NotEmptyError as error:
        pytest.exit(str(error), returncode=pytest.ExitCode.USAGE_ERROR)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item, call: pytest.CallInfo[None]) -> Generator[None, Any, Any]:
    """Add the stories of a test's queues to the report of its failure."""
    report = yield
    fila = item.stash.get(_KEY, None)
    if fila is not None and report.when != "teardown" and report.failed:
        from fila_cluster.testing.kit import stories_for  # noqa: PLC0415

        if story := stories_for(fila, report.longreprtext):
            report.sections.append(("queues", story))
    return report
