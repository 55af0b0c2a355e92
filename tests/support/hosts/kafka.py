"""Kafka brokers for tests: real ones, on free ports of the loopback, gone when the test is.

    with kafka_cluster(tmp_path, brokers=3) as kafka:
        Producer({"bootstrap.servers": kafka.bootstrap, …})
        kafka.kill(2)
        kafka.start(2)

The first use on a machine gets the jars with Maven; see :mod:`tests.support.external.brokers.kit`. Each broker is a controller too, so that a
cluster of three goes on without any one of them. They notice a dead one quickly, and by default a topic has three copies and an
append waits for two. Their folders, with ``broker.log``, stay in the directory that the test gives.
"""

import signal
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

from confluent_kafka.admin import AdminClient

from fila_cluster.run.supervisor.endpoints import Ports
from tests.support.cluster.cluster import PATIENCE_S, eventually
from tests.support.external.brokers.broker import Broker
from tests.support.external.brokers.guard import Guard
from tests.support.external.brokers.kit import Kit, kit
from tests.support.external.brokers.properties import HOST, Place, identity, properties_of, reserve
from tests.support.machine import KAFKA, require

IN_SYNC_S_MAX = 60.0


def stands_still(pid: int) -> bool:
    """Whether all threads of a process are stopped."""
    try:
        stats = [task.read_text() for task in Path(f"/proc/{pid}/task").glob("*/stat")]
    except OSError:  # a thread has just ended
        return False
    return all(stat.rpartition(")")[2].split()[0] == "T" for stat in stats)


class Kafka:
    """A running cluster. Its brokers have the numbers from 1 on."""

    def __init__(self, kit: Kit, brokers: Mapping[int, Broker], places: Mapping[int, Place]) -> None:
        self.brokers, self._kit, self._places = brokers, kit, places

    @property
    def bootstrap(self) -> str:
        """Where clients find it, as ``bootstrap.servers`` wants it: all brokers, also those that are down."""
        return ",".join(str(place.clients) for place in self._places.values())

    def kill(self, broker: int) -> None:
        """Kill a broker as kill -9 does, and wait until it is dead. The others do not know of it yet."""
        self.brokers[broker].end(signal.SIGKILL)

    def stop(self, broker: int) -> None:
        """Let a broker hand over what it leads and end."""
        self.brokers[broker].end(signal.SIGTERM)

    def pause(self, broker: int) -> None:
        """Freeze a broker, and wait until each of its threads stands still: the signal alone lets some answer a last request."""
        frozen = self.brokers[broker]
        frozen.send(signal.SIGSTOP)
        eventually(lambda: stands_still(frozen.pid), "the broker stands still")

    def resume(self, broker: int) -> None:
        """Let a frozen broker go on."""
        self.brokers[broker].send(signal.SIGCONT)

    def start(self, *brokers: int) -> None:
        """Start brokers that are down, and wait until they answer. A majority must run or be among them."""
        for number in brokers:
            self.brokers[number].start(self._kit.command(self.brokers[number]))
        for number in brokers:
            self._places[number].wait_until_up(self.brokers[number])

    def until_in_sync(self) -> None:
        """Wait until each partition has all its copies again. After a start that takes some seconds."""
        admin = AdminClient({"bootstrap.servers": self.bootstrap, "log_level": 0})

        def are_in_sync() -> bool:
            topics = admin.list_topics(timeout=PATIENCE_S).topics.values()
            return all({*each.isrs} == {*each.replicas} for topic in topics for each in topic.partitions.values())

        eventually(are_in_sync, "each partition has all its copies", IN_SYNC_S_MAX)


@contextmanager
def kafka_cluster(directory: Path, brokers: int = 3, config: Mapping[str, object] = {}, host: str = HOST) -> Iterator[Kafka]:
    """A cluster with its data in ``directory``. ``config``: properties of all its brokers, besides ours; ``host``: where they listen."""
    require(KAFKA)
    made = kit()
    numbers = range(1, brokers + 1)
    with Ports() as ports:
        places, cluster_id = reserve(ports, numbers, host), identity()
        with Guard() as guard:
            nodes = {number: Broker(directory / f"broker-{number}", f"broker {number}", guard) for number in numbers}
            for number, node in nodes.items():
                made.furnish(node, cluster_id, properties_of(number, node.data, places, config))
            try:
                kafka = Kafka(made, nodes, places)
                kafka.start(*numbers)
                yield kafka
            finally:
                for node in nodes.values():
                    if node.runs:
                        node.end(signal.SIGKILL)
