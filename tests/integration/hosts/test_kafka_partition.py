"""The adapter for Kafka does what the port of a replicated log promises, on a real broker."""

from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import count

import pytest

from fila_worker.log.kafka.partition import KafkaPartition
from fila_worker.log.kafka.settings import OVERHEAD_BYTES, KafkaSettings
from fila_worker.log.kafka.topic import prepare_topic
from tests.support.hosts.kafka import Kafka, kafka_cluster
from tests.support.hosts.partition_contract import RECORD_BYTES_MAX, PartitionContract


class KafkaProcess:
    def __init__(self, settings: KafkaSettings) -> None:
        self._wakes = wakes = list[None]()
        self.partition = KafkaPartition(
            settings, 0, lambda: wakes.append(None)
        )  # a thread of the library must not have its client

    @property
    def wakes(self) -> int:
        return len(self._wakes)


@dataclass
class KafkaWays:
    kafka: Kafka
    settings: KafkaSettings
    refused: bool = field(default=False)

    def process(self) -> KafkaProcess:
        return KafkaProcess(self.settings)

    def refuse(self, refused: bool) -> None:
        (self.kafka.pause if refused else self.kafka.resume)(1)
        self.refused = refused


@pytest.fixture(scope="module")
def kafka(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Kafka]:
    with kafka_cluster(tmp_path_factory.mktemp("kafka"), brokers=1) as kafka:
        yield kafka


NUMBERS = count()


class TestKafkaPartition(PartitionContract):
    @pytest.fixture
    def ways(self, kafka: Kafka) -> Iterator[KafkaWays]:
        settings = KafkaSettings(
            bootstrap_servers=kafka.bootstrap,
            topic=f"log-{next(NUMBERS)}",
            partitions=1,
            replicas=1,
            record_bytes_max=RECORD_BYTES_MAX + OVERHEAD_BYTES,
        )
        prepare_topic(settings)
        ways = KafkaWays(kafka, settings)
        yield ways
        if ways.refused:
            ways.refuse(False)
