"""Producers that do not wait for each message: collected per queue, sent in batches, confirmed later.

A :class:`Pipeline` is one producer. It collects messages into a batch for each queue. A batch is cut when it has enough
messages or bytes, when its first message has lingered for long enough, or when a caller waits. A
:class:`~partitions.sending.QueueSender` for each queue sends the cut batches, in order.

Two bounds hold a producer back: its own number of unconfirmed messages, and the bytes of all unconfirmed messages of all
producers of the client, which are a part of the client's bound. So other calls find room.

:meth:`Pipeline.put` may be called in any thread, and is called most often. It shares a lock of its own with the rest of
this module, which belongs to the session: with the session's lock it would wait for the socket.

Confirmed batches go to :attr:`Pipelines.completed`. The shell resolves their futures outside of its lock, because that
runs code of the user.
"""

import threading
from collections import deque
from copy import copy
from functools import partial
from typing import Final, Protocol

from fila_cluster.client.protocol.encoding import Row, seal_rows
from fila_cluster.client.protocol.ordering import Chunk, Surroundings
from fila_cluster.client.protocol.partitions.plans import Plans
from fila_cluster.client.protocol.partitions.sending import QueueSender
from fila_cluster.client.protocol.producing import results_of
from fila_cluster.client.protocol.timers import SessionTimer
from fila_cluster.client.requests.call import Pending
from fila_proto_zmq.commands import Enqueue, Enqueued
from fila_proto_zmq.errors import FilaError, RequestTimeoutError
from fila_proto_zmq.ids import format_id
from fila_proto_zmq.limits import FRAME_BYTES_MAX

PIPELINED_BYTES_MAX = 64 * 1024 * 1024
"""Unconfirmed messages of all producers of a client, and one message beyond: a quarter of the client's bound, because a batch
under way is there twice, as messages and as a frame."""
MESSAGE_OVERHEAD_BYTES = 512
"""The size of an unconfirmed message beside its envelope: its future, and its row."""


COLLECTED: Final = 0
"""The answer of :meth:`Pipeline.put`: the message is in, and there is nothing to do."""
TO_TEND: Final = 1
"""It is in, and :meth:`Pipeline.tend` is to be called."""
FULL: Final = 2
"""It is not in: wait for room."""


class Confirmed(Protocol):
    """The future of a message, which a caller gets."""

    def joins(self, receipt: "Receipt", place: int) -> None:
        """Note the receipt of the message's batch, and its place there. Called if :attr:`Pipelines.gives_receipts`."""

    def conclude(self, result: str | FilaError) -> None:
        """Take in the id or the error."""

    def disown(self, error: FilaError) -> None:
        """Fail, in the child of a fork: the message is the parent's."""


class Receipt:
    """The broker's answer to a batch of which every message was stored: the futures take their ids from here when they are
    asked.

    ``accepted`` is None until then. It stays None if a message failed: then each future gets a result of its own.
    ``asked`` are the futures, with their places, that get a result of their own in every case, because a thread or a task
    may wait for it.
    """

    __slots__ = ("accepted", "asked")

    def __init__(self) -> None:
        self.accepted: Enqueued | None = None
        self.asked: list[tuple[int, Confirmed]] = []

    def id_of(self, place: int) -> str:
        """Return the id of an accepted message."""
        assert self.accepted is not None
        return format_id(self.accepted.id_high, self.accepted.id_low + place)


class ProducerBatch(Chunk):
    """Messages of one producer for one queue, in order. ``cut``: no more are added."""

    __slots__ = ("cut", "entries", "pipe", "queue", "receipt", "resolved", "size_bytes", "timer")

    def __init__(self, pipe: "Pipeline", queue: str) -> None:
        super().__init__(_NOTHING, pipe.confirmed)
        self.pipe = pipe
        self.queue = queue
        self.entries: list[tuple[Row, Confirmed]] = []
        self.receipt = Receipt() if pipe.pipelines.gives_receipts else None
        self.size_bytes = 0
        self.timer: SessionTimer | None = None
        self.cut = False
        self.resolved = 0
        """The number of futures that have their result, of those that get one."""

    def resolve(self) -> None:
        """Resolve the messages' futures. Runs code of the user, which may ask for the same, and may be interrupted."""
        receipt = self.receipt
        if receipt is not None and self.error is None and self.value.count == len(self.entries) and not self.value.faults:
            self._accept(receipt)
        else:
            self._conclude_each()
        self.entries.clear()  # here the futures end that the user has dropped
        if receipt is not None:
            receipt.asked.clear()

    def _accept(self, receipt: Receipt) -> None:
        receipt.accepted = self.value
        while self.resolved < len(receipt.asked):
            number = self.resolved
            place, future = receipt.asked[number]
            future.conclude(receipt.id_of(place))
            self.resolved = max(self.resolved, number + 1)

    def _conclude_each(self) -> None:
        asked = len(self.entries)
        results = results_of(self, asked)
        while self.resolved < len(self.entries):
            place = self.resolved
            result = results[place]
            self.entries[place][1].conclude(result if isinstance(result, str) else copy(result))
            self.resolved = max(self.resolved, place + 1)


