"""Celery's workers over a broker in the test's own process: in the test's thread, and in one of their own."""

import socket
from typing import Any

import pytest
import zmq
from celery import Celery, Task, chain, chord
from celery.bootsteps import StartStopStep
from celery.contrib.testing.worker import start_worker
from celery.exceptions import MaxRetriesExceededError, Reject
from kombu import Exchange, Queue
from kombu.exceptions import OperationalError

from fila_cluster.celery.testing import InlineWorker
from fila_cluster.errors import InvalidArgumentError
from fila_cluster.testing import Fila, broker
from tests.support.cluster.cluster import eventually

HOUR = 3600
runs: list[Any] = []


@pytest.fixture(autouse=True)
def tasks(app: Celery) -> None:
    runs.clear()
    app.task(name="note", shared=False)(note)
    app.task(name="again", bind=True, max_retries=2, shared=False)(again)
    app.task(name="refuse", acks_late=True, shared=False)(refuse)


def note(what: object) -> None:
    runs.append(what)


def again(self: Any, successes_after: int) -> int:
    if self.request.retries < successes_after:
        raise self.retry(countdown=HOUR)
    return int(self.request.retries)


def refuse() -> None:
    raise Reject("refused", requeue=False)


def test_tasks_run_in_the_thread_of_the_test_without_a_socket(
    fila: Fila, app: Celery, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: Any, **__: Any) -> None:
        raise AssertionError("a socket is opened")

    monkeypatch.setattr(zmq.Context, "socket", refuse)
    monkeypatch.setattr(socket, "socket", refuse)
    began = fila.clock.now()
    sum_of_three = chain(app.signature("add", (1, 2)), app.signature("add", (3,)))()
    total = chord([app.signature("add", (number, 0)) for number in range(3)], app.signature("note"))()
    assert fila.run_until_idle(InlineWorker(app)) == 2 + 3 + 1
    assert sum_of_three.get(timeout=1) == 6
    assert (total.get(timeout=1), runs) == (None, [[0, 1, 2]])
    assert fila.run_until_idle(InlineWorker(app)) == 0
    assert fila.clock.now() == began
    fila.assert_acked("celery", 6)


def test_a_countdown_is_of_the_brokers_clock_wherever_that_is(fila: Fila, app: Celery) -> None:
    worker = InlineWorker(app)
    for _ in range(2):
        app.send_task("note", ("later",), countdown=HOUR)
        fila.clock.advance(HOUR - 60)
        assert fila.run_until_idle(worker) == 0
        fila.assert_delayed("celery", 1)
        fila.clock.advance(60)
        assert fila.run_until_idle(worker) == 1


def test_retries_come_when_the_clock_is_moved_until_there_are_no_more(fila: Fila, app: Celery) -> None:
    worker = InlineWorker(app)
    good, bad = app.send_task("again", (2,)), app.send_task("again", (3,))
    for _ in range(3):
        assert fila.run_until_idle(worker) == 2
        fila.clock.advance(HOUR)
    assert fila.run_until_idle(worker) == 0
    assert good.get(timeout=1) == 2
    with pytest.raises(MaxRetriesExceededError):
        bad.get(timeout=1)


def test_what_is_rejected_or_expired_is_a_dead_letter(fila: Fila, app: Celery) -> None:
    app.send_task("refuse")
    app.send_task("note", ("too late",), expires=60)
    fila.clock.advance(61)
    assert fila.run_until_idle(InlineWorker(app)) == 1
    fila.assert_dead("celery", 2)
    assert {letter.reason for letter in fila.queue("celery").dead} == {"failed", "expired"}
    assert runs == []


def test_tenants_take_turns(fila: Fila, app: Celery) -> None:
    for tenant in ("busy", "busy", "busy", "quiet"):
        app.send_task("note", (tenant,), headers={"fila-fairness-key": tenant})
    fila.run_until_idle(InlineWorker(app))
    assert runs == ["busy", "quiet", "busy", "busy"]


def test_a_worker_consumes_the_queues_that_it_is_told(fila: Fila, app: Celery) -> None:
    app.send_task("note", ("mail",), queue="mail")
    assert fila.run_until_idle(InlineWorker(app)) == 0
    assert fila.run_until_idle(InlineWorker(app, queues=["mail", "other"])) == 1
    assert fila.run_until_idle(InlineWorker(app)) == 0


def test_work_without_end_is_an_error(fila: Fila, app: Celery) -> None:
    def endless() -> None:
        app.send_task("endless")

    app.task(name="endless", shared=False)(endless)
    endless()
    with pytest.raises(RuntimeError, match="50 deliveries, and there are more"):
        InlineWorker(app).run_until_idle(fila, most=50)
    fila.assert_pending("celery", 1)  # it was given back


def test_the_app_must_use_the_broker_of_the_test(fila: Fila, app: Celery) -> None:
    with (
        broker("other") as other,
        pytest.raises(InvalidArgumentError, match="memory://celery, the test uses memory://other: set"),
    ):
        other.run_until_idle(InlineWorker(app))


def test_an_app_of_another_broker_is_refused_by_its_url(fila: Fila) -> None:
    with pytest.raises(InvalidArgumentError, match="the app's broker is memory://localhost"):
        fila.run_until_idle(InlineWorker(Celery(broker="memory://", set_as_current=False)))


def test_a_worker_that_does_not_start_is_an_error(fila: Fila, app: Celery) -> None:
    class Broken(StartStopStep):  # type: ignore[misc]  # Celery has no types
        def start(self, parent: Any) -> None:
            raise ValueError("broken")

    app.steps["consumer"].add(Broken)
    with pytest.raises(RuntimeError, match="the worker has ended with the exit code 1: its log says why"):
        fila.run_until_idle(InlineWorker(app))


def test_an_app_goes_on_with_the_broker_of_the_next_test(app: Celery, monkeypatch: pytest.MonkeyPatch) -> None:
    events = Exchange("events", "topic")
    app.conf.task_queues = [Queue("celery"), Queue("orders", events, routing_key="order.*")]
    monkeypatch.setenv("FILA_ENDPOINT", "memory://celery")
    for number in range(2):
        with broker("celery") as fila:
            app.send_task("note", (number,), queue="orders")
            app.send_task("note", ("routed",), exchange="events", routing_key="order.paid")
            assert fila.run_until_idle(InlineWorker(app)) == 2
    assert runs == [0, "routed", 1, "routed"]
    with pytest.raises(OperationalError, match="no broker memory://celery in this process"):
        app.send_task("note", ("nowhere",), retry=False)


def test_a_worker_in_a_thread_of_its_own(fila: Fila, app: Celery) -> None:
    with start_worker(app, perform_ping_check=False):
        assert app.send_task("add", (1, 2)).get(timeout=30) == 3
        once = app.send_task("again", (1,))
        eventually(lambda: fila.queue_stats("celery").delayed == 1, "it waits for its retry")
        fila.clock.advance(HOUR)
        assert once.get(timeout=30) == 1


def test_a_result_that_nobody_waits_for_any_more_fails_no_task(fila: Fila) -> None:
    app = Celery("shop", broker="fila://", backend="rpc://", set_as_current=False)
    app.conf.result_persistent = True
    ended: list[str] = []

    class Noted(Task):  # type: ignore[misc]  # Celery has no types
        def on_success(self, *_: Any) -> None:
            ended.append("well")

    app.task(name="note", base=Noted, shared=False)(note)
    app.send_task("note", ("x",), reply_to="gone")
    assert fila.run_until_idle(InlineWorker(app)) == 1
    assert ended == ["well"]
    app.close()
