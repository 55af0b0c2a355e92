"""Enqueues in order, several of them under way.

A :class:`OrderedSender` sends the chunks of one producer for one queue. Each names the request before it
(``Enqueue.after``), and the shard refuses it unless that one is stored. So when a chunk is refused, because a worker is
down or has too much to do, all chunks behind it are refused, too. The sender then waits until every chunk under way has
its answer, and sends the refused ones again, in their order: *go back N*, as in a sliding window protocol. The usual
retries of the connection are off for chunks: they would let the later ones overtake.

A chunk that fails for good, or whose fate is not known, is surfaced, and the sender continues behind it.

A chunk may be stored only in part, because the broker had no more time for it (a slow hook). Then what follows is refused,
too, and the sender sends the rest of the chunk first. :attr:`Chunk.value` has the results of all parts.

The time of a chunk is what passes without progress: each answer that the broker has stored one begins the time of all
others anew. So chunks do not use up each other's time while the broker works on them, and a broker that does nothing is
waited for once.

**Rejected:** one chunk under way at a time (half of the throughput, less over a network); retries without the shard's help
(a chunk that was stored behind a refused one cannot be taken back).
"""

import math
from collections import deque
from collections.abc import Callable
from copy import copy
from dataclasses import dataclass, field
from operator import attrgetter
from random import Random
from typing import Any

from msgspec.structs import replace

from fila_cluster.client.protocol.timers import SessionTimer, Timers
from fila_cluster.client.requests.call import Pending, PendingCall, StartCall
from fila_cluster.client.requests.open_calls import backoff_s
from fila_proto_zmq.commands import Enqueue, Enqueued
from fila_proto_zmq.errors import FilaError, OverloadedError, RequestTimeoutError, ShardUnavailableError

CHUNKS_UNDER_WAY = 4
"""As many keep client, router and worker busy at the same time."""
_BEGIN = 0


class Chunk(Pending[Enqueued]):
    """One Enqueue of a sender. ``then`` gets the chunk when it is done, before a waiter is woken.

    ``command`` is the part that is still to be sent, and ``value`` the answer to its stored part, also if the rest failed.
    ``ready_at`` is when the sender took it, ``sent_at`` when it was sent first; None: it was not. ``doubtful`` means that
    an attempt may have been carried out.
    """

    __slots__ = ("call", "command", "doubtful", "number", "part", "ready_at", "sent_at", "then")

    def __init__(
        self, command: Enqueue, then: "Callable[[Any], object] | None" = None, part: tuple[int, int] | None = None
    ) -> None:
        super().__init__()
        self.command = command
        self.then = then
        self.part = part
        """The partition that takes all of it, of how many; None: not known."""
        self.call: PendingCall | None = None
        self.ready_at = 0.0
        self.sent_at: float | None = None
        self.doubtful = False
        self.number = 0

    def finish(self, value: Enqueued | None = None, error: FilaError | None = None) -> None:
        """Complete it: ``then`` comes first."""
        if self.done:
            return
        self.value, self.error = value or self.value, error
        if self.then is not None:
            self.then(self)
        super().finish(self.value, self.error)

    def take(self, answer: Enqueued) -> bool:
        """Take in the answer to the sent part. Return whether it is about all of it; the rest is to be sent again."""
        cut = next((index for index, fault in answer.faults if fault.details.get("late") is True), 0)
        if cut:
            answer = replace(answer, faults=[each for each in answer.faults if each[0] < cut])
            self.command = self.command.only(cut, len(self.command.envelopes))
        self.value = answer if self.value is None else _joined(self.value, answer)
        return not cut


@dataclass(slots=True)
class Surroundings:
    """The parts of a session that senders and producers use. ``senders`` are those that have chunks."""

    start: StartCall
    timers: Timers
    random: Random
    timeout_s: float
    now: Callable[[], float]
    senders: "dict[OrderedSender, None]" = field(default_factory=dict)


