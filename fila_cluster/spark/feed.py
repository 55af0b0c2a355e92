"""Frames into the broker: several in flight, and patience with a broker that is busy, full or restarting.

Each row has a dedup id, so whatever was not answered is simply sent again: nothing is stored twice. A frame whose rows were
refused for now (limits, a shard that is down) waits as long as the broker says, and then only those rows go again; what cannot
ever be accepted ends the task with an error that names the row. Patience ends when no row at all was accepted for a while:
then nobody is making room, and the job should say so rather than hang.
"""

import time
from collections import deque
from collections.abc import Callable, Iterable
from random import Random
from typing import Final

from fila_cluster.client import Client
from fila_cluster.client.call import Call
from fila_cluster.client.producing import FRAMES_IN_FLIGHT
from fila_cluster.spark.frames import Frame, in_row
from fila_proto_zmq.codec import from_fault
from fila_proto_zmq.commands import Enqueued
from fila_proto_zmq.errors import FilaError

PAUSE_S_MIN: Final = 0.05
PAUSE_S_MAX: Final = 2.0


class Feed:
    """Sends the frames of one task. ``retry_for_s``: how long to go on while no row is accepted.

    ``accepted`` counts the rows that the broker has, those that it had before included.
    """

    def __init__(
        self,
        client: Client,
        retry_for_s: float,
        *,
        now: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], object] = time.sleep,
        random: Random | None = None,
    ) -> None:
        self.accepted = 0
        self._client = client
        self._retry_for_s = retry_for_s
        self._now = now
        self._sleep = sleep
        self._random = random or Random()
        self._in_flight: deque[tuple[Frame, Call]] = deque()
        self._refusals = 0
        """In a row, without a row that was accepted."""
        self._refused_since = 0.0

    def send_all(self, frames: Iterable[Frame]) -> None:
        """Send frames; when it returns their rows are durable. Raises the error of the first that cannot be."""
        for frame in frames:
            if len(self._in_flight) == FRAMES_IN_FLIGHT:
                self._settle_oldest()
            self._in_flight.append((frame, self._client._start(frame.queue, frame.command)))
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
            call = self._client._start(frame.queue, frame.command)

    def _judge(self, frame: Frame, call: Call) -> tuple[Frame, FilaError | None]:
        """What of a frame has to be sent again, and why; no error if nothing has to."""
        try:
            enqueued: Enqueued = self._client._outcome(call)
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
