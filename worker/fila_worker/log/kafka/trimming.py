"""Lets a partition forget its oldest records."""

from concurrent.futures import Future
from contextlib import suppress
from threading import Lock, Thread
from typing import TypeVar

from fila_worker.log.kafka.library import admin, kafka
from fila_worker.log.kafka.settings import KafkaSettings

_Answer = TypeVar("_Answer")


class Trimmer:
    """One request at a time, in a thread that lives as long as there is something to do.

    The log is never emptied. With nothing left in it, brokers that were all killed have set the offsets back (seen with Kafka 4.3): they
    know the end of a leader's epoch only from its records.
    """

    def __init__(self, settings: KafkaSettings, number: int, client: admin.AdminClient) -> None:
        self._settings, self._number = settings, number
        self._client = client
        self._lock = Lock()
        self._wanted = 0
        self._working = False

    def trim(self, offset: int) -> None:
        """Forget the records before ``offset``, soon. What fails is tried again with the next call."""
        with self._lock:
            self._wanted = max(self._wanted, offset)
            if self._working:
                return
            self._working = True
        name = f"trimming of {self._settings.topic}/{self._number}"
        Thread(target=self._work, name=name, daemon=True).start()

    def _work(self) -> None:
        trimmed = -1
        while True:
            with self._lock:
                wanted = self._wanted
                if wanted <= trimmed:
                    self._working = False
                    return
            with suppress(Exception):  # no broker answers: the log stays longer than it would have to
                self._trim(wanted)
            trimmed = wanted

    def _trim(self, wanted: int) -> None:
        place = kafka.TopicPartition(self._settings.topic, self._number)
        latest = admin.OffsetSpec.latest()  # type: ignore[no-untyped-call]
        end = self._wait(self._client.list_offsets({place: latest}, **self._patience)).offset
        last = min(wanted, end - 1)  # the end may be unknown, which is a negative number
        if last > 0:
            target = kafka.TopicPartition(self._settings.topic, self._number, last)
            self._wait(self._client.delete_records([target], **self._patience))

    @property
    def _patience(self) -> dict[str, float]:
        return {"request_timeout": self._settings.admin_ms_max / 1000}

    def _wait(self, futures: "dict[kafka.TopicPartition, Future[_Answer]]") -> _Answer:
        (future,) = futures.values()
        return future.result(self._settings.admin_ms_max / 1000)
