"""Where brokers listen, and what they are told."""

import base64
import time
import uuid
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from confluent_kafka import KafkaException
from confluent_kafka.admin import AdminClient

from fila_cluster.run.config.settings import Address
from fila_cluster.run.supervisor.endpoints import Ports
from tests.support.external.brokers.broker import Broker, BrokerError

START_S_MAX = 120.0
HOST = "127.0.0.1"

SMALL = {
    "background.threads": 2,
    "group.initial.rebalance.delay.ms": 0,
    "log.cleaner.dedupe.buffer.size": 2 * 1024 * 1024,
    "num.io.threads": 2,
    "num.network.threads": 2,
    "num.recovery.threads.per.data.dir": 1,
    "offsets.topic.num.partitions": 1,
    "share.coordinator.state.topic.num.partitions": 1,
    "transaction.state.log.num.partitions": 1,
}
"""The defaults are for a machine of their own."""

QUICK = {
    "broker.heartbeat.interval.ms": 500,
    "broker.session.timeout.ms": 3000,
    "controller.quorum.fetch.timeout.ms": 1500,
    "replica.lag.time.max.ms": 5000,
}
"""A killed broker is noticed in 3 to 7 s; with the defaults in up to 11."""


def identity() -> str:
    """A new id as Kafka writes it. It never begins with a dash, which its tools would take for a flag."""
    return base64.urlsafe_b64encode(b"\0" + uuid.uuid4().bytes[1:]).decode().rstrip("=")


@dataclass(frozen=True, slots=True)
class Place:
    """Where a broker listens for clients and brokers, and for controllers."""

    node: int
    clients: Address
    controllers: Address

    def wait_until_up(self, broker: Broker) -> None:
        """Wait until it answers by itself, and is counted among the brokers."""
        admin = AdminClient({
            "bootstrap.servers": str(self.clients), "log_level": 0,
            "reconnect.backoff.ms": 20, "reconnect.backoff.max.ms": 100, "socket.connection.setup.timeout.ms": 1000,
        })  # fmt: skip
        give_up_at = time.monotonic() + START_S_MAX
        while broker.runs and time.monotonic() < give_up_at:
            try:
                if self.node in admin.list_topics(timeout=0.5).brokers:
                    return
            except KafkaException:  # it does not listen yet
                pass
            time.sleep(0.02)
        problem = f"did not answer for {START_S_MAX:.0f} s" if broker.runs else "ended while it started"
        raise BrokerError(f"{broker.name} {problem}; {broker.tail()}")


def reserve(ports: Ports, nodes: Sequence[int], host: str = HOST) -> dict[int, Place]:
    """Free places for some brokers. They stay reserved as long as ``ports``, also while a broker is down."""
    free = Address(host, 0)
    return {node: Place(node, ports.reserve(free, "listeners"), ports.reserve(free, "listeners")) for node in nodes}


def properties_of(node: int, data: Path, places: Mapping[int, Place], config: Mapping[str, object]) -> dict[str, object]:
    """The configuration of a broker that is a controller too."""
    copies = min(3, len(places))
    in_sync = max(1, copies - 1)
    place = places[node]
    return {
        "process.roles": "broker,controller",
        "node.id": node,
        "controller.quorum.voters": ",".join(f"{each.node}@{each.controllers}" for each in places.values()),
        "controller.listener.names": "CONTROLLER",
        "inter.broker.listener.name": "PLAINTEXT",
        "listener.security.protocol.map": "PLAINTEXT:PLAINTEXT,CONTROLLER:PLAINTEXT",
        "listeners": f"PLAINTEXT://{place.clients},CONTROLLER://{place.controllers}",
        "advertised.listeners": f"PLAINTEXT://{place.clients}",
        "log.dirs": data,
        "auto.create.topics.enable": "false",
        "default.replication.factor": copies,
        "min.insync.replicas": in_sync,
        "offsets.topic.replication.factor": copies,
        "share.coordinator.state.topic.min.isr": in_sync,
        "share.coordinator.state.topic.replication.factor": copies,
        "transaction.state.log.min.isr": in_sync,
        "transaction.state.log.replication.factor": copies,
        **SMALL,
        **QUICK,
        **config,
    }
