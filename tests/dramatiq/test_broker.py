"""Dramatiq's actors and workers on our broker."""

import os
import re
import signal
import subprocess
import sys
import threading
from collections import Counter
from pathlib import Path
from typing import Any

import dramatiq
import pytest
from dramatiq.middleware import Middleware

from fila_cluster.dramatiq import FilaBroker, fair
from fila_cluster.errors import InvalidArgumentError
from tests.dramatiq.conftest import StartWorker, opened
from tests.support.cluster.cluster import PATIENCE_S, Cluster, environment, eventually, running

PATIENCE_MS = int(PATIENCE_S * 1000)
HOUR_MS = 3_600_000
QUEUE = "default"
TASKS = 1500
"""For the command line: more than it does between a signal and its end."""


def info(broker: FilaBroker, queue: str = QUEUE) -> Any:
    name = broker.queue_of(queue)
    return next(each for each in broker.client.list_queues(name) if each.name == name)


def letters(broker: FilaBroker, queue: str = QUEUE) -> list[Any]:
    return broker.client.browse(broker.queue_of(queue) + ".dlq")


def test_a_message_that_is_due_in_an_hour_is_with_no_worker(broker: FilaBroker, start_worker: StartWorker) -> None:
    ran: list[int] = []

    @dramatiq.actor
    def work(number: int) -> None:
        ran.append(number)

    for number in range(200):
        work.send_with_options(args=(number,), delay=HOUR_MS)
    work.send(1000)
    work.send_with_options(args=(1001,), delay=50)
    worker = start_worker()
    eventually(lambda: sorted(ran) == [1000, 1001], "what is due runs")
    assert set(worker.consumers) == {QUEUE}
    assert worker.consumers[QUEUE].delay_queue.empty()
    assert worker.work_queue.empty()
    assert (info(broker).delayed, info(broker).in_flight) == (200, 0)


def test_an_eta_is_kept_by_the_broker(broker: FilaBroker, start_worker: StartWorker) -> None:
    @dramatiq.actor
    def work() -> None: ...

    message = work.message_with_options(eta=dramatiq.common.current_millis() + HOUR_MS)
    broker.enqueue(message)
    start_worker()
    assert info(broker).delayed == 1
    broker.flush_all()
    assert info(broker).depth == 0


def test_a_retry_is_the_same_message_and_its_last_failure_a_dead_letter(
    broker: FilaBroker, start_worker: StartWorker
) -> None:
    ran: list[int] = []

    @dramatiq.actor(max_retries=2, min_backoff=1, max_backoff=1)
    def work() -> None:
        ran.append(len(ran))
        raise RuntimeError(f"no paper, {len(ran)}")

    message = work.send()
    first = broker.client.browse(broker.queue_of(QUEUE))[0]
    start_worker()
    broker.join(QUEUE, interval=5, timeout=PATIENCE_MS)
    (letter,) = letters(broker)
    assert len(ran) == 3
    assert (letter.id, letter.attempts) == (first.id, 3)
    assert letter.error.endswith("RuntimeError: no paper, 3\n")
    assert letter.headers == {"dramatiq-actor": "work", "dramatiq-message-id": message.message_id}

    broker.client.redrive(broker.queue_of(QUEUE) + ".dlq")  # and it has all its retries again
    eventually(lambda: len(ran) == 6, "it ran three times more")
    eventually(lambda: len(letters(broker)) == 1, "it failed again")


def test_what_an_attempt_changes_is_there_in_the_next(broker: FilaBroker, start_worker: StartWorker) -> None:
    seen: list[Any] = []

    class Noting(Middleware):
        def before_process_message(self, broker: Any, message: Any) -> None:
            seen.append((message.options.get("retries"), message.options.get("note")))
            message.options["note"] = "x" * 100_000 if len(seen) == 2 else len(seen)

    broker.add_middleware(Noting())

    @dramatiq.actor(max_retries=3, min_backoff=1, max_backoff=1)
    def work() -> None:
        if len(seen) < 4:
            raise RuntimeError("again")

    work.send()
    start_worker()
    broker.join(QUEUE, interval=5, timeout=PATIENCE_MS)
    assert seen == [(None, None), (1, 1), (2, "x" * 100_000), (3, 3)]  # one of them is too large to travel with its ack
    assert letters(broker) == []


def test_what_is_enqueued_again_and_then_fails_is_both(broker: FilaBroker, start_worker: StartWorker) -> None:
    class Both(Middleware):
        def after_process_message(self, broker: Any, message: Any, *, result: Any = None, exception: Any = None) -> None:
            if exception is not None:
                broker.enqueue(message, delay=HOUR_MS)
                message.fail()

    broker.middleware.clear()
    broker.add_middleware(Both())

    @dramatiq.actor
    def work() -> None:
        raise RuntimeError("never")

    work.send()
    start_worker()
    eventually(lambda: len(letters(broker)) == 1, "it failed")
    assert info(broker).delayed == 1


