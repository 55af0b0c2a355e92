"""Kafka's own copies of a topic: how many brokers have each partition, how many should, and whether the topic is the same."""

from collections.abc import Callable
from concurrent.futures import Future
from functools import partial
from threading import Lock
from typing import Any, Final

from fila_proto_zmq.commands import LogReplicas
from fila_worker.log.kafka.clients import admin, kafka
from fila_worker.log.kafka.settings import KafkaSettings

LOOK_MS: Final = 5_000
"""Between two questions. Each is one small request of the process, whatever the number of partitions."""
KNOWN_MS_MAX: Final = 30_000
"""The answer to an older question is not shown."""


def log_name(topic: str, found: Any) -> str:
    """Return the name of the log that a topic is: one that is made again is another log. Empty: the broker gives no ids."""
    high, low = found.topic_id.get_most_significant_bits(), found.topic_id.get_least_significant_bits()
    return f"{topic}-{high % 2**64:016x}{low % 2**64:016x}" if high or low else ""


class _Known:
    """The last answers. They come in a thread of the client, so this holds no client: see
    :class:`~.questions.PartitionAnswers`."""

    def __init__(self, topic: str, in_sync_min: int) -> None:
        self._topic, self._in_sync_min = topic, in_sync_min
        self.log = ""
        """The name of the log that the topic was when it was last asked; empty: unknown."""
        self._lock = Lock()
        self._is_asking = False
        self._copies: dict[int, LogReplicas] = {}
        self._asked_ms = 0

    def begin(self) -> bool:
        """Begin a question. Return False if the last one has no answer yet."""
        with self._lock:
            if self._is_asking:
                return False
            self._is_asking = True
        return True

    def take(self, asked_ms: int, future: "Future[admin.TopicDescription]") -> None:
        """Take the answer to the question."""
        with self._lock:
            self._is_asking = False
            if future.exception() is None:
                found = future.result()
                self._copies = {
                    each.id: LogReplicas(len(each.isr), len(each.replicas), self._in_sync_min) for each in found.partitions
                }
                self.log = log_name(self._topic, found) or self.log
                self._asked_ms = asked_ms

    def of(self, partition: int, since_ms: int) -> LogReplicas | None:
        """Return how many brokers have a partition; None: not asked later than ``since_ms``."""
        with self._lock:
            return self._copies.get(partition) if self._asked_ms > since_ms else None


class Copies:
    """Asks at times. Without a majority of the brokers, the others report what was true before."""

    def __init__(self, settings: KafkaSettings, client: admin.AdminClient, now_ms: Callable[[], int]) -> None:
        """``now_ms``: a steady clock."""
        self._client, self._now_ms = client, now_ms
        self._answer_s_max = settings.answer_ms_max / 1000
        self._topics = kafka.TopicCollection([settings.topic])
        self._asked_ms: int | None = None
        self._known = _Known(settings.topic, settings.in_sync)

    def look(self) -> None:
        """Ask, if the last question is old and has its answer."""
        now_ms = self._now_ms()
        if self._asked_ms is not None and now_ms < self._asked_ms + LOOK_MS:
            return
        if not self._known.begin():
            return
        self._asked_ms = now_ms
        (future,) = self._client.describe_topics(self._topics, request_timeout=self._answer_s_max).values()
        future.add_done_callback(partial(self._known.take, now_ms))

    @property
    def log(self) -> str:
        """The name of the log that the topic was when it was last asked; empty: unknown."""
        return self._known.log

    def of(self, partition: int) -> LogReplicas | None:
        """Return how many brokers have a partition; None: unknown, or the answer is too old."""
        return self._known.of(partition, self._now_ms() - KNOWN_MS_MAX)
