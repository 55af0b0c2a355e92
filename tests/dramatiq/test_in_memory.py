"""Actors over a broker in the test's own process: retries come when the test's clock says so."""

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from uuid import UUID

import dramatiq
import pytest
from dramatiq.middleware import CurrentMessage

from fila_cluster.dramatiq import FilaBroker, fair
from fila_cluster.errors import InvalidArgumentError
from fila_cluster.testing import Fila, broker
from tests.support.cluster.cluster import eventually

PAGE = (Path(__file__).parents[2] / "docs/testing.md").read_text()
HOUR_MS = 3_600_000


@pytest.fixture
def fila() -> Iterator[Fila]:
    """As the fixture of the plugin, which need not be installed here."""
    with broker() as fila:
        yield fila


@pytest.fixture
def tasks(fila: Fila) -> Iterator[FilaBroker]:
    """Dramatiq's broker in front of it."""
    tasks = FilaBroker(fila.endpoint)
    yield tasks
    tasks.close()


def test_messages_run_in_the_tests_own_thread_and_retries_at_their_time(fila: Fila, tasks: FilaBroker) -> None:
    runs: list[str] = []

    @dramatiq.actor(broker=tasks, max_retries=1, min_backoff=HOUR_MS, max_backoff=HOUR_MS)
    def work(name: str) -> None:
        runs.append(name)
        raise ValueError(f"{name}, {len(runs)}")

    work.send("a")
    assert fila.run_until_idle(tasks) == 1
    fila.assert_delayed("default", 1)
    assert fila.run_until_idle(tasks) == 0
    fila.clock.advance(2 * 3600)
    assert fila.run_until_idle(tasks) == 1
    (letter,) = fila.queue("default").dead
    assert (runs, letter.attempts) == (["a", "a"], 2)
    assert letter.error.endswith("ValueError: a, 2\n")


@pytest.mark.parametrize("confirmed", [True, False])
def test_what_actors_send_runs_in_whatever_queue(fila: Fila, confirmed: bool) -> None:
    tasks = FilaBroker(fila.endpoint, confirm_delivery=confirmed)
    runs: list[int] = []

    @dramatiq.actor(broker=tasks, queue_name="last")
    def end(number: int) -> None:
        runs.append(number)

    @dramatiq.actor(broker=tasks)
    def begin(number: int) -> None:
        end.send(number)
        if number:
            begin.send(number - 1)

    begin.send(3)
    begin.send_with_options(args=(9,), delay=HOUR_MS)
    assert fila.run_until_idle(tasks) == 8
    assert runs == [3, 2, 1, 0]
    tasks.close()


def test_coroutines_run_with_dramatiqs_middleware(fila: Fila, tasks: FilaBroker) -> None:
    tasks.add_middleware(dramatiq.middleware.AsyncIO())
    runs: list[str] = []

    @dramatiq.actor(broker=tasks)
    async def work() -> None:
        runs.append("ran")

    work.send()
    assert fila.run_until_idle(tasks) == 1
    assert runs == ["ran"]


@pytest.mark.parametrize("tenant", [7, UUID(int=7)])
def test_a_primary_key_may_be_the_tenant(fila: Fila, tasks: FilaBroker, tenant: Any) -> None:
    @dramatiq.actor(broker=tasks)
    def work() -> None:
        """Do nothing."""

    work.send_with_options(fila_fairness_key=8)
    fair(tasks, key=lambda message: tenant)
    work.send()
    assert {message.fairness_key for message in fila.browse("default")} == {"8", str(tenant)}
    assert fila.run_until_idle(tasks) == 2


def test_what_no_actor_takes_is_a_dead_letter(fila: Fila, tasks: FilaBroker) -> None:
    @dramatiq.actor(broker=tasks)
    def work() -> None:
        """Do nothing."""

    tasks.enqueue(work.message().copy(actor_name="gone"))
    fila.enqueue("default", b"hello")
    work.send()
    assert fila.run_until_idle(tasks) == 3
    errors = sorted(letter.error for letter in fila.queue("default").dead)
    assert "ActorNotFound: gone" in errors[0]
    assert errors[1].startswith("not a message of dramatiq: ")
    fila.assert_empty("default")


def test_messages_without_an_end_are_an_error(fila: Fila, tasks: FilaBroker) -> None:
    @dramatiq.actor(broker=tasks)
    def work() -> None:
        work.send()

    work.send()
    with pytest.raises(RuntimeError, match="5 deliveries, and there may be more"):
        tasks.run_until_idle(fila, most=5)


def test_a_dramatiq_broker_of_another_broker_is_refused(fila: Fila, tasks: FilaBroker) -> None:
    with broker("other") as other, pytest.raises(InvalidArgumentError, match=f"to {fila.endpoint}, .* is memory://other"):
        other.run_until_idle(tasks)


def test_the_test_of_the_page_passes(monkeypatch: pytest.MonkeyPatch) -> None:
    (source,) = re.findall(r"^```python dramatiq\n(.*?)^```$", PAGE, re.DOTALL | re.MULTILINE)
    monkeypatch.setattr(dramatiq.broker, "global_broker", None)
    page: dict[str, Any] = {"__name__": "page"}
    with broker("fila") as fila:
        monkeypatch.setenv("FILA_ENDPOINT", fila.endpoint)
        exec(source, page)
        page["test_an_invoice_that_fails_is_sent_again"](fila)
        page["broker"].close()


def test_a_worker_with_threads_runs_there_too() -> None:
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


@pytest.mark.parametrize("fails", [False, True])
def test_an_actor_says_what_its_run_really_cost(fila: Fila, fails: bool) -> None:
    tasks = FilaBroker(fila.endpoint)
    tasks.add_middleware(CurrentMessage())
    fila.set_throttle("llm", rate=1, burst=10)
    costs: list[float | None] = []

    @dramatiq.actor(broker=tasks, fila_throttle_keys=["llm"], fila_cost=2, max_retries=0)
    def ask(cost: float | None) -> None:
        message: Any = CurrentMessage.get_current_message()
        message.actual_cost = cost
        costs.append(message.actual_cost)
        if fails:
            raise ValueError("no answer")

    ask.send(12)
    assert fila.run_until_idle(tasks) == 1
    ask.send(None)
    assert fila.run_until_idle(tasks) == 0, "12 of 10 tokens are spent"
    fila.clock.advance(3)
    assert fila.run_until_idle(tasks) == 0
    fila.clock.advance(2)
    assert fila.run_until_idle(tasks) == 1
    assert costs == [12, None]
    tasks.close()
