"""Frames into the broker: several in flight, and retries while the broker is busy, full or away."""

import time
from collections import deque
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from math import ceil
from random import Random
from typing import Any, Final, Self

from fila_cluster.client import Request
from fila_cluster.client.calls.request import AsksAhead
from fila_cluster.client.forwarding import CommandsAhead
from fila_cluster.client.protocol.ordering import CHUNKS_UNDER_WAY
from fila_cluster.client.requests.call import Pending
from fila_cluster.spark import options as reading
from fila_cluster.spark.columns import NAMEABLE
from fila_cluster.spark.frames import Frame, Framing, RowIds, Values, WriteJob, in_row
from fila_cluster.spark.options import BrokerAccess
from fila_proto_zmq.codec import from_fault
from fila_proto_zmq.commands import Enqueued
from fila_proto_zmq.errors import FilaError

PAUSE_S_MIN: Final = 0.05
PAUSE_S_MAX: Final = 2.0


class Feed:
    """Sends the frames of one task. ``retry_for_s``: while no row is accepted. ``accepted``: rows that the broker has."""

    def __init__(
        self,
        commands: AsksAhead,
        retry_for_s: float,
        *,
        now: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], object] = time.sleep,
        random: Random | None = None,
    ) -> None:
        self.accepted = 0
        self._commands = commands
        self._retry_for_s = retry_for_s
        self._now = now
        self._sleep = sleep
        self._random = random or Random()
        self._in_flight: deque[tuple[Frame, Pending[Any]]] = deque()
        self._refusals = 0
        """Refusals in a row without an accepted row."""
        self._refused_since = 0.0

    def send_all(self, frames: Iterable[Frame]) -> None:
        """Send frames; when it returns their rows are durable. Raises the error of the first frame that can't be sent."""
        for frame in frames:
            if len(self._in_flight) == CHUNKS_UNDER_WAY:
                self._settle_oldest()
            self._in_flight.append((frame, self._commands.start(Request(frame.queue, frame.command))))
        while self._in_flight:
            self._settle_oldest()

    def _settle_oldest(self) -> None:
        frame, call = self._in_flight.popleft()
        while True:
            refused, error = self._judge(frame, call)
            if error is None:
                return
            frame = refused
            self._pause(error)
            call = self._commands.start(Request(frame.queue, frame.command))

    def _judge(self, frame: Frame, call: Pending[Any]) -> tuple[Frame, FilaError | None]:
        """Return the part of a frame to send again, and the error; no error if all of it is in."""
        try:
            enqueued: Enqueued = self._commands.outcome(call)
        except FilaError as error:
            if error.retryable:
                return frame, error
            raise (in_row(frame.rows[0], error) if len(frame.rows) == 1 else error) from None
        faults = [(index, from_fault(each)) for index, each in enqueued.faults]
        for index, fault in faults:
            if not fault.retryable:
                raise in_row(frame.rows[index], fault)
        self._accept(len(frame.rows) - len(faults))
        if not faults:
            return frame, None
        return frame.only([index for index, _ in faults]), max((fault for _, fault in faults), key=_wait_s)

    def _accept(self, count: int) -> None:
        if count:
            self.accepted += count
            self._refusals = 0

    def _pause(self, error: FilaError) -> None:
        now = self._now()
        if not self._refusals:
            self._refused_since = now
        left_s = self._refused_since + self._retry_for_s - now
        if left_s <= 0:
            raise _gave_up(error, self._retry_for_s)
        backoff_s = min(PAUSE_S_MAX, PAUSE_S_MIN * 2.0**self._refusals) * self._random.uniform(0.5, 1.0)
        self._refusals += 1
        self._sleep(min(left_s, max(backoff_s, _wait_s(error))))


def _wait_s(error: FilaError) -> float:
    return error.retry_after or 0.0


def _gave_up(error: FilaError, retry_for_s: float) -> FilaError:
    text = f"no row was accepted for {retry_for_s:g} s (option retry_for), so this task gave up: {error.message}"
    return type(error)(text, retry_after=error.retry_after, details=error.details)


OPTIONS: Final = (*reading.EVERYWHERE, "dedup_window", "retry_for", "job", *NAMEABLE)
"""The options of a write."""

FRAME_TIMEOUT_S: Final = 30.0
"""How long one answer may take: many tasks at once fill the broker's inbox with seconds of work."""


@dataclass(frozen=True, slots=True)
class PartitionIntake:
    """One write: its queue, its job, and its limits. ``dedup_window_ms`` 0: the broker's window."""

    connection: BrokerAccess
    queue: str | None
    job: WriteJob
    dedup_window_ms: int
    retry_for_s: float

    @classmethod
    def of(cls, options: Mapping[str, str]) -> Self:
        """Read it from options; raises :class:`InvalidArgumentError`."""
        reading.refuse_unknown(options, OPTIONS)
        return cls(
            BrokerAccess.of(options),
            reading.one_queue_of(options),
            WriteJob.new(reading.text_of(options, "job")),
            ceil(reading.seconds_of(options, "dedup_window", 0.0) * 1000),
            reading.seconds_of(options, "retry_for", reading.RETRY_FOR_S),
        )

    def store(self, batches: Iterable[Values]) -> int:
        """Enqueue the rows of the calling task, and return how many there were."""
        framing = Framing(self.queue, RowIds(self.job.scope()), self.dedup_window_ms)
        with self.connection.client(timeout_s=max(FRAME_TIMEOUT_S, self.connection.timeout_s)) as client:
            feed = Feed(CommandsAhead(client), self.retry_for_s)
            feed.send_all(frame for values in batches for frame in framing.frames(values))
        return feed.accepted