_NOTHING = Enqueue([])


class Flush(Pending[None]):
    """A caller that waits for the messages of a producer so far. ``timer`` ends it early."""

    __slots__ = ("batches", "timer")

    def __init__(self, batches: dict[ProducerBatch, None]) -> None:
        super().__init__()
        self.batches = batches
        self.timer: SessionTimer | None = None


class Pipelines:
    """All producers of a client. ``size_bytes`` is the size of their unconfirmed messages."""

    def __init__(self, around: Surroundings, plans: Plans, bytes_max: int = PIPELINED_BYTES_MAX) -> None:
        self.around = around
        self.plans = plans
        self.bytes_max = bytes_max
        self.size_bytes = 0
        self.completed: deque[ProducerBatch] = deque()
        """Batches whose futures are to be resolved."""
        self.lock = threading.RLock()
        """Held for moments, by :meth:`Pipeline.put` and the methods that change the same. Taken after the session's lock,
        never before. It says who has it, for signal handlers; no one takes it twice."""
        self.closed = False
        self.gives_receipts = False
        """Whether futures take their ids from the receipt of their batch. Set before there is a producer."""
        self._busy: dict[Pipeline, None] = {}
        self._waiting: dict[Pending[None], Pipeline] = {}
        """Callers that wait for room, and for the room of which producer."""
        self._news: list[Pending[None]] = []

    @property
    def busy(self) -> "list[Pipeline]":
        """The producers with unconfirmed messages."""
        return list(self._busy)

    def want_news(self) -> Pending[None] | None:
        """Return a pending that is done when a batch is completed; None if none will be."""
        if not (self.completed or self._busy):
            return None
        pending: Pending[None] = Pending()
        if self.completed:
            pending.finish()
        else:
            self._news.append(pending)
        return pending

    def want_room(self, pipe: "Pipeline") -> Pending[None]:
        """Return a pending that is done when a message may be put into a pipe."""
        pending: Pending[None] = Pending()
        if pipe.has_room:
            pending.finish()
        else:
            self._waiting[pending] = pipe
        return pending

    def unwant(self, pending: Pending[None]) -> None:
        """Stop waiting for room."""
        self._waiting.pop(pending, None)

    def began(self, pipe: "Pipeline") -> None:
        """Note a producer with unconfirmed messages."""
        self._busy[pipe] = None

    def completes(self, batch: ProducerBatch) -> None:
        """Take in a batch with its result."""
        with self.lock:
            self.size_bytes -= batch.size_bytes
            self.completed.append(batch)
            if batch.pipe.idle:
                self._busy.pop(batch.pipe, None)
                if not self._busy:
                    self.size_bytes = 0  # an interrupt may have come between a message and its size
        for pending, pipe in list(self._waiting.items()):
            if pipe.has_room:
                del self._waiting[pending]
                pending.finish()
        news, self._news = self._news, []
        for pending in news:
            pending.finish()

    def resolve(self) -> None:
        """Resolve the futures of all completed batches, outside of the session's lock."""
        while self.completed:
            batch = self.completed[0]
            batch.resolve()
            if self.completed and self.completed[0] is batch:  # else a callback has resolved it
                self.completed.popleft()

    def fail_all(self, error: FilaError) -> None:
        """End all messages that are not under way, and take in no more."""
        with self.lock:
            self.closed = True
        for pipe in list(self._busy):
            pipe.fail_all(error)
        waiting, self._waiting = self._waiting, {}
        for pending in waiting:
            pending.finish()  # the next attempt raises the error

    def unresolved(self) -> list[Confirmed]:
        """Return the futures of all messages that are not resolved."""
        batches = [batch for pipe in self._busy for batch in pipe.batches]
        return [future for batch in (*self.completed, *batches) for _, future in batch.entries]


