"""Actors over a broker in the test's own process: retries come when the test's clock says so."""

import dramatiq
import pytest

from fila_cluster.dramatiq import FilaBroker
from fila_cluster.testing import broker
from tests.support.cluster import eventually


def test_a_retry_comes_when_the_clock_is_moved() -> None:
    with broker() as fila:
        tasks = FilaBroker(fila.endpoint)
        runs: list[str] = []

        @dramatiq.actor(broker=tasks, min_backoff=3_600_000, max_backoff=3_600_000)
        def work(name: str) -> None:
            runs.append(name)
            if len(runs) == 1:
                raise ValueError("the first time")

        work.send("a")
        worker = dramatiq.Worker(tasks, worker_threads=1, worker_timeout=50)
        worker.start()
        try:
            eventually(lambda: runs == ["a"] and fila.queue_stats("default").delayed == 1, "it waits for its retry")
            fila.clock.advance(2 * 3600)
            eventually(lambda: fila.queue_stats("default").depth == 0, "it is done")
        finally:
            worker.stop()
            tasks.close()
        assert runs == ["a", "a"]


def test_without_a_broker_of_that_name_the_error_says_what_to_do() -> None:
    tasks = FilaBroker("memory://nobody")

    @dramatiq.actor(broker=tasks)
    def work() -> None:
        """Never run."""

    with pytest.raises(dramatiq.errors.ConnectionClosed, match="no broker memory://nobody in this process"):
        work.send()
    tasks.close()
