"""What is lost on its way between broker and client, on real processes: nothing waits for a lease to run out, nothing is counted."""

import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest

from fila_cluster import Client, Delivery
from fila_cluster.errors import FilaError
from tests.support.cluster.cluster import PATIENCE_S, Cluster, eventually, running, settling_may_fail

pytestmark = pytest.mark.whole

LONG_S = 600.0
"""A visibility timeout that no test waits for."""


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[Cluster]:
    with running(tmp_path / "data") as cluster:
        yield cluster


@contextmanager
def stopped(pid: int) -> Iterator[None]:
    """A process that hangs."""
    os.kill(pid, signal.SIGSTOP)
    try:
        yield
    finally:
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGCONT)


@contextmanager
def consuming(client: Client, prefetch: int) -> Iterator[list[tuple[bytes, int]]]:
    """What a consumer in a thread of its own gets and acks: payloads and attempts."""
    got: list[tuple[bytes, int]] = []

    def consume() -> None:
        with suppress(FilaError):
            for delivery in client.consume("q", prefetch=prefetch):
                got.append((delivery.payload, delivery.attempts))
                delivery.ack()

    thread = threading.Thread(target=consume)
    thread.start()
    try:
        yield got
    finally:
        client.close()
        thread.join(PATIENCE_S)


def enqueue_surely(client: Client, payload: bytes) -> None:
    """Enqueue, also if the connection is lost meanwhile."""

    def enqueued() -> bool:
        with suppress(FilaError):
            return bool(client.enqueue("q", payload, dedup_id=payload.decode()))
        return False

    eventually(enqueued, "a message that is accepted")


def kill_router_while_a_push_is_under_way(cluster: Cluster, client: Client) -> None:
    """The worker pushes to a router that hangs, and then dies."""
    client.enqueue("q", b"second", delay=1)
    router = cluster.router_pid()
    with stopped(router):
        time.sleep(1.5)  # until the delay is over, and the push is lost
        os.kill(router, signal.SIGKILL)


def test_a_push_that_is_lost_with_the_router_comes_again_at_once_and_uncounted(cluster: Cluster) -> None:
    with cluster.client() as producer, cluster.client() as client:
        producer.create_queue("q", visibility_timeout=LONG_S, max_attempts=1)
        with consuming(client, prefetch=1) as got:
            producer.enqueue("q", b"first")
            eventually(lambda: got == [(b"first", 0)], "the first message")
            kill_router_while_a_push_is_under_way(cluster, producer)
            eventually(cluster.all_up, "the router is back")
            enqueue_surely(producer, b"third")
            eventually(lambda: len(got) == 3, "all messages")
        assert sorted(got) == [(b"first", 0), (b"second", 0), (b"third", 0)]
        assert producer.queue_stats("q.dlq").pending == 0


def test_an_answer_that_is_lost_with_the_router_comes_again(cluster: Cluster) -> None:
    with cluster.client() as producer, cluster.client() as client:
        producer.create_queue("q", visibility_timeout=LONG_S, max_attempts=1)
        got: list[Delivery] = []
        thread = threading.Thread(target=lambda: got.extend(client.receive("q", wait=PATIENCE_S)))
        thread.start()
        eventually(lambda: producer.queue_stats("q").consumers == 1, "a receive that waits")
        kill_router_while_a_push_is_under_way(cluster, producer)
        thread.join(PATIENCE_S)
        assert [(delivery.payload, delivery.attempts) for delivery in got] == [(b"second", 0)]
        client.ack(got)
        assert producer.queue_stats("q").depth == 0


def test_what_a_receive_that_timed_out_was_granted_goes_back(cluster: Cluster) -> None:
    with cluster.client() as producer, Client(cluster.endpoint, timeout=1.0, direct=False) as client:
        producer.create_queue("q", visibility_timeout=LONG_S, max_attempts=1)
        producer.enqueue("q", b"x", delay=1)
        router = cluster.router_pid()
        with pytest.raises(FilaError):  # noqa: PT012
            thread = threading.Timer(0.5, os.kill, (router, signal.SIGSTOP))
            thread.start()
            client.receive("q", wait=1.5)
        os.kill(router, signal.SIGCONT)
        eventually(lambda: producer.queue_stats("q").pending == 1, "it is pending again")
        (delivery,) = producer.receive("q")
        assert delivery.attempts == 0
        delivery.ack()


