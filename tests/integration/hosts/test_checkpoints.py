"""The log is trimmed behind checkpoints, and a host with an empty disk begins from one and takes over when all others are gone."""

import signal
from pathlib import Path

from confluent_kafka import Consumer, TopicPartition

from fila_cluster import Message
from fila_cluster.run.backup.log_checkpoints import CheckpointStore
from fila_cluster.run.backup.target import Folder
from fila_proto_zmq.names import shard_of
from fila_worker.settings import CheckpointSettings
from tests.support.cluster.cluster import eventually
from tests.support.hosts.hosts import Hosts, Part, hosts_on
from tests.support.hosts.kafka import kafka_cluster

SHARDS = 2
SHARD = shard_of("orders", SHARDS)
SETTINGS = CheckpointSettings(bytes=200_000, every_ms=3_000)


def begin_of(bootstrap: str) -> int:
    """The first offset that the log of the shard has."""
    consumer = Consumer({"bootstrap.servers": bootstrap, "group.id": "none"})
    try:
        begin: int = consumer.get_watermark_offsets(TopicPartition("fila.test", SHARD), timeout=10)[0]
    finally:
        consumer.close()
    return begin


def shards_of(part: Part, event: str) -> set[int]:
    return {found["shard"] for found in part.events(event)}


def enqueue_until(hosts: Hosts, sent: list[int], met: int, bootstrap: str) -> None:
    """Send numbers until the log begins behind an offset."""
    with hosts.client() as client:

        def is_trimmed() -> bool:
            numbers = range(len(sent), len(sent) + 50)
            client.enqueue_many("orders", [Message(str(number).encode() + bytes(500)) for number in numbers])
            sent.extend(numbers)
            return begin_of(bootstrap) > met

        eventually(is_trimmed, f"the log begins behind {met}", 120)


def test_a_host_with_an_empty_disk_takes_over_from_a_checkpoint_of_a_trimmed_log(tmp_path: Path) -> None:
    with (
        kafka_cluster(tmp_path / "kafka", brokers=1) as kafka,
        hosts_on(tmp_path, kafka.bootstrap, hosts=3, started=2, shards=SHARDS, checkpoints=SETTINGS) as hosts,
    ):
        with hosts.client() as client:
            client.create_queue("orders")
        sent: list[int] = []
        enqueue_until(hosts, sent, 0, kafka.bootstrap)
        hosts.keepers["a"].signal(signal.SIGKILL)  # at any moment; its parent starts it again
        hosts.keepers["a"].ended()
        hosts.keepers["a"].start()
        enqueue_until(hosts, sent, begin_of(kafka.bootstrap), kafka.bootstrap)

        hosts.start_host("c")
        eventually(lambda: SHARD in shards_of(hosts.keepers["c"], "checkpoint.brought"), "a checkpoint is brought", 60)
        eventually(lambda: hosts.follows("c"), "it follows", 60)
        assert SHARD in shards_of(hosts.workers["c"], "shard.beginning")
        (folder,) = (tmp_path / "target/checkpoints").iterdir()
        store = CheckpointStore(Folder(tmp_path / "target"), folder.name, SHARD)
        eventually(lambda: len(store.offsets()) == 2, "older ones are removed")
        with hosts.client() as client:
            client.enqueue("orders", b"the last one")
        hosts.kill_host("a")
        hosts.kill_host("b")
        eventually(lambda: {*hosts.leaders().values()} == {"c"}, "it leads", 60)
        with hosts.client() as client:
            got = []
            while deliveries := client.receive("orders", 500, wait=0.5):
                got += [delivery.payload.rstrip(b"\0") for delivery in deliveries]
                client.ack(deliveries)
        assert got == [*(str(number).encode() for number in sent), b"the last one"]