def test_a_noisy_tenant_does_not_delay_a_quiet_one(broker: FilaBroker, start_worker: StartWorker) -> None:
    fair(
        broker,
        key=lambda message: message.kwargs["tenant"],
        weight=lambda message: {"large": 3}.get(message.kwargs["tenant"]),
    )
    ran: list[str] = []

    @dramatiq.actor
    def work(tenant: str) -> None:
        ran.append(tenant)

    for tenant in ("small", "large", "named"):
        for _ in range(80):
            options = {"fila_fairness_key": "named", "fila_weight": 2} if tenant == "named" else {}
            work.send_with_options(kwargs={"tenant": tenant}, **options)
    start_worker(1)
    broker.join(QUEUE, interval=5, timeout=PATIENCE_MS)
    assert len(ran) == 240
    shares = Counter(ran[:120])
    assert all(abs(shares[tenant] - share) <= 3 for tenant, share in {"small": 20, "large": 60, "named": 40}.items()), shares


def test_a_retry_keeps_the_key_that_a_rule_gave(broker: FilaBroker, start_worker: StartWorker) -> None:
    tenants = iter(["acme"])
    fair(broker, key=lambda _: next(tenants))
    sizes = iter([100_000, 0])

    @dramatiq.actor(max_retries=1, min_backoff=HOUR_MS)
    def work() -> None:
        message = dramatiq.middleware.CurrentMessage.get_current_message()
        assert message is not None
        message.options["filling"] = "x" * next(sizes)  # too large to travel with the ack: it is enqueued
        raise RuntimeError("again")

    broker.add_middleware(dramatiq.middleware.CurrentMessage())
    work.send()
    start_worker()
    eventually(lambda: (info(broker).delayed, info(broker).in_flight) == (1, 0), "it waits, and the original is acked")
    assert [message.fairness_key for message in broker.client.browse(broker.queue_of(QUEUE))] == ["acme"]


def test_options_of_messages_win_over_those_of_actors(broker: FilaBroker) -> None:
    @dramatiq.actor(priority=7, fila_throttle_keys=["provider"], fila_cost=2, fila_headers={"kind": "call"})
    def work(number: int) -> None: ...

    work.send(1)
    work.send_with_options(args=(2,), fila_throttle_keys=["other"], fila_priority=3, fila_headers={"tier": "gold"})
    work.send_with_options(args=(3,), broker_priority=9, fila_dedup_id="one")
    work.send_with_options(args=(4,), broker_priority=9, fila_dedup_id="one")
    found = broker.client.browse(broker.queue_of(QUEUE))
    assert [(each.json()["args"], each.priority, each.throttle_keys, each.cost) for each in found] == [
        ([3], -9, ["provider"], 2),
        ([2], 3, ["other"], 2),
        ([1], 7, ["provider"], 2),
    ]
    assert (found[1].headers["kind"], found[1].headers["tier"]) == ("call", "gold")
    assert "fila_dedup_id" not in found[0].json()["options"]
    with pytest.raises(InvalidArgumentError, match="throttle_keys"):
        work.send_with_options(args=(5,), fila_throttle_keys="provider")
    with pytest.raises(InvalidArgumentError, match=r"'work' has the option 'fila_key': there are .*fila_fairness_key, "):
        work.send_with_options(args=(6,), fila_key="acme")


def test_a_worker_that_stops_gives_back_what_it_has_not_run(broker: FilaBroker, start_worker: StartWorker) -> None:
    begun, go_on = threading.Event(), threading.Event()
    ran: list[int] = []

    @dramatiq.actor
    def work(number: int) -> None:
        ran.append(number)
        begun.set()
        go_on.wait(PATIENCE_S)

    for number in range(5):
        work.send(number)
    worker = start_worker(1)
    assert begun.wait(PATIENCE_S)
    eventually(lambda: info(broker).in_flight == 2, "two are prefetched")
    stopping = threading.Thread(target=worker.stop)
    stopping.start()
    eventually(lambda: not worker.workers[0].running, "it is told to stop")
    go_on.set()
    stopping.join(PATIENCE_S)
    left = broker.client.browse(broker.queue_of(QUEUE))
    assert [(each.json()["args"], each.attempts, each.state) for each in left] == [
        ([number], 0, "pending") for number in range(1, 5)
    ]
    assert ran == [0]


def test_what_is_no_message_goes_to_the_dead_letters(broker: FilaBroker, start_worker: StartWorker) -> None:
    ran = threading.Event()

    @dramatiq.actor
    def work() -> None:
        ran.set()

    work.send()
    broker.client.enqueue(broker.queue_of(QUEUE), b"hello")
    start_worker()
    assert ran.wait(PATIENCE_S)
    eventually(lambda: len(letters(broker)) == 1, "the other one is dead")
    assert letters(broker)[0].error.startswith("not a message of dramatiq")


def test_queues_are_made_with_the_options_that_the_broker_was_given(shared_cluster: Cluster) -> None:
    with opened(shared_cluster.endpoint, namespace="made-with-options", queue_options={"dead_letter": "discard"}) as broker:

        @dramatiq.actor
        def work() -> None: ...

        assert broker.client.list_queues("made-with-options/") == []
        work.send()
        (made,) = broker.client.list_queues("made-with-options/")  # and no dead letter queue
        assert made.name == "made-with-options/default"
        broker.client.delete_queue("made-with-options/default")
        work.send()  # and they are made again when they are gone
        assert info(broker).pending == 1


