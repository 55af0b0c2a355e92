"""Clients ride through the death of a router and of a worker."""

import os
import signal
import threading
from contextlib import suppress
from pathlib import Path

import pytest

from fila_cluster import Client, Message
from fila_cluster.errors import FilaError, ShardUnavailableError
from tests.support.cluster.cluster import PATIENCE_S, Cluster, eventually, running, settling_may_fail

pytestmark = pytest.mark.whole


def kill_router(cluster: Cluster) -> None:
    os.kill(cluster.router_pid(), signal.SIGKILL)


def kill_worker(cluster: Cluster) -> None:
    os.kill(cluster.worker_of(0).pid, signal.SIGKILL)


kills = pytest.mark.parametrize("kill", [kill_router, kill_worker])


@kills
def test_calls_after_a_death_are_answered(cluster: Cluster, kill):
    with cluster.client() as client:
        client.create_queue("q")
        for number in range(3):
            kill(cluster)
            enqueue_surely(client, str(number).encode())
        (info,) = client.list_queues("q")[:1]
        assert info.depth >= 3


@kills
def test_a_waiting_consumer_resumes_by_itself(cluster: Cluster, kill, open_client):
    with cluster.client() as producer, open_client(cluster.endpoint, timeout=PATIENCE_S) as client:
        producer.create_queue("q", visibility_timeout=3)  # what was on its way through a router that dies comes again
        got: list[str] = []

        def consume():
            for delivery in client.consume("q"):
                delivery.ack()
                got.append(delivery.text())

        thread = threading.Thread(target=consume)
        thread.start()
        eventually(lambda: producer.list_queues("q")[0].consumers == 1, "a consumer")
        kill(cluster)
        enqueue_surely(producer, b"after")
        eventually(lambda: "after" in got and producer.queue_stats("q").depth == 0, "the consumer is back")
        client.close()
        thread.join(PATIENCE_S)
        assert not thread.is_alive()


@kills
def test_what_is_held_is_still_held_and_can_be_settled(cluster: Cluster, kill):
    with cluster.client() as client, cluster.client() as other:
        client.create_queue("q")
        client.enqueue_many("q", [Message(b"x")] * 20)
        with client.consume("q", prefetch=10) as consumer:
            held = [next(consumer) for _ in range(10)]
            kill(cluster)
            eventually(cluster.all_up, "the cluster is back")
            client.ack(held)
            rest = [next(consumer) for _ in range(10)]
            client.ack(rest)
            assert {delivery.attempts for delivery in rest} == {0}
        assert other.receive("q", 50) == []


class Load:
    """A producer and a consumer that carry on whatever happens, in threads of their own."""

    def __init__(self, cluster: Cluster) -> None:
        self.producer, self.consumer = cluster.client(), cluster.client()
        self.confirmed: set[str] = set()
        self.acked: list[str] = []
        self.in_doubt: set[str] = set()
        """Deliveries whose ack has failed: it may be done or not."""
        self.stopping = threading.Event()
        self.threads = [threading.Thread(target=self.produce), threading.Thread(target=self.consume)]
        for thread in self.threads:
            thread.start()

    def produce(self) -> None:
        while not self.stopping.is_set():
            with suppress(FilaError):
                self.confirmed.add(self.producer.enqueue("q", b"x"))

    def consume(self) -> None:
        for delivery in self.consumer.consume("q", prefetch=50):
            try:
                delivery.ack()
            except FilaError:
                self.in_doubt.add(delivery.id)
            else:
                self.acked.append(delivery.id)

    def moves(self) -> None:
        goal = len(self.acked) + 100
        eventually(lambda: len(self.acked) > goal, "messages move")

    def close(self) -> None:
        self.stopping.set()
        self.threads[0].join(PATIENCE_S)
        eventually(lambda: self.producer.queue_stats("q").depth == 0, "everything was consumed")
        self.consumer.close()
        self.producer.close()
        self.threads[1].join(PATIENCE_S)


@settling_may_fail
@kills
def test_nothing_confirmed_is_lost_under_load(cluster: Cluster, kill):
    with cluster.client() as client:
        client.create_queue("q", visibility_timeout=3)  # what was on its way to the consumer comes again that soon
    load = Load(cluster)
    for _ in range(3):
        load.moves()
        kill(cluster)
        eventually(cluster.all_up, "the cluster is back")
    load.moves()
    load.close()
    assert load.confirmed <= {*load.acked, *load.in_doubt}
    assert len(load.acked) == len(set(load.acked))
    assert len(load.in_doubt) <= 3 * 50


def test_a_consumer_that_vanishes_is_noticed(tmp_path: Path):
    """Not at once: within the consumer timeout. Its messages come back, counted."""
    (tmp_path / "fila.toml").write_text("[scheduler]\nconsumer_timeout_ms = 2000\n")
    with running(tmp_path / "data", "--config", tmp_path / "fila.toml") as cluster, cluster.client() as other:
        other.create_queue("q", visibility_timeout=600)
        other.enqueue("q", b"x")
        gone = Client(cluster.endpoint)
        (delivery,) = gone.receive("q")
        gone._io._shut(FilaError("vanished"))
        eventually(lambda: other.queue_stats("q").pending == 1, "its end is noticed")
        (again,) = other.receive("q")
        assert (again.attempts, again.error) == (1, "consumer lost")
        again.ack()
        del delivery


def enqueue_surely(client: Client, payload: bytes) -> None:
    """A call that is in flight when something dies fails with a retryable error; the next one rides it out."""

    def answered() -> bool:
        with suppress(ShardUnavailableError):
            client.enqueue("q", payload)
            return True
        return False

    eventually(answered, "a call that is answered")
