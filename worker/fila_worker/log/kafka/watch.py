"""Whether the topic still has the settings that a log needs: someone may change them while hosts run."""

from collections.abc import Callable
from concurrent.futures import Future
from threading import Lock
from typing import Any, Final

from fila_worker.log.kafka.library import admin
from fila_worker.log.kafka.settings import KafkaSettings
from fila_worker.log.kafka.topic import unsafe_settings

LOOK_MS: Final = 60_000
"""Between two questions."""


class _Found:
    """What was wrong when the brokers last answered. Answers come in a thread of the client, which it must not have."""

    def __init__(self, settings: KafkaSettings) -> None:
        self._settings = settings
        self._lock = Lock()
        self._problem = ""

    def take(self, future: "Future[dict[str, Any]]") -> None:
        """Take an answer. Without one what was found before stays."""
        if future.exception() is None:
            problem = unsafe_settings(self._settings, future.result())
            with self._lock:
                self._problem = problem

    @property
    def problem(self) -> str:
        """What is wrong, for people; empty: nothing."""
        with self._lock:
            return self._problem


class TopicWatch:
    """Asks at times. The first time is a span after the start, which checks the topic itself."""

    def __init__(self, settings: KafkaSettings, client: admin.AdminClient, now_ms: Callable[[], int]) -> None:
        """``now_ms``: a steady clock."""
        self._client, self._now_ms = client, now_ms
        self._answer_s_max = settings.answer_ms_max / 1000
        self._resource = admin.ConfigResource(admin.ConfigResource.Type.TOPIC, settings.topic)
        self._asked_ms = now_ms()
        self._found = _Found(settings)

    def look(self) -> None:
        """Ask, if the last question is old."""
        now_ms = self._now_ms()
        if now_ms >= self._asked_ms + LOOK_MS:
            self._asked_ms = now_ms
            (future,) = self._client.describe_configs([self._resource], request_timeout=self._answer_s_max).values()
            future.add_done_callback(self._found.take)

    @property
    def problem(self) -> str:
        """What is wrong, for people; empty: nothing, as far as is known."""
        return self._found.problem
