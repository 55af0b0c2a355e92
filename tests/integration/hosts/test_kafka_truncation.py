"""A log that has lost its end is noticed by who had read it."""

import struct
from pathlib import Path

import pytest

from fila_worker.log.kafka.partition import KafkaPartition
from fila_worker.log.kafka.settings import KafkaSettings
from fila_worker.log.kafka.topic import prepare_topic
from fila_worker.log.partition import LogEntry
from fila_worker.log.rule import LostError
from tests.support.hosts.kafka import kafka_cluster
from tests.support.hosts.partition_contract import append_each, read

BATCH = struct.Struct(">qi")
QUICK = {"broker.session.timeout.ms": 500, "broker.heartbeat.interval.ms": 100}
"""A broker that was killed may come back when it is known to be gone."""


def cut(segment: Path, offset: int) -> None:
    """Remove the batches from ``offset`` on, as a broker that had not written them to its disk before a power cut."""
    data, at = segment.read_bytes(), 0
    while (found := BATCH.unpack_from(data, at))[0] < offset:
        at += BATCH.size + found[1]
    segment.write_bytes(data[:at])


@pytest.mark.parametrize("added", [0, 20])
def test_a_log_that_has_gone_back_is_noticed(tmp_path: Path, added: int) -> None:
    with kafka_cluster(tmp_path, brokers=1, config=QUICK) as kafka:
        settings = KafkaSettings(bootstrap_servers=kafka.bootstrap, topic="log", partitions=1, replicas=1)
        prepare_topic(settings)
        partition = KafkaPartition(settings, 0, lambda: None)
        append_each(partition, b"record %d", 10)
        ahead, behind = partition.tail(0), partition.tail(0)
        read(ahead, 10)
        read(behind, 5)
        kafka.kill(1)
        cut(kafka.brokers[1].data / "log-0" / "00000000000000000000.log", 7)
        kafka.start(1)
        append_each(partition, b"other %d", added)
        with pytest.raises(LostError, match="read up to offset 10, but it has gone back"):
            read(ahead, 1)
        assert read(partition.tail(6), 1 + added)[-1] == LogEntry(
            6 + added, b"other %d" % (added - 1) if added else b"record 6"
        )