class OrderedSender:
    """The chunks of one producer for one queue: ``_waiting`` to be sent, then ``_under_way``, both in order.

    ``_refused`` are those that the sender sends again when nothing is under way any more; while ``_broken``, nothing else
    is sent. ``_trouble`` is the last error that may pass, until a chunk is stored: meanwhile the time of waiting chunks
    runs from when the sender took them, so that an outage does not take a timeout for each.
    """

    def __init__(self, queue: str, around: Surroundings) -> None:
        self.queue = queue
        self._around = around
        self._waiting: deque[Chunk] = deque()
        self._under_way: deque[Chunk] = deque()
        self._refused: list[Chunk] = []
        self._broken = False
        self._cause: FilaError | None = None
        """The first error since the sender was whole that is not only about the order."""
        self._trouble: FilaError | None = None
        self._progress_at = -math.inf
        """When a chunk was stored last."""
        self._last = _BEGIN
        self._attempts = 0
        self._numbers = 0
        self._pause: SessionTimer | None = None
        self._sending = False
        self._recalled: FilaError | None = None
        """The error of chunks that are refused until nothing is under way any more: see :meth:`recall`."""

    @property
    def idle(self) -> bool:
        """Whether it has no chunks."""
        return not (self._waiting or self._under_way or self._refused)

    def send(self, chunk: Chunk) -> Chunk:
        """Send a chunk behind all earlier ones."""
        self._numbers += 1
        chunk.number = self._numbers
        chunk.ready_at = self._around.now()
        self._waiting.append(chunk)
        self._around.senders[self] = None
        self._go_on()
        return chunk

    def fail_all(self, error: FilaError) -> None:
        """Fail the chunks that are not under way."""
        chunks = sorted([*self._refused, *self._waiting], key=_number)
        self._refused.clear()
        self._waiting.clear()
        for chunk in chunks:
            chunk.finish(error=copy(error))

    def recall(self, error: FilaError) -> None:
        """Fail the chunks that are not stored: those that wait, and those under way if they are refused. None overtakes one
        before it, then, that is to go another way.
        """
        self._recalled = error if self._under_way else None
        self.fail_all(error)

    def _go_on(self) -> None:
        """Send the chunks that may be sent. It may be called from within: a call may be answered while it is started."""
        if self._sending:
            return
        self._sending = True
        try:
            while not self._broken and self._pause is None and self._waiting and len(self._under_way) < CHUNKS_UNDER_WAY:
                self._send(self._waiting.popleft())
        finally:
            self._sending = False
        if self.idle:
            self._around.senders.pop(self, None)

    def _send(self, chunk: Chunk) -> None:
        now = self._around.now()
        if self._trouble is not None and self._ends_at(chunk) <= now:
            chunk.finish(error=error_for(chunk, self._trouble))
            return
        if chunk.sent_at is None:
            chunk.sent_at = chunk.ready_at if self._trouble else now
        chunk.command.after = self._last
        self._under_way.append(chunk)
        left_s = round(self._ends_at(chunk) - now, 3)
        call = self._around.start(
            self.queue, chunk.command, lambda call: self._answered(chunk, call), timeout=left_s, persistent=False
        )
        chunk.call = call
        self._last = call.request

    def _answered(self, chunk: Chunk, call: PendingCall) -> None:
        self._under_way.remove(chunk)  # the first one, as a rule
        recalled = self._recalled
        if not self._under_way:
            self._recalled = None  # now: the end of this chunk may begin others
        error = call.error
        if error is None:
            self._attempts = 0
            self._trouble = None
            self._note_progress()
            if chunk.take(call.value):
                chunk.finish(chunk.value)
            else:
                self._broken = True
                self._refused.append(chunk)
        else:
            self._broken = True
            self._failed(chunk, call, error)
        if self._broken and not self._under_way:
            self._mend(recalled)
        self._go_on()

    def _note_progress(self) -> None:
        """Begin the time of all other chunks anew."""
        self._progress_at = self._around.now()
        for chunk in self._under_way:
            if chunk.call is not None:
                chunk.call.deadline = max(chunk.call.deadline, self._ends_at(chunk))

    def _failed(self, chunk: Chunk, call: PendingCall, error: FilaError) -> None:
        chunk.doubtful |= call.may_be_done if isinstance(error, RequestTimeoutError) else call.doubtful
        if _may_repeat(call, error) and self._around.now() < self._ends_at(chunk):
            self._refused.append(chunk)
        else:
            chunk.finish(error=error_for(chunk, error))
        if error.retryable and "after" not in error.details:  # it is not only behind another one
            self._trouble = error
            self._cause = self._cause or error

    def _mend(self, recalled: FilaError | None) -> None:
        """Begin another sequence with the refused chunks, after a pause unless they were refused for their order alone.

        Those that are ``recalled`` fail instead.
        """
        if recalled is not None:
            refused, self._refused = self._refused, []
            for chunk in sorted(refused, key=_number):
                chunk.finish(error=copy(recalled))
        self._refused.sort(key=_number)
        self._waiting.extendleft(reversed(self._refused))
        self._refused.clear()
        self._last = _BEGIN
        self._broken = False
        cause, self._cause = self._cause, None
        if cause is None or not self._waiting:
            return
        now = self._around.now()
        resume_at = now + backoff_s(cause, self._attempts, self._around.random)
        self._attempts += 1
        while self._waiting and self._ends_at(self._waiting[0]) <= resume_at:
            chunk = self._waiting.popleft()
            chunk.finish(error=error_for(chunk, cause))
        if self._waiting:
            self._pause = self._around.timers.at(resume_at, self._resume)

    def _resume(self) -> None:
        self._pause = None
        self._go_on()

    def _ends_at(self, chunk: Chunk) -> float:
        """Return when a chunk fails at the latest if no other one is stored before; of an unsent one, in trouble only."""
        since = chunk.ready_at if chunk.sent_at is None else chunk.sent_at
        return max(since, self._progress_at) + self._around.timeout_s


def _joined(first: Enqueued, second: Enqueued) -> Enqueued:
    """Join the answers to two parts of a chunk. The ids of the two parts are not one run: each id of the second part is
    named, as a known one is."""
    count = answered_in(first)
    elsewhere = {index for index, *_ in (*first.faults, *first.known)}
    stored = [index for index in range(count) if index not in elsewhere]
    known = [(index, first.id_high, first.id_low + place) for place, index in enumerate(stored)]
    return Enqueued(
        second.id_high,
        second.id_low,
        second.count,
        first.faults + [(count + index, fault) for index, fault in second.faults],
        first.known + known + [(count + index, *identity) for index, *identity in second.known],  # type: ignore[misc]
    )


_number = attrgetter("number")


def answered_in(answer: Enqueued) -> int:
    """Return how many messages an answer is about."""
    return answer.count + len(answer.faults) + len(answer.known)


def _may_repeat(call: PendingCall, error: FilaError) -> bool:
    """Return whether the chunk is not stored, or may be stored again without harm."""
    if not isinstance(error, (ShardUnavailableError, OverloadedError)):
        return False
    return not call.doubtful or (isinstance(error, ShardUnavailableError) and call.repeatable)


def error_for(chunk: Chunk, error: FilaError) -> FilaError:
    """Return the error for a chunk: ``details["refused"]`` is there only if no attempt may have been carried out."""
    error = copy(error)
    if error.retryable:
        error.details.pop("refused", None)
        if not chunk.doubtful:
            error.details["refused"] = True
    return error
