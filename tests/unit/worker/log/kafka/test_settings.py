"""What a user says of the brokers: checked, and secrets stay secret."""

import subprocess
import sys

import msgspec
import pytest

from fila_proto_zmq.errors import StorageError
from fila_worker.log.kafka.clients import new_producer
from fila_worker.log.kafka.settings import KafkaSettings, partitions_for


def settings(**changes: object) -> KafkaSettings:
    return msgspec.convert({"bootstrap_servers": "127.0.0.1:1", "topic": "t", "partitions": 2} | changes, KafkaSettings)


def test_a_majority_of_three_is_the_default() -> None:
    assert [(made.replicas, made.in_sync) for made in (settings(), settings(replicas=5), settings(replicas=1))] == [
        (3, 2), (5, 3), (1, 1),
    ]  # fmt: skip
    assert settings(in_sync_min=3).in_sync == 3


def test_the_control_partition_is_behind_those_of_the_shards() -> None:
    assert settings(partitions=partitions_for(6)).control_partition == 6


@pytest.mark.parametrize(
    ("changes", "problem"),
    [
        ({"partitions": 0}, "partitions is 0; it must be 1 or more"),
        ({"replicas": 0}, "replicas is 0"),
        ({"in_sync_min": 4}, "in_sync_min is 4; it must be from 1 to the number of replicas, 3"),
        ({"in_sync_min": 0}, "in_sync_min is 0"),
        ({"record_bytes_max": 10}, "record_bytes_max is 10; it must be from 1,024 to"),
        ({"prefetch_bytes_max": 1 << 40}, "prefetch_bytes_max is 1,099,511,627,776"),
        ({"patience_ms": 0}, "patience_ms is 0"),
        ({"properties": {"acks": "1"}}, "the property acks is not for users to set"),
        ({"properties": {"socket.timeout.ms": "1"}}, "the property socket.timeout.ms is not for users"),
        ({"replica": 1}, "unknown field `replica`"),
    ],
)
def test_what_can_not_be_is_refused(changes: dict[str, object], problem: str) -> None:
    with pytest.raises(msgspec.ValidationError, match=problem):
        settings(**changes)


SECRETS = {"security.protocol": "SASL_SSL", "sasl.mechanism": "PLAIN", "sasl.username": "alice", "sasl.password": "hunter2"}


def test_values_of_properties_are_not_shown() -> None:
    shown = repr(settings(properties=SECRETS))
    assert "sasl.password" in shown
    assert "127.0.0.1:1" in shown
    assert not any(secret in shown for secret in ("hunter2", "alice"))
    text = settings(properties=SECRETS).without_secrets("SASL_SSL: alice with hunter2 is not PLAIN")
    assert text == "SASL_SSL: <sasl.username> with <sasl.password> is not PLAIN"


def test_an_error_of_the_library_does_not_show_a_value() -> None:
    """A value at the wrong property, which the library would repeat."""
    with pytest.raises(StorageError, match=r'Invalid value "<security\.protocol>" for configuration property') as refused:
        new_producer(settings(properties={"security.protocol": "hunter2"}), print)
    assert "hunter2" not in str(refused.value)
    assert refused.value.__cause__ is None
    assert refused.value.__suppress_context__


WITHOUT = """
import sys
sys.modules["confluent_kafka"] = None
import fila_worker.log.kafka.settings
try:
    import fila_worker.log.kafka.partition
except ImportError as error:
    print(error)
"""


def test_a_missing_package_says_what_to_install() -> None:
    done = subprocess.run([sys.executable, "-c", WITHOUT], capture_output=True, text=True, timeout=60, check=True)
    assert done.stdout.startswith("a log on Kafka needs confluent-kafka (")
    assert done.stdout.endswith("pip install 'fila-cluster[hosts]'\n")
