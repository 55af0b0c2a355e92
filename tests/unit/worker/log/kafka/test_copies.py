"""What Kafka says of its own copies is asked for at times, and forgotten when it is old."""

from concurrent.futures import Future
from types import SimpleNamespace
from typing import Any

import pytest
from confluent_kafka import KafkaException, TopicCollection, Uuid

from fila_proto_zmq.commands import LogReplicas
from fila_worker.log.kafka.copies import KNOWN_MS_MAX, LOOK_MS, Copies
from fila_worker.log.kafka.settings import KafkaSettings
from fila_worker.log.kafka.topic import TopicError, refuse_other_log

SETTINGS = KafkaSettings(bootstrap_servers="kafka:9092", topic="log", partitions=2, answer_ms_max=500)
NOW_MS = 1_000_000


class Asker:
    """Copies whose client stands in for the library's."""

    def __init__(self) -> None:
        self.questions: list[Future[Any]] = []
        self.now_ms = NOW_MS
        self.topic_id = Uuid(1, -1)
        self.copies = Copies(SETTINGS, self, lambda: self.now_ms)

    def describe_topics(self, topics: TopicCollection, request_timeout: float) -> dict[str, Future[Any]]:
        assert (topics.topic_names, request_timeout) == (["log"], 0.5)
        self.questions.append(Future())
        return {"log": self.questions[-1]}

    def answer(self, *in_sync: int) -> None:
        found = [
            SimpleNamespace(id=number, isr=[*range(brokers)], replicas=[1, 2, 3]) for number, brokers in enumerate(in_sync)
        ]
        self.questions[-1].set_result(SimpleNamespace(partitions=found, topic_id=self.topic_id))

    def look_after(self, pause_ms: int) -> int:
        """Look after a pause; return how many questions were asked."""
        before = len(self.questions)
        self.now_ms += pause_ms
        self.copies.look()
        return len(self.questions) - before


def test_each_partition_has_its_brokers() -> None:
    asker = Asker()
    assert asker.copies.of(0) is None
    asker.copies.look()
    asker.answer(3, 2)
    assert [asker.copies.of(partition) for partition in range(3)] == [LogReplicas(3, 3, 2), LogReplicas(2, 3, 2), None]


def test_one_question_at_a_time_and_not_too_often() -> None:
    asker = Asker()
    assert (asker.look_after(0), asker.look_after(LOOK_MS)) == (1, 0)
    asker.answer(3, 3)
    assert asker.look_after(0) == 1
    asker.answer(3, 3)
    assert (asker.look_after(LOOK_MS - 1), asker.look_after(1)) == (0, 1)


def test_a_topic_that_is_made_anew_has_another_name_here() -> None:
    asker = Asker()
    assert asker.copies.log == ""
    for topic_id, name in (
        (Uuid(1, -1), f"log-{1:016x}{'f' * 16}"),
        (Uuid(0, 0), f"log-{1:016x}{'f' * 16}"),
        (Uuid(2, 0), f"log-{2:016x}{0:016x}"),
    ):
        asker.topic_id = topic_id
        asker.look_after(LOOK_MS)
        asker.answer(3, 3)
        assert asker.copies.log == name


def test_only_names_that_are_known_may_differ() -> None:
    for wanted, found in (("log-1", "log-1"), ("", "log-1"), ("log-1", "")):
        refuse_other_log("log", wanted, found)
    with pytest.raises(
        TopicError,
        match=r"log is the log log-2, and this host's copies are of log-1: .* start each with an empty data directory",
    ):
        refuse_other_log("log", "log-1", "log-2")


def test_without_an_answer_the_last_one_holds_for_some_time() -> None:
    asker = Asker()
    asker.copies.look()
    asker.answer(3, 2)
    asker.look_after(LOOK_MS)
    asker.questions[-1].set_exception(KafkaException())
    asker.now_ms = NOW_MS + KNOWN_MS_MAX - 1
    assert asker.copies.of(1) == LogReplicas(2, 3, 2)
    asker.now_ms += 1
    assert asker.copies.of(1) is None
    assert asker.look_after(0) == 1, "it asks again"
