"""Clients ride through the death of a router and of a worker."""

import os
import signal
import threading
import time
from contextlib import suppress

import pytest

from fila_cluster import AsyncClient, Client, Message
from fila_cluster.client import loop
from fila_cluster.errors import FilaError, ShardUnavailableError
from tests.support.cluster import Cluster, eventually

RESUME_S = 10.0


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
def test_a_waiting_consumer_resumes_by_itself(cluster: Cluster, kill):
    with cluster.client() as producer, cluster.client() as client:
        producer.create_queue("q")
        got: list[str] = []

        def consume():
            for delivery in client.consume("q"):
                got.append(delivery.text())
                delivery.ack()

        thread = threading.Thread(target=consume)
        thread.start()
        eventually(lambda: producer.list_queues("q")[0].consumers == 1, "a consumer")
        kill(cluster)
        begun = time.monotonic()
        enqueue_surely(producer, b"after")
        eventually(lambda: "after" in got, "the consumer is back")
        assert time.monotonic() - begun < RESUME_S
        client.close()
        thread.join(5)
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
        """Deliveries whose ack has failed: done or not, nobody knows."""
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
        self.threads[0].join(20)
        eventually(lambda: self.producer.queue_stats("q").depth == 0, "everything was consumed")
        self.consumer.close()
        self.producer.close()
        self.threads[1].join(10)


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


@kills
def test_asyncio_consumers_resume_too(cluster: Cluster, kill):
    async def main():
        async with AsyncClient(cluster.endpoint, timeout=10) as client:
            await client.create_queue("q")
            async with client.consume("q") as consumer:
                await client.enqueue("q", b"before")
                await (await anext(consumer)).ack()
                kill(cluster)
                for _ in range(100):
                    with suppress(ShardUnavailableError):
                        await client.enqueue("q", b"after")
                        break
                await (await anext(consumer)).ack()

    loop.run(main())


def test_a_consumer_that_vanishes_is_noticed(cluster: Cluster):
    """Not at once: within the consumer timeout. Its messages come back, counted."""
    with cluster.client() as other:
        other.create_queue("q")
        other.enqueue("q", b"x")
        gone = Client(cluster.endpoint)
        (delivery,) = gone.receive("q")
        gone._pump._shut(FilaError("vanished"))
        (again,) = other.receive("q", wait=20)
        assert (again.attempts, again.error) == (1, "consumer lost")
        again.ack()
        del delivery


def enqueue_surely(client: Client, payload: bytes) -> None:
    """A call that is in flight when something dies fails with a retryable error; the next one rides it out."""
    for _ in range(100):
        with suppress(ShardUnavailableError):
            client.enqueue("q", payload)
            return
