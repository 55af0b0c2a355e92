"""Purges: remove the messages of a queue, or of one of its keys, that are not leased.

The sizes of the messages must be known, because a queue's size counts for its quota. If a whole queue is purged at once, no
message is read: the rest is leased, and leases have the sizes of their messages. Otherwise the sizes come from the records in
memory and from reads of those on disk, a bounded number per command. Callers repeat the command until nothing remains.
"""

from bisect import bisect_left
from collections.abc import Generator, Iterable, Iterator
from itertools import pairwise
from typing import TYPE_CHECKING, ClassVar, Final

from fila_proto_zmq.commands import Purged, PurgeQueue
from fila_proto_zmq.events import QueuePurged
from fila_proto_zmq.record import BATCHED
from fila_worker.core.callback_group_parts import MemberOutcome
from fila_worker.core.keys import after
from fila_worker.core.model import acked_messages
from fila_worker.core.model.component import Component
from fila_worker.core.model.due_index import parse_delayed
from fila_worker.core.model.lanes import tokens_of
from fila_worker.core.settings import Limits
from fila_worker.core.walking import VIEWS_AT_ONCE, again, pieces

if TYPE_CHECKING:
    from fila_worker.core.effects import ClientCall
    from fila_worker.core.jobs import Work
    from fila_worker.core.model.lanes import Entry, Lane
    from fila_worker.core.model.queues import Queue
    from fila_worker.core.model.state import State
    from fila_worker.core.walking import View

LANE_COST: Final = 10
"""Effort to empty a lane, beside its messages."""

IN_MEMORY: Final = 10
"""To remove this many messages in memory costs as much as to read one."""