class Pipeline:
    """The unconfirmed messages of one producer.

    ``batches`` has all that are not confirmed, in the order of their first messages: those that are being collected, by
    queue, those in ``_full``, which have enough messages, and those that a sender has. ``outstanding`` is the number of
    their messages. :meth:`put` counts, and each confirmed batch counts again, so that an interrupt can't leave a wrong
    number.
    """

    def __init__(self, pipelines: Pipelines, linger_s: float, batch: int, max_outstanding: int) -> None:
        self.batches: dict[ProducerBatch, None] = {}
        self.outstanding = 0
        self.pipelines = pipelines
        self._linger_s = linger_s
        self._batch = batch
        self._max_outstanding = max_outstanding
        self._collecting: dict[str, ProducerBatch] = {}
        self._full: deque[ProducerBatch] = deque()
        self._senders: dict[str, QueueSender] = {}
        self._flushes: dict[Flush, None] = {}

    @property
    def has_room(self) -> bool:
        """Whether a message may be put into it."""
        return self.outstanding < self._max_outstanding and self.pipelines.size_bytes < self.pipelines.bytes_max

    @property
    def idle(self) -> bool:
        """Whether all of its messages are confirmed."""
        return not self.batches

    def put(self, queue: str, row: Row, future: Confirmed) -> int:
        """Take in a message, if there is room: :data:`COLLECTED`, :data:`TO_TEND` or :data:`FULL`."""
        pipelines = self.pipelines
        size_bytes = len(row[0]) + MESSAGE_OVERHEAD_BYTES
        with pipelines.lock:
            if self.outstanding >= self._max_outstanding or pipelines.size_bytes >= pipelines.bytes_max or pipelines.closed:
                return FULL
            batch = self._collecting.get(queue)
            if batch is None or batch.cut or batch.size_bytes + size_bytes > FRAME_BYTES_MAX:
                batch = self._begin(queue, batch)
            entries, receipt = batch.entries, batch.receipt
            entries.append((row, future))
            if receipt is not None:
                future.joins(receipt, len(entries) - 1)
            batch.size_bytes += size_bytes
            pipelines.size_bytes += size_bytes
            self.outstanding += 1
            if len(entries) < self._batch:
                return COLLECTED if batch.timer else TO_TEND
            self._full.append(batch)
            del self._collecting[queue]
            return TO_TEND

    def tend(self, now: float) -> None:
        """Send full batches, and see to it that the others do not linger for too long."""
        while self._full:
            self._cut(self._full[0])
        for batch in list(self._collecting.values()):
            if batch.cut:
                self._cut(batch)
            elif batch.timer is None:
                batch.timer = self.pipelines.around.timers.at(now + self._linger_s, partial(self._cut, batch))

    def want_room(self, now: float) -> Pending[None]:
        """Send everything, and return a pending that is done when there is room."""
        self._cut_all()
        return self.pipelines.want_room(self)

    def flush(self, now: float, timeout_s: float | None) -> Flush:
        """Send everything, and return a pending that is done when all of it is confirmed, or failed."""
        self._cut_all()
        flush = Flush(dict(self.batches))
        if not flush.batches:
            flush.finish()
            return flush
        self._flushes[flush] = None
        if timeout_s is not None:
            flush.timer = self.pipelines.around.timers.at(now + timeout_s, lambda: self._too_late(flush, timeout_s))
        return flush

    def unflush(self, flush: Flush) -> None:
        """Stop waiting."""
        self._flushes.pop(flush, None)
        if flush.timer is not None:
            self.pipelines.around.timers.cancel(flush.timer)

    def confirmed(self, batch: ProducerBatch) -> None:
        """Take in a batch with its result."""
        with self.pipelines.lock:
            self.batches.pop(batch, None)
            self.outstanding = sum(len(each.entries) for each in self.batches)
        sender = self._senders.get(batch.queue)
        if sender is not None and sender.idle:  # a producer may name a million queues
            del self._senders[batch.queue]
        for flush in list(self._flushes):
            flush.batches.pop(batch, None)
            if not flush.batches:
                self.unflush(flush)
                flush.finish()
        self.pipelines.completes(batch)

    def fail_all(self, error: FilaError) -> None:
        """End the messages that no sender has."""
        for batch in [each for each in list(self.batches) if not each.cut]:
            self._end(batch)
            batch.finish(error=error)

    def _begin(self, queue: str, full: ProducerBatch | None) -> ProducerBatch:
        if full is not None:
            self._full.append(full)
        batch = ProducerBatch(self, queue)
        self.batches[batch] = None
        self._collecting[queue] = batch
        self.pipelines.began(self)
        return batch

    def _cut_all(self) -> None:
        while self._full:
            self._cut(self._full[0])
        for batch in list(self._collecting.values()):
            self._cut(batch)

    def _cut(self, batch: ProducerBatch) -> None:
        """Send a batch. An interrupt may come in between: so it stays where it will be found until a sender has it."""
        with self.pipelines.lock:
            batch.cut = True
        if not batch.number:
            batch.command = seal_rows([row for row, _ in batch.entries])
            sender = self._senders.get(batch.queue)
            if sender is None:
                sender = self._senders[batch.queue] = QueueSender(batch.queue, self.pipelines.around, self.pipelines.plans)
            sender.send(batch)
        self._end(batch)

    def _end(self, batch: ProducerBatch) -> None:
        """Collect no more messages in it."""
        if batch.timer is not None:
            self.pipelines.around.timers.cancel(batch.timer)
        with self.pipelines.lock:
            batch.cut = True
            if batch in self._full:
                self._full.remove(batch)
            if self._collecting.get(batch.queue) is batch:
                del self._collecting[batch.queue]

    def _too_late(self, flush: Flush, timeout_s: float) -> None:
        self._flushes.pop(flush, None)
        left = sum(len(batch.entries) for batch in flush.batches)
        text = f"{left} messages are not confirmed after {timeout_s:g} s: their futures say later what became of them"
        flush.finish(error=RequestTimeoutError(text, details={"unconfirmed": left, "timeout": timeout_s}))
