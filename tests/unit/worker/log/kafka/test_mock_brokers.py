"""The adapter on brokers that librdkafka itself plays, in this process."""

import subprocess
import sys
import threading
from collections.abc import Iterator

import msgspec
import pytest
from confluent_kafka import Producer

from fila_worker.log.kafka.partition import KafkaPartition
from fila_worker.log.kafka.settings import KafkaSettings
from fila_worker.log.partition import AppendReport, LogEntry
from tests.support.cluster.cluster import PATIENCE_S
from tests.support.hosts.partition_contract import collect, end_of, read


@pytest.fixture
def settings() -> Iterator[KafkaSettings]:
    """Three brokers, and a topic that they make when it is asked for."""
    brokers = Producer({"test.mock.num.brokers": 3, "bootstrap.servers": "none", "log_level": 0})
    found = brokers.list_topics("log", timeout=10).brokers.values()
    yield KafkaSettings(bootstrap_servers=",".join(f"{each.host}:{each.port}" for each in found), topic="log", partitions=4)
    brokers.close()


def test_records_of_one_partition_are_not_in_another(settings: KafkaSettings) -> None:
    one, other = (KafkaPartition(settings, number, lambda: None) for number in (0, 3))
    for partition, data in ((one, b"one"), (other, b"other")):
        appender = partition.appender()
        appender.append(data)
        assert collect(appender, 1) == [AppendReport(1, 0)]
        appender.close()
    tails = [partition.tail(0) for partition in (one, other)]
    assert [read(tail, 1) for tail in tails] == [[LogEntry(0, b"one")], [LogEntry(0, b"other")]]
    assert [end_of(tail) for tail in tails] == [1, 1]
    for tail in tails:
        tail.close()


@pytest.mark.parametrize("kind", ["lz4", "zstd"])
def test_records_may_be_compressed(settings: KafkaSettings, kind: str) -> None:
    compressed = msgspec.structs.replace(settings, properties={"compression.type": kind})
    partition, record = KafkaPartition(compressed, 0, lambda: None), b'{"order": 17}' * 10_000
    appender = partition.appender()
    appender.append(record)
    assert collect(appender, 1) == [AppendReport(1, 0)]
    assert read(partition.tail(0), 1) == [LogEntry(0, record)]


def test_what_has_no_report_is_limited(settings: KafkaSettings) -> None:
    limited = msgspec.structs.replace(settings, unreported_bytes_max=10_000)
    appender = KafkaPartition(limited, 0, lambda: None).appender()
    for _ in range(3):
        appender.append(b"x" * 6000)
    first, second, third = collect(appender, 3)
    assert first == AppendReport(1, 0)
    assert second.error == "12,000 bytes have no report yet, and the limit is 10,000"
    assert "append 2 failed" in third.error
    tail = KafkaPartition(limited, 0, lambda: None).tail(0)
    assert end_of(tail) == 1
    for each in (appender, tail):
        each.close()


def test_an_appender_that_is_closed_with_records_on_their_way_says_nothing(
    settings: KafkaSettings, capfd: pytest.CaptureFixture[str]
) -> None:
    """For the library that is a fatal error more often than not, so ten times are enough."""
    for _ in range(10):
        appender = KafkaPartition(settings, 0, lambda: None).appender()
        appender.append(b"connected")
        collect(appender, 1)
        for _ in range(50):
            appender.append(b"x" * 100_000)
        appender.close()
    for thread in threading.enumerate():
        if thread.name == "reports of log/0":
            thread.join(PATIENCE_S)
    assert capfd.readouterr().err == ""


DROPPING = """
import gc, sys, time
from fila_worker.log.kafka.partition import KafkaLog
from fila_worker.log.kafka.settings import KafkaSettings

settings = KafkaSettings(bootstrap_servers=sys.argv[1], topic="log", partitions=2)
for round in range(10):
    log = KafkaLog(settings, "", lambda: None)
    tails = [log.partition(number).tail(0) for number in range(2)]
    time.sleep(0.05)  # so that it is connected
    log.look()
    for tail in tails:
        tail.ask()
        tail.close()
    del log, tail, tails
    time.sleep(0.002 * round)
    gc.collect()
"""


def test_a_client_that_is_dropped_with_questions_on_their_way_ends_alone(settings: KafkaSettings) -> None:
    """The library ends the process if its own thread is the last that has the client."""
    done = subprocess.run(
        [sys.executable, "-c", DROPPING, settings.bootstrap_servers],
        capture_output=True,
        text=True,
        timeout=PATIENCE_S,
        check=False,
    )
    assert (done.returncode, done.stderr) == (0, "")


def test_nobody_is_woken_after_a_close() -> None:
    """What is under way ends without a report."""
    nowhere = KafkaSettings(bootstrap_servers="127.0.0.1:1", topic="closed", partitions=1)
    wakes: list[int] = []
    partition = KafkaPartition(nowhere, 0, lambda: wakes.append(1))
    appender, tail = partition.appender(), partition.tail(0)
    (thread,) = (each for each in threading.enumerate() if each.name == "reports of closed/0")
    appender.append(b"a")
    tail.ask()
    appender.close()
    tail.close()
    thread.join(PATIENCE_S)
    assert not thread.is_alive()
    assert wakes == []
