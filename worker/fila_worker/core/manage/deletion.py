"""How a queue goes, with all that is in it: by command, or by itself when it was idle for too long."""

from collections.abc import Generator, Iterator
from itertools import groupby, islice
from typing import TYPE_CHECKING, Final

from fila_proto_zmq.events import QueueDeleted
from fila_worker.core.deliver.subscriptions import close_demands
from fila_worker.core.keys import pack_u32, pack_u64
from fila_worker.core.model.acked_messages import purge
from fila_worker.core.model.cold_lanes import ColdLane
from fila_worker.core.model.due_index import Kind
from fila_worker.core.model.lanes import Lane, held_bytes
from fila_worker.core.settle.failed_attempts import unlease
from fila_worker.core.walking import portions, views_of

if TYPE_CHECKING:
    from fila_worker.core.jobs import Work
    from fila_worker.core.model.queues import Queue
    from fila_worker.core.state import State
    from fila_worker.core.walking import View

LEASE_COST: Final = 3
LANE_COST: Final = 5
"""Effort to forget a lease, or a lane with all that is in it."""


def remove(shard: "State", queue: "Queue", *, idle: bool = False) -> None:
    """Remove a queue and its dead letter queue; ``idle``: because nobody uses it.

    At once nobody finds them any more, and what is in them is not delivered. It is removed in steps, also after a restart.
    """
    purge(shard)
    family = [each for each in (queue, queue.dead_letters) if each is not None]
    shard.notes.append(QueueDeleted(queue.name, shard.index, sum(each.depth for each in family), idle))
    for doomed in family:
        doomed.gone = True
        doomed.dead_letters = None
        shard.define_queue(doomed)  # else a power cut could bring it back, and its name may be another queue's by then
        if doomed.hooks is not None:
            doomed.hooks.hooks.close()
            doomed.hooks = None
        shard.runnable.pop(doomed.id, None)
        shard.unname_queue(doomed)
        shard.jobs.start_own(clear(shard, doomed))


def clear(shard: "State", queue: "Queue") -> "Work":
    """Remove what is left of a queue that is gone, its record last."""
    yield from close_demands(shard, queue)
    yield from _drop_leases(shard, queue)
    purge(shard)  # what was acked meanwhile; from here on nothing of the queue is leased
    step = max(1, shard.settings.limits.step_effort // LANE_COST)
    for keys in portions(shard, queue):
        views = views_of(shard, keys)
        while piece := list(islice(views, step)):
            _remove(shard, queue, piece)
            yield LANE_COST * len(piece)
    shard.ledger.forget_queue(queue)
    shard.batch.delete(pack_u32(queue.id), shard.store.families.queues)
    shard.batch.delete_range(pack_u32(queue.id), pack_u32(queue.id + 1), shard.store.families.dedup)
    del shard.queues_by_id[queue.id]
    return None


def _drop_leases(shard: "State", queue: "Queue") -> "Generator[int, int, None]":
    """End the leases: what they held is pending in a queue that delivers nothing any more."""
    effort = 0
    for lease in [lease for lease in shard.leases.leases.values() if lease.queue is queue]:
        if effort >= shard.settings.limits.step_effort:
            yield effort
            effort = 0
        if shard.leases.leases.get(lease.id) is lease:
            effort += LEASE_COST + lease.open
            for _, message_key, lane in lease.open_members():
                unlease(lane, message_key)
                shard.line_up(lane, message_key, None)
            shard.leases.drop(lease, shard.batch)
    shard.jobs.charge(effort)


def _remove(shard: "State", queue: "Queue", views: "list[View]") -> None:
    """Remove some lanes with all that is in them."""
    lanes = [view for view in views if isinstance(view, Lane)]
    for view in views:
        shard.ledger.show(view)
        queue.pending -= view.pending
        queue.delayed -= view.delayed
        queue.ring.leave(view.key)
        if isinstance(view, ColdLane):
            view.key.cold = None
            queue.lanes -= 1
            queue.forget_key(view.key)
    shard.ledger.forget(lanes, shard.batch)
    for lane in lanes:
        shard.buffered_bytes -= held_bytes(lane.clear())
        shard.forget_lane(lane)
    for first, last in _stretches(sorted(view.id for view in views)):
        for family in (shard.store.families.messages, shard.store.families.delayed, shard.store.families.lanes):
            shard.batch.delete_range(pack_u64(first), pack_u64(last + 1), family)


def _stretches(numbers: list[int]) -> Iterator[tuple[int, int]]:
    """The first and the last of each stretch of consecutive numbers: lanes of one queue are often made one after the other."""
    for _, stretch in groupby(enumerate(numbers), key=lambda pair: pair[1] - pair[0]):
        members = [number for _, number in stretch]
        yield members[0], members[-1]


def watch(shard: "State", queue: "Queue", now_ms: int) -> None:
    """Look at a queue when it may have been idle for too long; an earlier entry for it counts no more."""
    if queue.options.idle_expiry_ms is not None:
        queue.look_ms = max(now_ms + 1, queue.used_ms + queue.options.idle_expiry_ms)
        shard.due_index.add(queue.look_ms, Kind.IDLE, pack_u32(queue.id), shard.batch)


def delete_if_idle(shard: "State", queue_id: int, due_ms: int, now_ms: int) -> None:
    """Delete a queue if it has been idle for too long, else look again when it may have been."""
    queue = shard.queues_by_id.get(queue_id)
    if queue is None or queue.gone or queue.options.idle_expiry_ms is None or queue.look_ms not in {0, due_ms}:
        return
    family = [queue, *([queue.dead_letters] if queue.dead_letters else [])]
    if any(each.depth or each.subscribers for each in family) or shard.outbox.carries_from(queue.id):
        queue.used_ms = now_ms
    if queue.used_ms + queue.options.idle_expiry_ms > now_ms:
        watch(shard, queue, now_ms)
    else:
        remove(shard, queue, idle=True)
