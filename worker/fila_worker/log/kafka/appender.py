"""Appends to one partition through a producer of its own.

With one producer for several partitions, one partition's batches would wait for another's answers. The library reports in
``poll``, so a thread calls it and wakes the worker's loop.
"""

from collections import deque
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from threading import Event, Lock, Thread
from time import monotonic
from typing import Final

from fila_worker.log.kafka.clients import Trouble, kafka, new_producer, text_of
from fila_worker.log.kafka.settings import KafkaSettings
from fila_worker.log.partition import AppendReport

PAUSE_S_MAX: Final = 1.0
"""A longer time between two looks is a pause of this process, in which no report could come. It counts as this much time."""


class Outcomes:
    """The reports in the order of the appends. The first append that fails fails all behind it."""

    def __init__(self, patience_s: float, now_s: float) -> None:
        self._lock = Lock()
        self._patience_s = patience_s
        self._looked_s = now_s
        self._awake_s = 0.0
        """A clock that stands still while the process does."""
        self._appended = 0
        self._reported = 0
        self._waiting: deque[tuple[int, int, float]] = deque()
        """The appends that had no outcome when last looked at: number, bytes, and when they began."""
        self._settled: dict[int, AppendReport] = {}
        self._failed: tuple[int, str] | None = None
        """The first append that failed, and why."""
        self.bytes = 0
        """Of all appends without an outcome, as of the last look."""

    def begin(self, size: int) -> tuple[int, bool]:
        """Return the number of the next append, and whether it may be sent."""
        with self._lock:
            self._appended += 1
            if self._failed is None:
                self._waiting.append((self._appended, size, self._awake_s))
                self.bytes += size
            return self._appended, self._failed is None

    def settle(self, number: int, offset: int | None) -> None:
        """Take it that an append is in the log."""
        with self._lock:
            self._settled[number] = AppendReport(number, offset)
            self._drop_settled()

    def fail(self, number: int, reason: str) -> bool:
        """Fail an append, and all behind it. Return whether that is new."""
        with self._lock:
            return self._fail(number, reason)

    def fail_all(self, reason: str) -> bool:
        """Fail all appends without an outcome, and all later ones. Return whether that is new."""
        with self._lock:
            return self._fail(self._waiting[0][0] if self._waiting else self._appended + 1, reason)

    def _fail(self, number: int, reason: str) -> bool:
        if self._failed is not None and number >= self._failed[0]:
            return False
        self._failed = number, reason
        self._drop_settled()
        return True

    def _drop_settled(self) -> None:
        while self._waiting and (
            self._waiting[0][0] in self._settled or (self._failed is not None and self._waiting[0][0] >= self._failed[0])
        ):
            self.bytes -= self._waiting.popleft()[1]

    def look(self, now_s: float) -> bool:
        """Count the time; return whether the oldest append has waited for too long."""
        with self._lock:
            self._awake_s += min(now_s - self._looked_s, PAUSE_S_MAX)
            self._looked_s = now_s
            return bool(self._waiting) and self._awake_s - self._waiting[0][2] > self._patience_s

    def take(self) -> list[AppendReport]:
        """Return the reports that can be given now."""
        reports = []
        with self._lock:
            while (report := self._settled.pop(self._reported + 1, None)) and not self._fails(report.append):
                reports.append(report)
                self._reported += 1
            if self._fails(self._reported + 1):
                assert self._failed is not None
                first, reason = self._failed
                behind = f"append {first} failed ({reason}), and nothing is sent behind it"
                rest = range(self._reported + 1, self._appended + 1)
                reports.extend(AppendReport(number, None, reason if number == first else behind) for number in rest)
                self._reported = self._appended
        return reports

    def _fails(self, number: int) -> bool:
        return self._failed is not None and number >= self._failed[0]


POLL_S: Final = 0.1
"""How long the thread waits for reports before it looks at the clock."""
CONNECT_S: Final = 1.0
"""How long it waits for the first broker."""


