"""Celery's worker on a real cluster."""

import threading
import time
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from celery import Celery

from fila_cluster import Client, Message
from tests.support.cluster.cluster import PATIENCE_S, Cluster, eventually
from tests.support.external.celery import Worker, lines, sending, working

NAMESPACE = "worker"
TEN_THOUSAND = 10_000
ETA_BYTES_MAX = 4 * 1024 * 1024
"""What a worker may vary by itself. Ten thousand tasks that it held would be ten times as much."""


@pytest.fixture(scope="module")
def worker(shared_cluster: Cluster, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Worker]:
    file = tmp_path_factory.mktemp("celery") / "lines"
    with working(shared_cluster, file, "--concurrency", "2", "-E", namespace=NAMESPACE) as worker:
        yield worker


@pytest.fixture(scope="module")
def app(shared_cluster: Cluster, worker: Worker) -> Iterator[Celery]:
    with sending(shared_cluster, NAMESPACE) as app:
        yield app


def words(worker: Worker) -> list[str]:
    return [" ".join(line[2:]) for line in lines(worker.file)]


def test_a_task_runs_and_its_result_comes_back_by_a_queue(app: Celery) -> None:
    assert [app.send_task("add", (number, 1)).get(timeout=PATIENCE_S) for number in range(3)] == [1, 2, 3]


def test_a_retry_waits_in_the_broker_and_keeps_its_tenant(app: Celery) -> None:
    result = app.send_task("again", headers={"fila-fairness-key": "acme"})
    assert result.get(timeout=PATIENCE_S) == [2, {"fila-fairness-key": "acme"}]


def test_a_task_with_a_countdown_is_not_held_by_the_worker(app: Celery) -> None:
    sent = time.time()
    eta = app.send_task("when", countdown=0.5).get(timeout=PATIENCE_S)
    assert time.time() - sent >= 0.4
    assert datetime.fromisoformat(eta) <= datetime.now(UTC)


def test_the_task_of_a_killed_child_runs_again(app: Celery, worker: Worker) -> None:
    app.send_task("die_once")
    eventually(lambda: "redelivered" in words(worker), "it has run again")
    assert [word for word in words(worker) if word in {"first", "redelivered"}] == ["first", "redelivered"]


def test_a_rejected_task_is_a_dead_letter(app: Celery, client: Client) -> None:
    app.send_task("refuse")
    eventually(lambda: client.queue_stats(f"{NAMESPACE}/celery.dlq").pending == 1, "it is a dead letter")
    (letter,) = client.receive(f"{NAMESPACE}/celery.dlq")
    assert letter.headers["task"] == "refuse"
    letter.ack()


def test_workers_answer_and_obey(app: Celery, worker: Worker) -> None:
    inspect = app.control.inspect(timeout=PATIENCE_S, limit=1)
    ((name, answer),) = inspect.ping().items()
    assert answer == {"ok": "pong"}
    assert "record" in inspect.registered()[name]
    assert inspect.stats()[name]["broker"]["transport"] == "fila"
    doomed = app.send_task("record", ("doomed",), countdown=0.5)
    assert app.control.revoke(doomed.id, reply=True, timeout=PATIENCE_S, limit=1)
    app.send_task("record", ("after",), countdown=0.7)
    eventually(lambda: "after" in words(worker), "the next task has run")
    assert "doomed" not in words(worker)


def test_monitors_hear_of_tasks(app: Celery) -> None:
    heard: list[str] = []
    with app.connection_for_read() as connection:
        receiver = app.events.Receiver(connection, handlers={"task-succeeded": lambda event: heard.append(event["uuid"])})
        sent: str | None = None
        for _ in receiver.itercapture(limit=None, timeout=PATIENCE_S):
            if sent is None:  # the worker's heartbeat has come: it knows of this monitor
                sent = app.send_task("add", (1, 2)).id
            if sent in heard:
                break
    assert sent in heard


def test_ten_thousand_tasks_of_the_next_hour_take_no_memory_of_the_worker(
    app: Celery, worker: Worker, client: Client
) -> None:
    due = datetime.now(UTC) + timedelta(hours=1)
    app.send_task("record", ("later",), eta=due)
    queue = f"{NAMESPACE}/celery"
    (sent,) = client.browse(queue, state="delayed")
    assert app.send_task("add", (1, 1)).get(timeout=PATIENCE_S) == 2
    before = worker.memory_bytes()
    client.enqueue_many(queue, (Message(sent.payload, sent.headers, deliver_at=due) for _ in range(TEN_THOUSAND - 1)))
    assert client.queue_stats(queue).delayed == TEN_THOUSAND
    assert [app.send_task("add", (number, 1)).get(timeout=PATIENCE_S) for number in range(20)] == list(range(1, 21))
    assert app.control.inspect(timeout=PATIENCE_S, limit=1).scheduled().popitem()[1] == []
    assert worker.memory_bytes() - before < ETA_BYTES_MAX
    assert client.purge_queue(queue) == TEN_THOUSAND


@pytest.mark.parametrize("pool", ["solo", *(pytest.param(pool, marks=pytest.mark.whole) for pool in ("threads", "gevent"))])
def test_a_pool(shared_cluster: Cluster, tmp_path: Path, pool: str) -> None:
    with working(shared_cluster, tmp_path / "lines", "--pool", pool, "--concurrency", "2", namespace=pool) as worker:
        with sending(shared_cluster, pool) as app:
            for number in range(5):
                app.send_task("record", (number,))
            app.send_task("record", ("later",), countdown=0.3)
            eventually(lambda: len(words(worker)) == 6, "all have run")
        assert sorted(words(worker)) == ["0", "1", "2", "3", "4", "later"]
        worker.stop()
        assert worker.process.returncode == 0, worker.log()


def test_a_worker_that_stops_gives_back_what_it_has_not_begun(
    shared_cluster: Cluster, client: Client, tmp_path: Path
) -> None:
    go = tmp_path / "go"
    with sending(shared_cluster, "stopping") as app:
        with working(
            shared_cluster, tmp_path / "lines", "-c", "1", "--prefetch-multiplier", "4", namespace="stopping"
        ) as worker:
            for number in range(4):
                app.send_task("wait", (str(number), str(go)))
            eventually(lambda: client.queue_stats("stopping/celery").in_flight == 4, "it has all of them")
            eventually(lambda: words(worker) == ["0"], "it has begun one")
            stopping = threading.Thread(target=worker.stop)
            stopping.start()
            eventually(lambda: "Warm shutdown" in worker.log(), "it stops")
            go.touch()
            stopping.join()
            stats = client.queue_stats("stopping/celery")
            assert (stats.pending + len(words(worker)), stats.in_flight) == (4, 0)
            assert all(view.attempts == 0 for view in client.browse("stopping/celery"))