@settling_may_fail
def test_a_worker_that_is_killed_again_and_again_loses_no_push(cluster: Cluster) -> None:
    with cluster.client() as producer, cluster.client() as client:
        producer.create_queue("q", visibility_timeout=LONG_S)
        got: set[bytes] = set()

        def consume() -> None:
            with suppress(FilaError):
                for delivery in client.consume("q", prefetch=2):
                    with suppress(FilaError):
                        delivery.ack()
                        got.add(delivery.payload)

        thread = threading.Thread(target=consume)
        thread.start()
        sent = 0
        for _ in range(4):
            for _ in range(50):
                with suppress(FilaError):
                    producer.enqueue("q", b"%d" % sent, dedup_id=str(sent))
                    sent += 1
            os.kill(cluster.worker_of(0).pid, signal.SIGKILL)
            eventually(cluster.all_up, "the worker is back")
        eventually(lambda: producer.queue_stats("q").depth == 0, "everything was consumed", 30)
        client.close()
        thread.join(PATIENCE_S)


def test_what_is_delivered_at_most_once_never_comes_again(cluster: Cluster) -> None:
    """Its worker is away for longer than the client waits for anything, and then the client leaves in good order."""
    with cluster.client() as producer, cluster.client(timeout=1.0) as client:
        producer.create_queue("q", delivery="at_most_once")
        for payload in (b"0", b"1", b"2"):
            producer.enqueue("q", payload)
        consumer = client.consume("q", prefetch=3)
        had = [next(consumer).payload]
        eventually(lambda: producer.queue_stats("q").in_flight == 2, "the first one's ack, and the others prefetched")
        with stopped(cluster.supervisor.pid):
            os.kill(cluster.worker_of(0).pid, signal.SIGKILL)
            had.append(next(consumer).payload)
            time.sleep(2)  # its ack is given up
        eventually(cluster.all_up, "the worker is back")
        consumer.close()
        client.close()
        assert [delivery.payload for delivery in producer.receive("q", 10, wait=PATIENCE_S)] == [b"2"]
        assert had == [b"0", b"1"]
        assert producer.queue_stats("q").depth == 0


PAUSED = """
import sys
from fila_cluster import Client
from fila_cluster.errors import LeaseExpiredError

with Client(sys.argv[1]) as client, client.consume("q", prefetch=3) as consumer:
    for delivery in consumer:
        print(delivery.text(), delivery.attempts, flush=True)
        sys.stdin.readline()
        try:
            delivery.ack()
            print("acked", flush=True)
        except LeaseExpiredError:
            print("expired", flush=True)
"""


def test_a_client_that_was_paused_goes_on_with_what_the_broker_gives_it_then(tmp_path: Path) -> None:
    (tmp_path / "fila.toml").write_text("[scheduler]\nconsumer_timeout_ms = 2000\n")
    with running(tmp_path / "data", "--config", tmp_path / "fila.toml") as cluster, cluster.client() as client:
        client.create_queue("q", visibility_timeout=LONG_S)
        for payload in (b"a", b"b", b"c"):
            client.enqueue("q", payload)
        program = [sys.executable, "-c", PAUSED, cluster.endpoint]
        with subprocess.Popen(program, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as paused:
            assert paused.stdin
            assert paused.stdout
            assert paused.stdout.readline() == "a 0\n"
            eventually(lambda: client.queue_stats("q").in_flight == 3, "all are prefetched")
            with stopped(paused.pid):
                eventually(lambda: client.queue_stats("q").pending == 3, "the broker has noticed")
            eventually(lambda: client.queue_stats("q").in_flight == 3, "they are prefetched again")
            paused.stdin.write("\n" * 4)
            paused.stdin.flush()
            said = [paused.stdout.readline().strip() for _ in range(7)]
            paused.kill()
        assert said == ["expired", "a 1", "acked", "b 1", "acked", "c 1", "acked"]
