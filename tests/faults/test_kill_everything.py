"""kill -9 of router and workers at random moments, under a confirmed producer and a consumer that settles in all ways.

The clients survive, as they would on other machines. Whatever the broker confirmed must hold afterwards.
"""

import random
import threading
import time
from collections import defaultdict
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from fila_cluster import Client, Delivery, Message
from fila_cluster.errors import BatchError, FilaError, LeaseExpiredError
from tests.support.cluster.cluster import PATIENCE_S, Cluster, eventually, settling_may_fail

ROUNDS = 6
QUEUE = "survivors"


@dataclass
class ClientRecords:
    """What the clients know for sure. ``delivered`` maps an id to the attempts of its deliveries, in order."""

    lock: threading.Lock = field(default_factory=threading.Lock)
    confirmed: set[str] = field(default_factory=set)
    delivered: dict[str, list[int]] = field(default_factory=lambda: defaultdict(list))
    acked: set[str] = field(default_factory=set)
    ack_unknown: set[str] = field(default_factory=set)
    attempts_at_least: dict[str, int] = field(default_factory=dict)
    wrong: list[str] = field(default_factory=list)

    def receive(self, delivery: Delivery) -> None:
        """A delivery came: it must be of a message that could still be there, with the attempts that were confirmed."""
        with self.lock:
            if delivery.id in self.acked:
                self.wrong.append(f"{delivery.id} was delivered again after its ack was confirmed")
            if delivery.attempts < self.attempts_at_least.get(delivery.id, 0):
                self.wrong.append(f"{delivery.id} has {delivery.attempts} attempts: a confirmed nack was forgotten")
            self.delivered[delivery.id].append(delivery.attempts)


def produce(client: Client, records: ClientRecords, stop: threading.Event) -> None:
    """Enqueue confirmed batches until the stop; what fails is not counted on."""
    number = 0
    while not stop.is_set():
        batch = [Message(b"%d" % (number + index), fairness_key=f"k{index % 7}") for index in range(20)]
        number += len(batch)
        try:
            records.confirmed.update(client.enqueue_many(QUEUE, batch))
        except BatchError as error:
            records.confirmed.update(result for result in error.results if isinstance(result, str))
        except FilaError:
            time.sleep(0.01)  # the broker is down: that is the point


def consume(client: Client, records: ClientRecords, stop: threading.Event, choice: random.Random) -> None:
    """Receive and settle in all ways until the stop."""
    while not stop.is_set():
        try:
            deliveries = client.receive(QUEUE, 20, wait=0.2)
        except FilaError:
            time.sleep(0.01)
            continue
        for delivery in deliveries:
            records.receive(delivery)
            settle(delivery, records, choice)


def settle(delivery: Delivery, records: ClientRecords, choice: random.Random) -> None:
    """Ack most, nack some, give some back; remember what was confirmed."""
    draw = choice.random()
    try:
        if draw < 0.7:
            with records.lock:
                records.ack_unknown.add(delivery.id)
            delivery.ack()
            with records.lock:
                records.acked.add(delivery.id)
        elif draw < 0.9:
            delivery.nack("again")
            with records.lock:
                records.attempts_at_least[delivery.id] = delivery.attempts + 1
        else:
            delivery.retry(after=0.05)
    except FilaError:
        pass  # unknown or refused: nothing is counted on


@pytest.mark.whole
@pytest.mark.timeout(600)
@settling_may_fail
def test_kills_of_everything_lose_nothing_and_bring_nothing_back(tmp_path: Path) -> None:
    seed = random.randrange(2**32)
    print(f"seed {seed}")
    choice = random.Random(seed)
    cluster = Cluster(tmp_path / "data", workers=2)
    records, stop = ClientRecords(), threading.Event()
    with Client(cluster.endpoint, timeout=2.0) as producer, Client(cluster.endpoint, timeout=2.0) as consumer:
        producer.create_queue(QUEUE, visibility_timeout=2.0)
        threads = [
            threading.Thread(target=produce, args=(producer, records, stop)),
            threading.Thread(target=consume, args=(consumer, records, stop, choice)),
        ]
        for thread in threads:
            thread.start()
        for _ in range(ROUNDS):
            goal = len(records.acked) + choice.choice((0, 1, 40))
            eventually(lambda goal=goal: len(records.acked) >= goal, "something is done between two kills")
            time.sleep(choice.uniform(0.05, 0.5))  # the moment is what is being tried
            cluster = killed_and_restarted(cluster)
        stop.set()
        for thread in threads:
            thread.join()
        drain(consumer, records)
    assert cluster.stop() == 0
    cluster.close()
    assert records.wrong == []
    assert len(records.acked) > 80, "the test did too little to prove anything"
    missing = records.confirmed - set(records.delivered) - records.ack_unknown
    assert not missing, f"{len(missing)} confirmed messages were never delivered"


def drain(client: Client, records: ClientRecords) -> None:
    """Ack all that is left, leases of clients that are gone included."""

    def empty() -> bool:
        deliveries = client.receive(QUEUE, 500, wait=0.1)
        for delivery in deliveries:
            records.receive(delivery)
        client.ack(deliveries)
        return client.queue_stats(QUEUE).depth == 0

    def emptied() -> bool:
        with suppress(FilaError):  # a lease that ended in between
            return empty()
        return False

    eventually(emptied, "an empty queue")


def killed_and_restarted(cluster: Cluster) -> Cluster:
    """The same cluster after kill -9 of all its processes."""
    cluster.kill_all()
    cluster.close()
    return Cluster(cluster.data_dir, workers=None, listen=cluster.endpoint)


def test_leases_outlive_a_kill_of_everything(tmp_path: Path) -> None:
    cluster = Cluster(tmp_path / "data")
    with cluster.client() as holder, cluster.client() as other:
        holder.create_queue(QUEUE, visibility_timeout=600)
        holder.enqueue_many(QUEUE, [Message(b"kept"), Message(b"left"), Message(b"waiting")])
        kept, left = holder.receive(QUEUE, 2)
        cluster = killed_and_restarted(cluster)
        (waiting,) = other.receive(QUEUE, 10)  # its first call since then
        assert waiting.payload == b"waiting"
        waiting.ack()
        kept.ack()
        left.extend(0.5)
        ends_at = left.lease_expires_at
        cluster = killed_and_restarted(cluster)
        (again,) = other.receive(QUEUE, 10, wait=PATIENCE_S)
        assert (again.payload, again.attempts, again.error) == (b"left", 1, "lease expired")
        assert again.leased_at >= ends_at
        with pytest.raises(LeaseExpiredError):
            left.ack()
        again.ack()
        assert other.queue_stats(QUEUE).depth == 0
    cluster.close()
