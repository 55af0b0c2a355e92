"""The deletion of a queue with all its messages: by command, or after too long an idle time."""

from collections.abc import Generator, Iterator
from itertools import groupby, islice
from typing import TYPE_CHECKING, Final

from fila_proto_zmq.commands import PartitionIdle
from fila_proto_zmq.errors import QueueNotFoundError
from fila_proto_zmq.events import QueueDeleted
from fila_proto_zmq.names import whole_queue
from fila_worker.core.callback_groups.owned import OwnedBatches
from fila_worker.core.deliver.subscriptions import close_demands
from fila_worker.core.effects import Post
from fila_worker.core.keys import pack_u32, pack_u64
from fila_worker.core.model.acked_messages import purge
from fila_worker.core.model.cold_lanes import ColdLane
from fila_worker.core.model.due_index import DueKind
from fila_worker.core.model.lanes import Lane
from fila_worker.core.walking import portions, views_of

if TYPE_CHECKING:
    from fila_worker.core.jobs import Work
    from fila_worker.core.model.queues import Queue
    from fila_worker.core.model.state import State
    from fila_worker.core.walking import View

LEASE_COST: Final = 3
LANE_COST: Final = 5
"""Effort to forget a lease, or a lane with all its messages."""


def remove(state: "State", queue: "Queue", *, idle: bool = False) -> None:
    """Remove a queue and its dead letter queue; ``idle``: because it was not used.

    At once requests do not find them, and their messages are not delivered. Their contents are removed in steps, also after a
    restart.
    """
    purge(state)
    family = [each for each in (queue, queue.dead_letters) if each is not None]
    state.notes.append(QueueDeleted(queue.name, state.index, sum(each.depth for each in family), idle))
    state.batch_parts.remove_queue(queue.counted_as, state.batch)
    state.part(OwnedBatches).remove_queue(queue.counted_as, state.batch)
    for doomed in family:
        doomed.gone = True
        doomed.dead_letters = None
        state.define_queue(doomed)  # else a power cut could restore the queue when another queue has its name
        if doomed.hooks is not None:
            doomed.hooks.hooks.close()
            doomed.hooks = None
        doomed.judge()
        state.runnable.pop(doomed.id, None)
        state.queues.leave(doomed)
        if doomed.partition is not None:
            state.places.leave(doomed.partition)
        state.jobs.start_own(clear(state, doomed))


def clear(state: "State", queue: "Queue") -> "Work":
    """Remove the contents of a queue that is gone, and then its record."""
    yield from close_demands(state, queue, QueueNotFoundError(f"queue {queue.name!r} was deleted"))
    yield from _drop_leases(state, queue)
    purge(state)  # messages that were acked meanwhile; from here on no message of the queue is leased
    step = max(1, state.settings.limits.step_effort // LANE_COST)
    for keys in portions(state, queue):
        views = views_of(state, keys)
        while piece := list(islice(views, step)):
            _remove(state, queue, piece)
            yield LANE_COST * len(piece)
    state.ledger.forget_queue(queue)
    state.batch.delete(pack_u32(queue.id), state.store.families.queues)
    state.batch.delete_range(pack_u32(queue.id), pack_u32(queue.id + 1), state.store.families.dedup)
    del state.queues.by_id[queue.id]
    return None


def _drop_leases(state: "State", queue: "Queue") -> "Generator[int, int, None]":
    """End the leases: their messages become pending in a queue that delivers nothing."""
    effort = 0
    for lease in [lease for lease in state.leases.leases.values() if lease.queue is queue]:
        if effort >= state.settings.limits.step_effort:
            yield effort
            effort = 0
        if state.leases.leases.get(lease.id) is lease:
            effort += LEASE_COST + lease.open
            if lease.labelled:
                state.count_leased(lease, range(len(lease.members)), -1)
            for _, message_key, lane in lease.open_members():
                lane.unlease(message_key)
                state.line_up(lane, message_key, None)
            state.leases.drop(lease, state.batch)
    state.jobs.charge(effort)


def _remove(state: "State", queue: "Queue", views: "list[View]") -> None:
    """Remove some lanes with all their messages."""
    lanes = [view for view in views if isinstance(view, Lane)]
    for view in views:
        state.ledger.show(view)
        queue.count_lane(-view.pending, -view.delayed)
        queue.ring.leave(view.key)
        if isinstance(view, ColdLane):
            view.key.cold = None
            queue.lanes -= 1
            queue.forget_key(view.key)
    state.ledger.forget(lanes, state.batch)
    for lane in lanes:
        state.buffers.clear(lane)
        state.forget_lane(lane)
    for first, last in _stretches(sorted(view.id for view in views)):
        for family in (state.store.families.messages, state.store.families.delayed, state.store.families.lanes):
            state.batch.delete_range(pack_u64(first), pack_u64(last + 1), family)


def _stretches(numbers: list[int]) -> Iterator[tuple[int, int]]:
    """Yield the first and the last number of each run: lanes of one queue are often made one after the other."""
    for _, stretch in groupby(enumerate(numbers), key=lambda pair: pair[1] - pair[0]):
        members = [number for _, number in stretch]
        yield members[0], members[-1]


def watch(state: "State", queue: "Queue", now_ms: int, after_ms: int | None = None) -> None:
    """Schedule a check of a queue for when it may have been idle for too long; an earlier entry becomes void.

    ``after_ms``: for when it may have been idle for that long.
    """
    if queue.options.idle_expiry_ms is not None:
        queue.look_ms = max(now_ms + 1, queue.used_ms + (after_ms or queue.options.idle_expiry_ms))
        state.due_index.add(queue.look_ms, DueKind.IDLE, pack_u32(queue.id), state.batch)


def delete_if_idle(state: "State", queue_id: int, due_ms: int, now_ms: int) -> None:
    """Delete a queue if it has been idle for too long, else schedule the next check.

    A partition does not go alone: shard 0 is told, and told again after twice the time (:mod:`core.manage.idle_partitions`).
    """
    queue = state.queues.by_id.get(queue_id)
    if queue is None or queue.gone or queue.options.idle_expiry_ms is None or queue.look_ms not in {0, due_ms}:
        return
    if not is_idle(state, queue, now_ms):
        watch(state, queue, now_ms)
    elif queue.partition is None:
        remove(state, queue, idle=True)
    else:
        partition, whole = queue.partition, whole_queue(queue.name)
        state.effects.append(Post(PartitionIdle(0, whole, partition.number, partition.defined)))
        watch(state, queue, now_ms, 2 * (now_ms - queue.used_ms))


def is_idle(state: "State", queue: "Queue", now_ms: int) -> bool:
    """Return whether a queue with an idle expiry has been without messages, consumers and calls for that long."""
    family = [queue, *([queue.dead_letters] if queue.dead_letters else [])]
    awaited = state.outbox.carries_from(queue.id) or state.part(OwnedBatches).has_any(queue.counted_as)
    if awaited or any(each.depth or each.subscribers for each in family):
        queue.used_ms = now_ms
    idle_ms = queue.options.idle_expiry_ms
    return idle_ms is not None and queue.used_ms + idle_ms <= now_ms
