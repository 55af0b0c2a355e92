"""A host dies, stops or hangs, and another one serves its shards with all that was confirmed."""

import signal
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from threading import Event, Thread

from fila_cluster import Client
from fila_cluster.errors import FilaError
from fila_proto_zmq.names import shard_of
from tests.support.cluster.cluster import eventually
from tests.support.hosts.hosts import Hosts, hosts_on
from tests.support.hosts.kafka import kafka_cluster


class Producer:
    """Sends numbers to a queue all the time, each again until it is confirmed. What is confirmed must arrive, once."""

    def __init__(self, hosts: Hosts, queue: str) -> None:
        self.queue, self.confirmed = queue, 0
        self._hosts, self._stop = hosts, Event()
        self._thread = Thread(target=self._work, daemon=True)
        self._thread.start()

    def _work(self) -> None:
        with self._hosts.client(timeout=2) as client:
            while not self._stop.is_set():
                try:
                    client.enqueue(self.queue, str(self.confirmed).encode(), dedup_id=str(self.confirmed))
                except FilaError:
                    continue  # unknown, or refused: the same number again
                self.confirmed += 1

    def goes_on(self) -> None:
        """Wait until some more are confirmed."""
        target = self.confirmed + 20
        eventually(lambda: self.confirmed >= target, f"{target} confirmed")

    def end(self) -> int:
        self._stop.set()
        self._thread.join()
        return self.confirmed


@contextmanager
def two_hosts(tmp_path: Path) -> Iterator[tuple[Hosts, Producer, Client]]:
    """Two hosts on one broker, and a producer; in the end all that was confirmed must be there, in its order."""
    with (
        kafka_cluster(tmp_path / "kafka", brokers=1) as kafka,
        hosts_on(tmp_path, kafka.bootstrap) as hosts,
        hosts.client() as client,
    ):
        client.create_queue("orders")
        producer = Producer(hosts, "orders")
        try:
            producer.goes_on()
            yield hosts, producer, client
            producer.goes_on()
        finally:
            confirmed = producer.end()
        got: list[int] = []
        while deliveries := client.receive("orders", 500, wait=0.5):
            got += [int(delivery.payload) for delivery in deliveries]
            client.ack(deliveries)
        assert got[:confirmed] == list(range(confirmed))
        assert got[confirmed:] in ([], [confirmed]), "the last one may be stored without an answer"


def leader_of(hosts: Hosts) -> str:
    return hosts.leaders()[shard_of("orders", hosts.shards)]


def test_a_killed_host_is_replaced_and_follows_when_it_is_back(tmp_path: Path) -> None:
    with two_hosts(tmp_path) as (hosts, producer, _):
        first = leader_of(hosts)
        hosts.workers[first].kill()
        producer.goes_on()
        assert leader_of(hosts) != first
        hosts.workers[first].start()
        eventually(lambda: hosts.follows(first), "it follows")
        hosts.workers[leader_of(hosts)].kill()
        producer.goes_on()
        assert leader_of(hosts) == first


def test_a_host_that_stops_hands_over(tmp_path: Path) -> None:
    with two_hosts(tmp_path) as (hosts, producer, _):
        first = leader_of(hosts)
        assert hosts.workers[first].stop() == 0
        producer.goes_on()
        assert leader_of(hosts) != first
        assert hosts.workers[first].events("shard.followed"), "it has handed over before it ended"


def test_a_host_that_hangs_is_replaced_and_confirms_nothing_any_more(tmp_path: Path) -> None:
    with two_hosts(tmp_path) as (hosts, producer, _):
        first = leader_of(hosts)
        hosts.workers[first].signal(signal.SIGSTOP)
        eventually(lambda: hosts.leaders().get(shard_of("orders", hosts.shards), first) != first, "another one leads")
        producer.goes_on()
        worker = hosts.workers[first]
        before = len(worker.events("process.deposed", "shard.followed"))
        worker.signal(signal.SIGCONT)
        eventually(lambda: len(worker.events("process.deposed", "shard.followed")) > before, "it leads no more")
        producer.goes_on()
        assert leader_of(hosts) != first
        eventually(lambda: hosts.follows(first), "it follows")
