"""Kafka's own copies of a topic: how many brokers have all of each partition, and how many should."""

from collections.abc import Callable
from concurrent.futures import Future
from threading import Lock
from typing import Final

from fila_proto_zmq.commands import LogReplicas
from fila_worker.log.kafka.library import admin, kafka
from fila_worker.log.kafka.settings import KafkaSettings

LOOK_MS: Final = 5_000
"""Between two questions. Each is one small request of the process, whatever the number of partitions."""
KNOWN_MS_MAX: Final = 30_000
"""The answer to an older question is not shown."""


class Copies:
    """Asks at times. The answers come in a thread of the client.

    Without a majority of the brokers no broker counts anew: those that are left say what was true before.
    """

    def __init__(self, settings: KafkaSettings, client: admin.AdminClient, now_ms: Callable[[], int]) -> None:
        """``now_ms``: a steady clock."""
        self._settings, self._client, self._now_ms = settings, client, now_ms
        self._topics = kafka.TopicCollection([settings.topic])
        self._lock = Lock()
        self._is_asking = False
        self._asked_ms: int | None = None
        self._known: dict[int, LogReplicas] = {}
        self._known_ms = 0

    def look(self) -> None:
        """Ask, if the last question is old and has its answer."""
        now_ms = self._now_ms()
        if self._asked_ms is not None and now_ms < self._asked_ms + LOOK_MS:
            return
        with self._lock:
            if self._is_asking:
                return
            self._is_asking, self._asked_ms = True, now_ms
        (future,) = self._client.describe_topics(self._topics, request_timeout=self._settings.answer_ms_max / 1000).values()
        future.add_done_callback(lambda done: self._take(done, now_ms))

    def of(self, partition: int) -> LogReplicas | None:
        """Return how many brokers have a partition; None: not known lately."""
        with self._lock:
            is_known = self._now_ms() - self._known_ms < KNOWN_MS_MAX
            return self._known.get(partition) if is_known else None

    def _take(self, future: "Future[admin.TopicDescription]", asked_ms: int) -> None:
        with self._lock:
            self._is_asking = False
            if future.exception() is None:
                in_sync_min, found = self._settings.in_sync, future.result().partitions
                self._known = {each.id: LogReplicas(len(each.isr), len(each.replicas), in_sync_min) for each in found}
                self._known_ms = asked_ms