def purge(state: "State", call: "ClientCall", command: PurgeQueue) -> "Work":
    """Remove the pending and delayed messages of a queue or a key, a bounded number per command; leased ones stay."""
    queue = state.queues.find(call.queue)
    acked_messages.purge(state)
    unread = queue.lanes <= state.settings.limits.purge_lanes_max and not state.batch_parts.has_open(queue.counted_as)
    if command.fairness_key is None and unread:
        count = sum(_empty(state, view.warm()) for view in _lanes(queue, None))
        queue.size_bytes = _leased_bytes(state, queue)
        state.ledger.touch_queue(queue)
        state.jobs.charge(count // IN_MEMORY)
    else:
        count = yield from _purge_in_steps(state, queue, command.fairness_key)
    left = remaining(queue, command.fairness_key)
    state.notes.append(QueuePurged(queue.name, state.index, command.fairness_key, count, left))
    return Purged(count, left)


def _purge_in_steps(state: "State", queue: "Queue", key_name: str | None) -> "Generator[int, int, int]":
    limits, count, effort = state.settings.limits, 0, 0
    left = limits.purge_messages_max
    for views in pieces(state, queue, limits.step_effort, key_name):
        state.settle_writes()
        for each in views:
            view = again(state, each)
            while view is not None and (view.pending or view.delayed) and left > 0:
                step = _Step(limits, min(left, limits.step_effort))
                lane = view.warm()
                _empty_some(state, lane, step)
                count += step.removed
                left -= step.taken
                effort += LANE_COST + step.taken
                if effort >= limits.step_effort or lane.pending or lane.delayed:
                    yield effort
                    effort = 0
                    state.settle_writes()
                    view = again(state, each)
                else:
                    view = None
        if left <= 0:
            break
        yield effort + 1 + len(views) // VIEWS_AT_ONCE
        effort = 0
    return count


def _lanes(queue: "Queue", key_name: str | None) -> "Iterator[View]":
    """Return the lanes that have messages to remove."""
    keys = queue.keys.values() if key_name is None else [queue.keys[key_name]] if key_name in queue.keys else []
    return (view for key in keys for view in key.views if view.pending or view.delayed)


def remaining(queue: "Queue", key_name: str | None) -> int:
    """Return how many messages of a queue, or of one of its keys, are pending or delayed."""
    if key_name is None:
        return queue.pending + queue.delayed
    return sum(view.pending + view.delayed for view in _lanes(queue, key_name))


def _leased_bytes(state: "State", queue: "Queue") -> int:
    leases = (lease for lease in state.leases.leases.values() if lease.queue is queue)
    return sum(lease.sizes[index] for lease in leases for index, _, _ in lease.open_members())


class _Step:
    """The budget of one step, and what it has removed."""

    def __init__(self, limits: Limits, messages_max: int) -> None:
        self._messages_max = self.messages_left = messages_max
        self.bytes_left = limits.purge_bytes_max
        self._look_messages = limits.purge_look_messages
        self.removed = 0

    @property
    def over(self) -> bool:
        """Whether the rest is for the next step."""
        return self.messages_left <= 0 or self.bytes_left <= 0

    @property
    def taken(self) -> int:
        """The messages that were read, plus the cost of starting reads, in messages."""
        return self._messages_max - self.messages_left

    def charge_look(self) -> None:
        """Charge the start of a read."""
        self.messages_left -= self._look_messages

    def charge(self, messages: int, size_bytes: int = 0) -> None:
        """Charge messages that were read."""
        self.messages_left -= messages
        self.bytes_left -= size_bytes


# --- without reading --------------------------------------------------------------------------------------------------


def _empty(state: "State", lane: "Lane") -> int:
    """Remove all of a lane's messages that are not leased, and return their number; the queue's size does not change."""
    state.ledger.show(lane)
    pending, delayed, retrying = lane.pending, lane.delayed, lane.retrying
    tail, keys = lane.tail, [key for key, _ in lane.buffered()]
    state.buffers.clear(lane)
    _delete(state, lane, keys)
    if tail is not None:
        messages = state.store.families.messages
        beyond = sorted(key for key in lane.claimed if key >= tail)
        for start, end in zip([tail, *map(after, beyond)], [*beyond, lane.end], strict=True):
            state.batch.delete_range(start, end, messages)
    if delayed:
        state.batch.delete_range(lane.prefix, lane.end, state.store.families.delayed)
    _count_out(state, lane, pending, delayed, retrying)
    return pending + delayed


# --- with reading -----------------------------------------------------------------------------------------------------


def _empty_some(state: "State", lane: "Lane", step: _Step) -> None:
    """Remove a lane's messages that are not leased: those in memory, and as many of the others as the step allows."""
    state.ledger.show(lane)
    entries, tail = lane.buffered(), lane.tail
    records = _records_of(state, entries)
    size_bytes, tokens = sum(map(len, records)), list(tokens_of(records).values())
    state.buffers.clear(lane)
    gone = [key for key, _ in entries]
    step.charge(1 + len(gone) // IN_MEMORY)
    if tail is not None:
        found, tail_bytes = _read_tail(state, lane, tail, step, tokens)
        gone += found
        size_bytes += tail_bytes
    _delete(state, lane, gone)
    delayed, retrying, delayed_bytes = _remove_delayed(state, lane, step, tokens) if lane.delayed else (0, 0, 0)
    state.end_members(lane.key.queue, tokens, MemberOutcome.REMOVED)
    lane.key.queue.shrink(size_bytes + delayed_bytes)
    _count_out(state, lane, len(gone), delayed, retrying)
    step.removed += len(gone) + delayed


def _records_of(state: "State", entries: "list[Entry]") -> list[bytes]:
    unread = [key for key, record in entries if record is None]
    return [record for _, record in entries if record is not None] + (state.read(unread) if unread else [])


def _read_tail(state: "State", lane: "Lane", tail: bytes, step: _Step, tokens: list[bytes]) -> tuple[list[bytes], int]:
    """Return the keys of the tail's messages that the step removes, and their size; the rest becomes the tail.

    Leased messages are skipped. ``tokens`` gets the batches of members.
    """
    step.charge_look()
    gone: list[bytes] = []
    size_bytes, claimed = 0, lane.claimed
    for key, record in state.store.scan(tail, lane.end, state.store.families.messages):
        if key in claimed:
            continue
        if step.over and gone:
            lane.tail = key
            break
        step.charge(1, len(record))
        gone.append(key)
        size_bytes += len(record)
        if record[1] & BATCHED:
            tokens += tokens_of([record]).values()
    return gone, size_bytes


def _remove_delayed(state: "State", lane: "Lane", step: _Step, tokens: list[bytes]) -> tuple[int, int, int]:
    """Remove delayed messages; return how many, how many of them waited for a retry, and their size."""
    step.charge_look()
    count = retrying = size_bytes = 0
    end = lane.end
    delayed = state.store.families.delayed
    for key, value in state.store.scan(lane.prefix, lane.end, delayed):
        if step.over and count:
            end = key
            break
        step.charge(1, len(value))
        count += 1
        message = parse_delayed(value)
        retrying += message.retrying
        size_bytes += len(message.record)
        tokens += tokens_of([message.record]).values()
    state.batch.delete_range(lane.prefix, end, delayed)
    return count, retrying, size_bytes


# --- both -------------------------------------------------------------------------------------------------------------


def _delete(state: "State", lane: "Lane", keys: list[bytes]) -> None:
    """Delete messages of a lane. Their keys are in order, and only leased messages lie between them."""
    messages = state.store.families.messages
    for run in _runs(keys, lane.claimed):
        if len(run) >= state.settings.limits.range_messages_min:
            state.batch.delete_range(run[0], after(run[-1]), messages)
        else:
            for key in run:
                state.batch.delete(key, messages)


def _runs(keys: list[bytes], leased: Iterable[bytes]) -> Iterator[list[bytes]]:
    """Return the runs of ``keys`` that have no leased key between them."""
    cuts = sorted({0, len(keys), *(bisect_left(keys, key) for key in leased)})
    return (keys[start:end] for start, end in pairwise(cuts))


def _count_out(state: "State", lane: "Lane", pending: int, delayed: int, retrying: int) -> None:
    """Count messages that have left a lane."""
    state.ledger.touch(lane)
    lane.drop(pending, delayed, retrying)
    state.ledger.touch_queue(lane.key.queue)
    state.thin_out(lane)
    state.release_slot(lane.key, retrying)


class Purges(Component):
    """The command that purges queues."""

    verbs: ClassVar = {PurgeQueue: purge}
