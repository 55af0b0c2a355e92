"""The producing side: enqueues, coalesced into frames.

Single enqueues that are made between two flushes (one tick of the event loop; threads that wait for the socket) go out as
one ``Enqueue`` frame per queue. Batches (:class:`Bulk`) make frames of their own, large enough to amortise a frame and
small enough to keep the broker's turn short; a :class:`~ordering.OrderedSender` keeps several of them under way, in order.
"""

from collections import defaultdict, deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from copy import copy
from functools import partial
from itertools import islice
from operator import itemgetter
from typing import Any, cast

from fila_cluster.client.protocol.encoding import Row, seal_batch, seal_rows
from fila_cluster.client.protocol.ordering import Chunk, answered_in
from fila_cluster.client.requests.call import Pending, PendingCall
from fila_proto_zmq.codec import from_fault
from fila_proto_zmq.commands import Enqueue, Enqueued
from fila_proto_zmq.errors import BatchError, FilaError, InvalidFrameError, PayloadTooLargeError
from fila_proto_zmq.ids import format_id, format_run
from fila_proto_zmq.limits import FRAME_BYTES_MAX
from fila_proto_zmq.partitions import BY_KEY, Plan, partition_of

MESSAGES_PER_FRAME = 500
_FIRST_FRAME_MESSAGES = 16
"""A batch starts small: the size of its messages is not known yet, and the broker begins sooner."""
_UNSENT = FilaError("not sent")
FRAMES_TOGETHER_MAX = 16
"""Frames whose messages are gathered together, to be sorted by partition."""
DEFAULT_KEY = "default"


def ids_of(enqueued: Enqueued, asked: int) -> list[str | FilaError]:
    """Return an id or an error for each of the ``asked`` messages of a frame."""
    ids: list[str | FilaError] = [*format_run(enqueued.id_high, enqueued.id_low, enqueued.count)]
    for index, result in _without_new_id(enqueued):
        ids.insert(index, result)
    if len(ids) != asked:
        return [InvalidFrameError(f"the broker answered for {len(ids)} messages, {asked} were sent")] * asked
    return ids


def results_of(chunk: Chunk, asked: int) -> list[str | FilaError]:
    """Return an id or an error for each of the ``asked`` messages of a chunk."""
    if chunk.error is None:
        return ids_of(chunk.value, asked)
    answer: Enqueued | None = chunk.value  # to its first part
    results = [] if answer is None else ids_of(answer, answered_in(answer))
    return results + [chunk.error] * (asked - len(results))


def id_of(answer: Enqueued | PendingCall) -> str:
    """Return the id in the answer to a short call for one message, or raise its error."""
    enqueued: Enqueued = answer.outcome() if isinstance(answer, PendingCall) else answer
    if enqueued.count == 1:
        return format_id(enqueued.id_high, enqueued.id_low)
    (result,) = ids_of(enqueued, 1)
    if isinstance(result, FilaError):
        raise result
    return result


def _without_new_id(enqueued: Enqueued) -> Sequence[tuple[int, str | FilaError]]:
    """Return the results of refused messages and of messages that the broker had already, by index."""
    if not (enqueued.faults or enqueued.known):
        return ()
    results: list[tuple[int, str | FilaError]] = [(index, from_fault(fault)) for index, fault in enqueued.faults]
    results += [(index, format_id(high, low)) for index, high, low in enqueued.known]
    return sorted(results, key=itemgetter(0))


