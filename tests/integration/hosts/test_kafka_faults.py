"""A log on three brokers while one of them is killed or frozen, or all are stopped; and what ends an appender."""

import subprocess
import sys
import time
from collections.abc import Iterator
from itertools import count

import pytest
from confluent_kafka.admin import AdminClient, AlterConfigOpType, ConfigEntry, ConfigResource, ResourceType

from fila_proto_zmq.commands import LogReplicas
from fila_worker.log.kafka.clients import new_admin
from fila_worker.log.kafka.copies import LOOK_MS, Copies
from fila_worker.log.kafka.partition import KafkaPartition
from fila_worker.log.kafka.settings import KafkaSettings
from fila_worker.log.kafka.topic import prepare_topic
from fila_worker.log.partition import Appender, AppendReport, Tail
from fila_worker.log.records import LogRecord, RecordKind, decode, encode
from fila_worker.log.rule import FencedError, Position, Writer
from tests.support.cluster.cluster import PATIENCE_S, eventually
from tests.support.hosts.kafka import Kafka, kafka_cluster
from tests.support.hosts.partition_contract import collect, end_of, read

NUMBERS = count()
NO_LEADER = -1
ANSWER_S_MAX = 7.0
"""A client of Kafka forgets after 15 s by itself who led."""
STALL_S = 2.5
"""A dead or frozen leader is missed for longer than this."""


@pytest.fixture(scope="module")
def three(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Kafka]:
    with kafka_cluster(tmp_path_factory.mktemp("three"), brokers=3) as kafka:
        yield kafka


@pytest.fixture(scope="module")
def one(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Kafka]:
    with kafka_cluster(tmp_path_factory.mktemp("one"), brokers=1) as kafka:
        yield kafka


def new_log(kafka: Kafka, replicas: int, **changes: object) -> KafkaSettings:
    """The settings of a new topic. A frozen broker costs a second."""
    given = {"replicas": replicas, "request_ms_max": 1000, "answer_ms_max": 500} | changes
    settings = KafkaSettings(bootstrap_servers=kafka.bootstrap, topic=f"log-{next(NUMBERS)}", partitions=1, **given)
    prepare_topic(settings)
    return settings


def open_partition(settings: KafkaSettings) -> KafkaPartition:
    return KafkaPartition(settings, 0, lambda: None)


def leader_of(settings: KafkaSettings, asker: AdminClient | None = None) -> int:
    admin = asker or AdminClient({"bootstrap.servers": settings.bootstrap_servers, "log_level": 0})
    return admin.list_topics(settings.topic, PATIENCE_S).topics[settings.topic].partitions[0].leader


class Stream:
    """Appends one record after another, and reads them beside it."""

    def __init__(self, settings: KafkaSettings) -> None:
        partition = open_partition(settings)
        self.appender, self.tail = partition.appender(), partition.tail(0)
        self.sent: list[bytes] = []
        self.reports: list[AppendReport] = []
        self.seen: list[bytes] = []

    def go_on(self, count: int) -> None:
        """Append, at most 50 at a time, until so many more are reported. No append and no look may wait."""
        wanted = len(self.reports) + count
        give_up_at = time.monotonic() + PATIENCE_S
        while len(self.reports) < wanted:
            began = time.monotonic()
            assert began < give_up_at, f"{len(self.reports)} reports: {self.appender.trouble.text}"
            if len(self.sent) < min(wanted, len(self.reports) + 50):
                self.sent.append(b"record %d" % len(self.sent))
                self.appender.append(self.sent[-1])
            self.reports += self.appender.reports()
            self.seen += [entry.data for entry in self.tail.read(100)]
            assert time.monotonic() - began < STALL_S, "a call has waited"
            time.sleep(0.0005)

    def catch_up(self) -> None:
        """Read all that was appended. The reader's own threads fetch it, so it may come later than the reports."""
        self.seen += [entry.data for entry in read(self.tail, len(self.sent) - len(self.seen))]

    def check(self) -> None:
        """All is in the log, once, where it was reported."""
        self.catch_up()
        assert self.seen == self.sent
        assert self.reports == [AppendReport(number + 1, number) for number in range(len(self.sent))]
        assert end_of(self.tail) == len(self.sent)
        self.appender.close()
        self.tail.close()


def test_appends_and_reads_go_on_when_the_leader_is_killed(three: Kafka) -> None:
    settings = new_log(three, 3)
    stream = Stream(settings)
    stream.go_on(100)
    killed = leader_of(settings)
    three.kill(killed)
    stream.go_on(200)
    three.start(killed)
    stream.go_on(100)
    stream.check()


def test_appends_and_reads_go_on_when_the_leader_is_frozen(three: Kafka) -> None:
    settings = new_log(three, 3)
    stream = Stream(settings)
    stream.go_on(100)
    frozen = leader_of(settings)
    three.pause(frozen)
    try:
        stream.go_on(200)
    finally:
        three.resume(frozen)
    stream.go_on(100)
    stream.check()


def test_the_log_says_how_many_brokers_are_in_sync(three: Kafka) -> None:
    settings, clock = new_log(three, 3), count(step=LOOK_MS)
    copies = Copies(settings, new_admin(settings), lambda: next(clock))

    def are_in_sync(brokers: int) -> bool:
        copies.look()
        return copies.of(0) == LogReplicas(brokers, 3, 2)

    eventually(lambda: are_in_sync(3), "all brokers have the new partition")
    three.kill(2)
    eventually(lambda: are_in_sync(2), "one is missed")
    three.start(2)
    eventually(lambda: are_in_sync(3), "it is back, and has all")