class KafkaAppender:
    """A :class:`fila_worker.log.partition.Appender`."""

    def __init__(self, settings: KafkaSettings, number: int, wake: Callable[[], None]) -> None:
        self._settings = settings
        self._topic, self._number = settings.topic, number
        self._wake = wake
        self._waking = Lock()
        self._closed = Event()
        self._sending = Lock()
        """A record is numbered and sent before a failure stops the sending, or not sent at all."""
        self._outcomes = Outcomes(settings.patience_ms / 1000, monotonic())
        self.trouble = Trouble(settings)
        self._producer = new_producer(settings, self._on_error)
        Thread(target=self._work, args=(self._producer,), name=f"reports of {self._topic}/{number}", daemon=True).start()

    def append(self, data: bytes) -> int:
        """Begin to append a record."""
        assert not self._closed.is_set(), "it is closed"
        with self._sending:
            number, open_ = self._outcomes.begin(len(data))
            if open_ and (problem := self._send(number, data)):
                self._outcomes.fail(number, problem)
                open_ = False
        if not open_:
            self._tell()
        return number

    def _send(self, number: int, data: bytes) -> str:
        """Give a record to the library; return why that failed, or an empty text."""
        if problem := self._problem_with(data):
            return problem
        try:
            self._producer.produce(self._topic, data, partition=self._number, on_delivery=partial(self._on_delivery, number))
        except (kafka.KafkaException, BufferError) as error:
            return self._text_of(error)
        return ""

    def _problem_with(self, data: bytes) -> str:
        settings = self._settings
        if len(data) > settings.data_bytes_max:
            return f"a record of {len(data):,} bytes is larger than the log takes: {settings.data_bytes_max:,}"
        if self._outcomes.bytes > settings.unreported_bytes_max:
            return f"{self._outcomes.bytes:,} bytes have no report yet, and the limit is {settings.unreported_bytes_max:,}"
        return ""

    def reports(self) -> list[AppendReport]:
        """Return the outcomes that are known by now."""
        return self._outcomes.take()

    def close(self) -> None:
        """End soon, in the thread."""
        with self._waking:
            self._closed.set()

    # --- in the thread ----------------------------------------------------------------------------------------------------

    def _work(self, producer: kafka.Producer) -> None:
        with suppress(kafka.KafkaException):  # without that question it connects a second later
            producer.list_topics(self._topic, timeout=CONNECT_S)
        try:
            while not self._closed.is_set():
                if producer.poll(POLL_S):
                    self._tell()
                if self._outcomes.look(monotonic()):
                    self._fail_all(self._out_of_patience())
        except Exception as error:  # the worker needs the reason, whatever the library raises
            self._fail_all(self._text_of(error))
        # A record that is purged on its way to a broker is a fatal error of a gapless producer.
        for last in (producer.purge, partial(producer.poll, 0), producer.close):
            with suppress(kafka.KafkaException):
                last()

    def _fail_all(self, reason: str) -> None:
        if self._outcomes.fail_all(reason):
            self._stop()

    def _stop(self) -> None:
        """Keep what has no outcome from being sent, as far as that is possible."""
        with self._sending:
            self._producer.purge(blocking=False)
        self._tell()

    def _out_of_patience(self) -> str:
        seconds = self._settings.patience_ms / 1000
        return f"the brokers have not reported it for {seconds:g} s, so its outcome is unknown{self.trouble.as_reason}"

    def _on_delivery(self, number: int, error: kafka.KafkaError | None, message: kafka.Message) -> None:
        if error is None:
            offset = message.offset()
            self._outcomes.settle(number, offset if offset is not None and offset >= 0 else None)
        elif self._outcomes.fail(number, self._text_of(error)):  # its offset means nothing
            self._stop()

    def _on_error(self, error: kafka.KafkaError) -> None:
        self.trouble.take(error)
        if error.fatal():
            self._fail_all(self._text_of(error))

    def _text_of(self, error: kafka.KafkaError | BaseException) -> str:
        return self._settings.without_secrets(text_of(error))

    def _tell(self) -> None:
        with self._waking:
            if not self._closed.is_set():
                self._wake()