class SingleEnqueues:
    """Collects single enqueues. :meth:`enqueue` may be called in any thread, the rest belongs to the session."""

    def __init__(self, send: Callable[[str, Enqueue, "Callable[[PendingCall], None]"], object]) -> None:
        self._send = send
        self.collected: deque[tuple[str, Row, Pending[str]]] = deque()

    def enqueue(self, queue: str, row: Row) -> Pending[str]:
        """Enqueue a message with the next flush; the result is its id."""
        pending: Pending[str] = Pending()
        self.collected.append((queue, row, pending))
        return pending

    def flush(self) -> None:
        """Send the messages that were enqueued since the last flush."""
        if len(self.collected) > 1:
            self._flush_together()
        elif self.collected:  # nothing to coalesce: half the work for single enqueues
            queue, row, pending = self.collected.popleft()
            self._send(queue, Enqueue([row[0]], *row[1]), partial(_alone_answered, pending))

    def _flush_together(self) -> None:
        queues: defaultdict[str, tuple[list[Row], list[Pending[str]]]] = defaultdict(lambda: ([], []))
        while self.collected:
            queue, row, pending = self.collected.popleft()
            rows, waiting = queues[queue]
            rows.append(row)
            waiting.append(pending)
        for queue, (rows, waiting) in queues.items():
            for start, end in frame_bounds([len(row[0]) for row in rows]):
                self._send(queue, seal_rows(rows[start:end]), partial(_answered, waiting[start:end]))

    def fail_all(self, error: FilaError) -> None:
        """Fail the enqueues that were not sent yet."""
        while self.collected:
            self.collected.popleft()[2].finish(error=copy(error))


def _alone_answered(pending: Pending[str], call: PendingCall) -> None:
    enqueued: Enqueued = call.value
    if call.error is None and enqueued.count == 1:
        pending.finish(format_id(enqueued.id_high, enqueued.id_low))
    else:
        _answered((pending,), call)


def _answered(waiting: Sequence[Pending[str]], call: PendingCall) -> None:
    asked = len(waiting)
    results = ids_of(call.value, asked) if call.error is None else [call.error] * asked
    for pending, result in zip(waiting, results, strict=True):
        if isinstance(result, str):
            pending.finish(result)
        else:
            pending.finish(error=copy(result))  # a copy: each one is raised in another place


def frame_bounds(sizes: Sequence[int]) -> Iterator[tuple[int, int]]:
    """Cut messages, given their sizes in bytes, into frames ``[start, end)``."""
    start = size = 0
    for index, length in enumerate(sizes):
        if index > start and (size + length > FRAME_BYTES_MAX or index - start == MESSAGES_PER_FRAME):
            yield start, index
            start, size = index, 0
        size += length
    yield start, len(sizes)


