"""The brokers that other tests start: they keep what they acknowledged, and they are gone with their test."""

import os
import signal
import subprocess
import sys
from pathlib import Path

import psutil
import pytest
from confluent_kafka import OFFSET_BEGINNING, Consumer, KafkaError, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic

from tests.support.cluster.cluster import PATIENCE_S, eventually
from tests.support.external.brokers.broker import BrokerError
from tests.support.hosts.kafka import Kafka, kafka_cluster

TOPIC = "log"


def create_topic(kafka: Kafka, copies: int) -> None:
    admin = AdminClient({"bootstrap.servers": kafka.bootstrap})
    admin.create_topics([NewTopic(TOPIC, 1, copies)])[TOPIC].result(PATIENCE_S)


class Appends:
    """A producer, and what it was told of each append."""

    def __init__(self, kafka: Kafka) -> None:
        self._producer = Producer(
            {"bootstrap.servers": kafka.bootstrap, "acks": "all", "enable.idempotence": True, "log_level": 0}
        )
        self.offsets: dict[bytes, int] = {}

    def append(self, *values: bytes) -> None:
        """Append, and wait until all are acknowledged."""
        for value in values:
            self._producer.produce(TOPIC, value, partition=0, on_delivery=self._report)
        assert self._producer.flush(PATIENCE_S) == 0

    def _report(self, error: KafkaError | None, message: object) -> None:
        assert error is None
        self.offsets[message.value()] = message.offset()


def read_all(kafka: Kafka) -> list[bytes]:
    consumer = Consumer({
        "bootstrap.servers": kafka.bootstrap, "group.id": "unused", "enable.auto.commit": False, "enable.partition.eof": True,
        "log_level": 0,
    })  # fmt: skip
    consumer.assign([TopicPartition(TOPIC, 0, OFFSET_BEGINNING)])
    values = []
    try:
        while True:
            message = consumer.poll(PATIENCE_S)
            assert message is not None, f"nothing more after {len(values)}"
            error = message.error()
            if error is None:
                values.append(message.value())
            elif error.code() == KafkaError._PARTITION_EOF:
                return values
            else:
                assert error.retriable() or error.code() in {KafkaError._TRANSPORT, KafkaError._ALL_BROKERS_DOWN}, error
    finally:
        consumer.close()


def test_three_brokers_keep_what_was_acknowledged_when_one_is_killed(tmp_path: Path) -> None:
    before, after = [b"before %d" % n for n in range(100)], [b"after %d" % n for n in range(100)]
    with kafka_cluster(tmp_path, brokers=3) as kafka:
        create_topic(kafka, 3)
        appends = Appends(kafka)
        appends.append(*before)
        (partition,) = (
            AdminClient({"bootstrap.servers": kafka.bootstrap})
            .list_topics(TOPIC, PATIENCE_S)
            .topics[TOPIC]
            .partitions.values()
        )
        kafka.kill(partition.leader)
        appends.append(*after)
        assert read_all(kafka) == before + after
        assert list(appends.offsets.values()) == list(range(200))
        kafka.start(partition.leader)
        assert kafka.brokers[partition.leader].runs


def test_a_broker_goes_on_after_a_stop_and_a_pause(tmp_path: Path) -> None:
    with kafka_cluster(tmp_path, brokers=1) as kafka:
        create_topic(kafka, 1)
        appends = Appends(kafka)
        appends.append(b"first")
        kafka.stop(1)
        assert not kafka.brokers[1].runs
        kafka.start(1)
        appends.append(b"second")
        kafka.pause(1)
        eventually(lambda: psutil.Process(kafka.brokers[1].pid).status() == psutil.STATUS_STOPPED, "it is frozen")
        kafka.resume(1)
        appends.append(b"third")
        assert read_all(kafka) == [b"first", b"second", b"third"]
    assert not kafka.brokers[1].runs


def test_what_keeps_a_broker_from_starting_is_in_the_error(tmp_path: Path) -> None:
    with pytest.raises(BrokerError, match=r"broker 1 ended while it started; the end of .*broker\.log:\n") as failed:
        with kafka_cluster(tmp_path, brokers=1, config={"num.io.threads": "many"}):
            pass
    assert "Invalid value many for configuration num.io.threads" in str(failed.value)


ABANDON = """
import os, signal, sys
from pathlib import Path
from tests.support.hosts.kafka import kafka_cluster

with kafka_cluster(Path(sys.argv[1]), brokers=1) as kafka:
    print(kafka.brokers[1].pid, flush=True)
    os.kill(os.getpid(), signal.SIGKILL)
"""


def test_brokers_end_with_a_test_that_is_killed(tmp_path: Path) -> None:
    command = [sys.executable, "-c", ABANDON, str(tmp_path)]
    path = os.pathsep.join(filter(None, sys.path))
    killed = subprocess.run(
        command, env={**os.environ, "PYTHONPATH": path}, stdout=subprocess.PIPE, text=True, timeout=PATIENCE_S, check=False
    )
    assert killed.returncode == -signal.SIGKILL
    eventually(lambda: not psutil.pid_exists(int(killed.stdout)), "the broker is gone")
