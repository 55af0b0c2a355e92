"""A broker in memory whose clock begins at a moment of the test's choice."""

import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from datetime import datetime
from types import SimpleNamespace

import pytest

from fila_cluster.testing import Fila, broker

At = Callable[[str], Fila]


@pytest.fixture
def fila_at(monkeypatch: pytest.MonkeyPatch) -> Iterator[At]:
    """Return a function that starts a broker at a moment, such as ``2026-10-24T23:00:00+00:00``."""
    with ExitStack() as opened:

        def start(moment: str) -> Fila:
            began_ns = int(datetime.fromisoformat(moment).timestamp()) * 10**9
            clock = SimpleNamespace(time_ns=lambda: began_ns, monotonic=time.monotonic)
            monkeypatch.setattr("fila_cluster.testing.memory.time", clock)
            return opened.enter_context(broker())

        yield start


def due_times(fila: Fila, queue: str) -> list[str]:
    """Return the due times of what a queue has, as UTC without the date of the zone."""
    return [view.headers["fila-due-at"] for view in fila.browse(queue, limit=1000)]
