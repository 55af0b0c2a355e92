"""Strict order within a key over real processes: eight consumers, nacks, lapsed leases, kill -9 of router and workers."""

import random
import threading
from collections import defaultdict
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path

import pytest

from fila_cluster import Client, Delivery, Message
from fila_cluster.errors import FilaError
from tests.support.cluster.cluster import Cluster, eventually, running, settling_may_fail

pytestmark = pytest.mark.whole

QUEUE = "ordered"
KEYS = 12
PER_KEY = 25
CONSUMERS = 8
KILLS = 4
VISIBILITY_S = 0.6


@dataclass
class Log:
    """What the consumers were given, by key: when it was leased, and the message's number."""

    lock: threading.Lock = field(default_factory=threading.Lock)
    deliveries: dict[str, list[tuple[datetime, int]]] = field(default_factory=lambda: defaultdict(list))

    def saw(self, delivery: Delivery) -> None:
        """A delivery came."""
        with self.lock:
            self.deliveries[delivery.fairness_key].append((delivery.leased_at, int(delivery.payload)))

    @property
    def messages(self) -> int:
        """How many were delivered at least once."""
        with self.lock:
            return sum(len({number for _, number in deliveries}) for deliveries in self.deliveries.values())


def consume(client: Client, log: Log, stop: threading.Event, choice: random.Random) -> None:
    """Take one at a time, and be a bad consumer now and then."""
    while not stop.is_set():
        with suppress(FilaError):
            for delivery in client.receive(QUEUE, 1, wait=0.2):
                log.saw(delivery)
                settle(delivery, choice.random(), stop)


def settle(delivery: Delivery, luck: float, stop: threading.Event) -> None:
    if luck < 0.15:
        delivery.nack("bad luck")
    elif luck < 0.2:
        delivery.retry(after=0.05)
    elif luck < 0.23:
        stop.wait(VISIBILITY_S + 0.3)  # its lease lapses, and somebody else has it
        with suppress(FilaError):
            delivery.ack()
    else:
        delivery.ack()


@contextmanager
def consumers(cluster: Cluster, log: Log) -> Iterator[None]:
    """Eight of them, each with a client of its own."""
    stop = threading.Event()
    clients = [Client(cluster.endpoint, timeout=5.0) for _ in range(CONSUMERS)]
    threads = [
        threading.Thread(target=consume, args=(client, log, stop, random.Random(number)))
        for number, client in enumerate(clients)
    ]
    for thread in threads:
        thread.start()
    try:
        yield
    finally:
        stop.set()
        for thread in threads:
            thread.join()
        for client in clients:
            client.close()


@settling_may_fail
def test_the_next_message_waits_until_the_last_is_settled_whatever_is_killed(tmp_path: Path) -> None:
    log = Log()
    victim = random.Random(11)
    with running(tmp_path, workers=2) as cluster, cluster.client() as client:
        client.create_queue(QUEUE, max_in_flight_per_key=1, visibility_timeout=VISIBILITY_S)
        messages = [Message(b"%d" % number, fairness_key=f"k{key}") for number in range(PER_KEY) for key in range(KEYS)]
        client.enqueue_many(QUEUE, messages)
        with consumers(cluster, log):
            for share in range(1, KILLS + 1):
                wanted = KEYS * PER_KEY * share // (KILLS + 2)
                eventually(lambda wanted=wanted: log.messages >= wanted, f"{wanted} messages delivered")
                victim.choice(cluster.children()).kill()
                eventually(cluster.all_up, "all workers up again")
            eventually(lambda: client.queue_stats(QUEUE).depth == 0, "an empty queue")
    assert log.messages == KEYS * PER_KEY
    for key, deliveries in log.deliveries.items():
        numbers = [number for _, number in sorted(deliveries)]
        assert numbers == sorted(numbers), f"{key}: one was delivered before an earlier one was settled"


def test_no_other_key_waits_for_a_stuck_one(tmp_path: Path) -> None:
    with running(tmp_path) as cluster, cluster.client() as client:
        client.create_queue(QUEUE, max_in_flight_per_key=1)
        client.enqueue_many(QUEUE, [Message(b"%d" % number, fairness_key=f"k{number % 3}") for number in range(12)])
        stuck = client.receive(QUEUE, 10)
        assert sorted(delivery.fairness_key for delivery in stuck) == ["k0", "k1", "k2"]
        held = next(delivery for delivery in stuck if delivery.fairness_key == "k0")
        client.ack([delivery for delivery in stuck if delivery is not held])
        rest = []
        while batch := client.receive(QUEUE, 10):
            rest += [(delivery.fairness_key, delivery.payload) for delivery in batch]
            client.ack(batch)
        assert sorted(rest) == [("k1", b"10"), ("k1", b"4"), ("k1", b"7"), ("k2", b"11"), ("k2", b"5"), ("k2", b"8")]
        held.ack()
        (following,) = client.receive(QUEUE, 10)
        assert following.payload == b"3"
        following.ack()