def test_questions_are_answered_by_the_next_leader(three: Kafka) -> None:
    settings = new_log(three, 3)
    tail = open_partition(settings).tail(0)
    assert end_of(tail) == 0
    killed = leader_of(settings)
    three.kill(killed)
    tail.ask()
    asker = new_admin(settings)
    eventually(lambda: leader_of(settings, asker) not in {killed, NO_LEADER}, "another broker leads")

    def is_answered() -> bool:
        if tail.asked_ms is None:
            tail.ask()
        return tail.asked_ms is not None

    eventually(is_answered, "a question has reached it", ANSWER_S_MAX)
    tail.close()
    three.start(killed)


def test_appends_wait_until_stopped_brokers_are_back(three: Kafka) -> None:
    stream = Stream(new_log(three, 3))
    stream.go_on(100)
    stream.catch_up()
    for broker in (1, 2, 3):
        three.kill(broker)
    stream.sent.append(b"while they were away")
    stream.appender.append(stream.sent[-1])
    stream.tail.ask()
    assert stream.tail.read(10) == []
    three.start(1, 2, 3)
    stream.go_on(100)
    stream.check()


MARKER = encode(LogRecord(RecordKind.MARKER, 0, 0))


def begin_epoch(appender: Appender, tail: Tail) -> Writer:
    appender.append(MARKER)
    (report,) = collect(appender, 1)
    assert report.offset is not None
    assert read(tail, report.offset + 1)[-1].data == MARKER
    return Writer(Position(report.offset, report.offset), 1000)


def test_a_zombie_finds_the_marker_of_its_successor(one: Kafka) -> None:
    settings = new_log(one, 1)
    old, new = open_partition(settings), open_partition(settings)
    zombie, successor = old.appender(), new.appender()
    writer = begin_epoch(zombie, old.tail(0))
    begin_epoch(successor, new.tail(0))
    number = zombie.append(writer.beat())
    (report,) = collect(zombie, 1)
    assert (number, report) == (2, AppendReport(2, 2))
    writer.report(1, report.offset)
    assert writer.read_from == 1
    (entry,) = read(old.tail(writer.read_from), 1)
    with pytest.raises(FencedError):
        writer.read(entry.offset, decode(entry.data, entry.offset))


def test_patience_ends_an_appender_and_nothing_is_sent_behind(one: Kafka) -> None:
    settings = new_log(one, 1, patience_ms=3000)
    partition = open_partition(settings)
    appender = partition.appender()
    appender.append(b"first")
    (sent,) = collect(appender, 1)
    assert not sent.error
    one.pause(1)
    try:
        for number in range(500):
            appender.append(b"%d" % number)
        first, *others = collect(appender, 500)
    finally:
        one.resume(1)
    assert "for 3 s, so its outcome is unknown" in first.error
    assert {report.error.partition(" (")[0] for report in others} == {"append 2 failed"}
    appender.append(b"behind")
    assert collect(appender, 1)[0].error
    other = partition.appender()
    other.append(b"last")
    collect(other, 1)
    tail = partition.tail(0)
    entries = [entry.data for entry in read(tail, end_of(tail))]
    assert entries[:1] + entries[-1:] == [b"first", b"last"]
    middle = entries[1:-1]
    assert middle == [b"%d" % number for number in range(len(middle))], "what is there has no gap"
    assert len(middle) < 500


def test_a_record_that_the_broker_refuses_is_not_followed_by_others(one: Kafka) -> None:
    settings = new_log(one, 1)
    admin = AdminClient({"bootstrap.servers": one.bootstrap, "log_level": 0})
    smaller = ConfigEntry("max.message.bytes", "10000", incremental_operation=AlterConfigOpType.SET)
    resource = ConfigResource(ResourceType.TOPIC, settings.topic, incremental_configs=[smaller])
    admin.incremental_alter_configs([resource])[resource].result(PATIENCE_S)
    partition = open_partition(settings)
    appender = partition.appender()
    appender.append(b"first")
    collect(appender, 1)
    for number in range(300):
        appender.append(b"x" * 50_000 if number == 150 else b"%d" % number)
    reports = collect(appender, 300)
    failed = [report for report in reports if report.error]
    tail = partition.tail(0)
    entries = [entry.data for entry in read(tail, end_of(tail))]
    assert entries == [b"first", *(b"%d" % number for number in range(len(entries) - 1))]
    assert len(entries) == 1 + 300 - len(failed)
    assert "large" in failed[0].error


ENDS = """
import os, sys
from fila_worker.log.kafka.partition import KafkaPartition
from fila_worker.log.kafka.settings import KafkaSettings
partition = KafkaPartition(KafkaSettings(bootstrap_servers=sys.argv[1], topic=sys.argv[2], partitions=1), 0, lambda: None)
appender, tail = partition.appender(), partition.tail(0)
for _ in range(100):
    appender.append(bytes(10_000))
tail.ask()
partition.trim(1)
tail.read(10)
if "close" in sys.argv:
    appender.close()
    tail.close()
if "hard" in sys.argv:
    os._exit(3)
sys.exit(3)
"""


@pytest.mark.parametrize("how", [["hard"], ["close", "hard"], [], ["close"]])
def test_a_process_ends_although_no_broker_answers(one: Kafka, how: list[str]) -> None:
    settings = new_log(one, 1)
    one.pause(1)
    try:
        command = [sys.executable, "-c", ENDS, settings.bootstrap_servers, settings.topic, *how]
        assert subprocess.run(command, timeout=10, check=False).returncode == 3
    finally:
        one.resume(1)