class Bulk:
    """One ``enqueue_many``: yields its frames in order, and collects their results.

    The shell sends what :meth:`chunks` yields through a sender, ``CHUNKS_UNDER_WAY`` at a time, waits for all of them and
    returns :meth:`ids`. The error of a whole frame (a queue that does not exist, a broker that is gone) ends the run: the
    frames after it would fail in the same way, and are not sent.
    """

    def __init__(
        self, queue: str, messages: Iterable[Any], batch: str = "", plan: Callable[[str], Plan | None] = lambda queue: None
    ) -> None:
        """``batch``: the id of the batch that they are members of; empty: none. ``plan``: returns the plan of the queue."""
        self._queue = queue
        self._plan = plan
        self._batch = batch
        self._messages = iter(messages)
        self._results: list[str | FilaError] = []
        self._kept: defaultdict[tuple[int, int], tuple[list[int], list[Any]]] = defaultdict(lambda: ([], []))
        """Less than a frame of messages for each partition, with the places of their results."""
        self._all_accepted = True
        self._failure: FilaError | None = None

    def chunks(self) -> Iterator[Chunk]:
        """Yield the chunks to send, in order."""
        count, plan = _FIRST_FRAME_MESSAGES, None
        while self._failure is None and (messages := list(islice(self._messages, count))):
            size, before, plan = 0, plan, self._plan(self._queue)
            if plan != before:
                yield from self._kept_back()
            by_partition = plan is not None and plan.spread == BY_KEY
            for each in self._chunks_by_partition(messages, plan) if by_partition and plan else self._chunks_of(messages):
                size += sum(map(len, each.command.envelopes))
                yield each
            fitting = FRAME_BYTES_MAX * len(messages) // max(1, size)
            frames = min(plan.partitions, FRAMES_TOGETHER_MAX) if by_partition and plan else 1
            count = max(1, min(MESSAGES_PER_FRAME * frames, count * 8, fitting * frames))
        if self._failure is None:
            yield from self._kept_back()

    def ids(self) -> list[str]:
        """Return the ids, in request order; :class:`BatchError` if a message was not accepted."""
        if self._failure is not None:
            self._results = [self._failure if each is _UNSENT else each for each in self._results]
            self._results.extend(self._failure for _ in self._messages)
        if self._all_accepted:
            return cast(list[str], self._results)
        failed = [index for index, result in enumerate(self._results) if not isinstance(result, str)]
        raise BatchError(
            f"{len(failed)} of {len(self._results)} messages were not enqueued to {self._queue!r}; "
            f"the first is number {failed[0]}: {self._results[failed[0]]}",
            self._results,
        )

    def _chunks_by_partition(self, messages: Sequence[Any], plan: Plan) -> Iterator[Chunk]:
        """Yield the chunks of a queue whose partitions are known: each is for one of them."""
        start, partitions = len(self._results), plan.partitions
        self._results += [_UNSENT] * len(messages)
        kept = self._kept
        for place, message in enumerate(messages, start):
            key = getattr(message, "fairness_key", None)
            partition = partition_of(key if isinstance(key, str) else DEFAULT_KEY, partitions)
            places, some = kept[partition, partitions]
            places.append(place)
            some.append(message)
        for part, (places, some) in list(kept.items()):
            sent = len(some) // MESSAGES_PER_FRAME * MESSAGES_PER_FRAME or len(some)
            for begin in range(0, sent, MESSAGES_PER_FRAME):
                end = begin + MESSAGES_PER_FRAME
                yield from self._chunks_at(some[begin:end], places[begin:end], part)
            kept[part] = (places[sent:], some[sent:])

    def _kept_back(self) -> Iterator[Chunk]:
        """Yield the chunks of the messages that were to fill frames with later ones."""
        kept = {part: each for part, each in self._kept.items() if each[0]}
        self._kept.clear()
        for part, (places, messages) in kept.items():
            yield from self._chunks_at(messages, places, part)

    def _chunks_of(self, messages: Sequence[Any]) -> Iterator[Chunk]:
        start, count = len(self._results), len(messages)
        self._results += [_UNSENT] * count
        yield from self._chunks_at(messages, range(start, start + count))

    def _chunks_at(
        self, messages: Sequence[Any], places: Sequence[int], part: tuple[int, int] | None = None
    ) -> Iterator[Chunk]:
        """Yield the chunks of some messages, whose results have these places."""
        command, faults = seal_batch(messages)
        if command is not None and len(messages) > 1 and sum(map(len, command.envelopes)) > FRAME_BYTES_MAX:
            half = len(messages) // 2
            yield from self._chunks_at(messages[:half], places[:half], part)
            yield from self._chunks_at(messages[half:], places[half:], part)
            return
        for index, fault in faults.items():
            self._results[places[index]] = fault
            self._all_accepted = False
        if command is not None:
            command.batch = self._batch
            if faults:
                places = [place for index, place in enumerate(places) if index not in faults]
            yield Chunk(command, partial(self._answered, places), part)

    def _answered(self, places: Sequence[int], chunk: Chunk) -> None:
        asked = len(places)
        results = results_of(chunk, asked)
        if chunk.error is None:
            self._all_accepted &= not chunk.value.faults and answered_in(chunk.value) == asked
        else:
            self._all_accepted = False
            # A PayloadTooLargeError is about one large message, which travels alone.
            if not isinstance(chunk.error, PayloadTooLargeError):
                self._failure = chunk.error
        if isinstance(places, range):
            self._results[places.start : places.stop] = results
            return
        for place, result in zip(places, results, strict=True):
            self._results[place] = result
