"""The port of a replicated log on Kafka."""

from collections.abc import Callable
from concurrent.futures import Future
from contextlib import suppress
from threading import Lock, Thread
from time import monotonic, monotonic_ns, sleep
from typing import Final, TypeVar

from fila_proto_zmq.commands import LogReplicas
from fila_worker.log.kafka.appender import KafkaAppender
from fila_worker.log.kafka.clients import admin, kafka, new_admin
from fila_worker.log.kafka.copies import Copies
from fila_worker.log.kafka.questions import Questions
from fila_worker.log.kafka.settings import KafkaSettings
from fila_worker.log.kafka.tail import KafkaTail
from fila_worker.log.kafka.topic import TopicError, TopicWatch, refuse_other_log
from fila_worker.log.placement.control import find_keys

_Answer = TypeVar("_Answer")


class Trimmer:
    """One request at a time, in a thread that ends when there is nothing to do.

    The log is never emptied. Brokers that were all killed have set the offsets of an empty log back (seen with Kafka 4.3):
    they find the end of a leader's epoch only in its records.
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


def steady_ms() -> int:
    """Return the time of a clock that is never set."""
    return monotonic_ns() // 1_000_000


class KafkaPartition:
    """A :class:`fila_worker.log.partition.Partition`: one partition of the cluster's topic.

    ``wake`` is called in any thread after a report or an answer, and not after ``close`` of its appender or tail. Records
    wake no reader: it looks at times.
    """

    def __init__(
        self,
        settings: KafkaSettings,
        number: int,
        wake: Callable[[], None],
        now_ms: Callable[[], int] = steady_ms,
        client: admin.AdminClient | None = None,
        copies: Copies | None = None,
    ) -> None:
        """``client``: for questions; by default a new one. ``copies``: the log's own copies; by default unknown."""
        assert 0 <= number < settings.partitions, f"the topic has no partition {number}"
        self._settings, self._number = settings, number
        self._wake, self._now_ms = wake, now_ms
        self._client = client or new_admin(settings)  # kept: its questions fail with it
        self._trimmer = Trimmer(settings, number, self._client)
        self._copies = copies

    @property
    def replicas(self) -> LogReplicas | None:
        """The last report of Kafka on its replicas; None: too old."""
        return None if self._copies is None else self._copies.of(self._number)

    def appender(self) -> KafkaAppender:
        """Return a new appender."""
        return KafkaAppender(self._settings, self._number, self._wake)

    def tail(self, offset: int) -> KafkaTail:
        """Return a new reader from ``offset`` on."""
        settings, place = self._settings, kafka.TopicPartition(self._settings.topic, self._number)
        questions = Questions(self._client, place, settings.answer_ms_max / 1000, self._now_ms, self._wake)
        return KafkaTail(settings, self._number, offset, questions)

    def trim(self, offset: int) -> None:
        """Remove the records before ``offset``."""
        self._trimmer.trim(offset)


class KafkaLog:
    """The partitions of a cluster's topic, for one process. They share a client for questions: a thread for each broker."""

    def __init__(self, settings: KafkaSettings, log: str, wake: Callable[[], None]) -> None:
        """``log``: the name of the log that the topic must be; ``wake``: see :class:`KafkaPartition`."""
        self._settings, self._log, self._wake, self._client = settings, log, wake, new_admin(settings)
        self._copies = Copies(settings, self._client, steady_ms)
        self._watch = TopicWatch(settings, self._client, steady_ms)

    def partition(self, number: int) -> KafkaPartition:
        """Return one of them."""
        return KafkaPartition(self._settings, number, self._wake, client=self._client, copies=self._copies)

    def look(self) -> None:
        """Ask for replicas and settings if the last question is old. Raise :class:`TopicError` for another topic."""
        self._copies.look()
        self._watch.look()
        refuse_other_log(self._settings.topic, self._log, self._copies.log)

    @property
    def problem(self) -> str:
        """The setting of the topic that may lose confirmed records, for people; empty: all are safe, as far as known."""
        return self._watch.problem


LOOK_S: Final = 0.02


def keys_of_log(settings: KafkaSettings) -> str:
    """Return the fingerprint of the keys of the hosts that use the log; empty if they have not used it yet.

    Waits for the brokers; raises :class:`fila_proto_zmq.errors.StorageError`.
    """
    give_up_at = monotonic() + settings.admin_ms_max / 1000

    def pause() -> None:
        if monotonic() > give_up_at:
            raise TopicError(
                f"the topic {settings.topic} can't be read: partition {settings.control_partition} does not answer; are all "
                "brokers up?"
            )
        sleep(LOOK_S)

    return find_keys(KafkaPartition(settings, settings.control_partition, lambda: None), pause)