def test_unconfirmed_messages_are_all_there_when_the_broker_is_closed(shared_cluster: Cluster, broker: FilaBroker) -> None:
    for _ in range(2):  # and again after a close
        with opened(shared_cluster.endpoint, namespace="unconfirmed", confirm_delivery=False) as unconfirmed:
            work = dramatiq.actor(lambda number: None, actor_name="work", broker=unconfirmed)
            for number in range(500):
                work.send(number)
            unconfirmed.close()
            work.send(500)
    found = broker.client.browse("unconfirmed/default", limit=2000)
    assert sorted(message.json()["args"][0] for message in found) == sorted([*range(501)] * 2)
    broker.client.delete_queue("unconfirmed/default")


def test_a_client_of_ones_own_is_used_and_left_open(broker: FilaBroker) -> None:
    borrowing = FilaBroker(client=broker.client, namespace="borrowed")
    dramatiq.actor(lambda: None, actor_name="work", broker=borrowing).send()
    borrowing.close()
    assert broker.client.queue_stats("borrowed/default").pending == 1
    broker.client.delete_queue("borrowed/default")


@pytest.mark.whole
def test_a_worker_survives_a_restart_of_the_broker(tmp_path: Path) -> None:
    ran: list[int] = []
    with running(tmp_path / "data") as cluster:
        endpoint = cluster.endpoint
        with opened(endpoint) as broker:

            @dramatiq.actor
            def work(number: int) -> None:
                ran.append(number)

            worker = dramatiq.Worker(broker, worker_threads=2, worker_timeout=50)
            for number in range(300):
                work.send(number)
            worker.start()
            eventually(lambda: len(ran) > 20, "it works")
            cluster.kill_all()
            in_flight = len(ran)
            with running(tmp_path / "data", listen=endpoint.removeprefix("tcp://")):
                work.send(300)
                broker.join(QUEUE, interval=20, timeout=PATIENCE_MS)
                worker.stop()
    assert set(ran) == set(range(301))
    assert len(ran) - 301 <= 4 + 2, f"{len(ran) - 301} ran twice, of {in_flight} before the kill: more than was under way"


@pytest.mark.whole
def test_the_command_line_stopped_in_the_middle_loses_and_repeats_nothing(cluster: Cluster, tmp_path: Path) -> None:
    notes = tmp_path / "notes"
    env = environment(FILA_ENDPOINT=cluster.endpoint, TASKS_TEST_NOTES=str(notes), PYTHONPATH=os.pathsep.join(sys.path))
    command = [sys.executable, "-m", "dramatiq", "tests.dramatiq.project", "--processes", "2", "--threads", "2"]

    def noted() -> list[str]:
        return notes.read_text().split() if notes.exists() else []

    def run_until(count: int) -> None:
        with subprocess.Popen(command, env=env, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True) as started:
            try:
                eventually(lambda: len(noted()) >= count or started.poll() is not None, f"{count} are done")
                started.send_signal(signal.SIGTERM)
                _, said = started.communicate(timeout=PATIENCE_S)
            finally:
                started.kill()
        assert started.returncode == 0, said
        assert not re.search("Traceback|ERROR|CRITICAL", said), said

    with opened(cluster.endpoint, confirm_delivery=False) as broker:
        note = dramatiq.actor(lambda number: None, actor_name="note")
        for number in range(TASKS):
            note.send(number)
        eventually(lambda: info(broker).pending == TASKS, "all are in")
        run_until(100)
        assert info(broker).in_flight == 0
        assert info(broker).pending == TASKS - len(noted()) > 0
        run_until(TASKS)
        assert info(broker).depth == 0
    assert sorted(map(int, noted())) == list(range(TASKS))


def test_without_dramatiq_the_import_says_what_to_install() -> None:
    code = "import sys; sys.modules['dramatiq'] = None; import fila_cluster.dramatiq"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False, env=environment())
    assert done.returncode == 1
    assert done.stderr.rstrip().endswith("pip install 'fila-cluster[dramatiq]'")


def test_a_process_that_ends_without_closing_its_broker_has_sent_everything(
    shared_cluster: Cluster, broker: FilaBroker
) -> None:
    code = """
import dramatiq
from fila_cluster.dramatiq import FilaBroker
broker = FilaBroker(confirm_delivery=False, namespace="at-exit", timeout=60)
work = dramatiq.actor(lambda number: None, actor_name="work", broker=broker)
for number in range(300):
    work.send(number)
"""
    env = environment(FILA_ENDPOINT=shared_cluster.endpoint, PYTHONPATH=os.pathsep.join(sys.path))
    done = subprocess.run([sys.executable, "-W", "error", "-c", code], capture_output=True, text=True, check=False, env=env)
    assert (done.returncode, done.stderr) == (0, "")
    assert broker.client.queue_stats("at-exit/default").pending == 300
    broker.client.delete_queue("at-exit/default")
