"""How a queue goes, with all that is in it: by command, or by itself when it was idle for too long."""

from collections.abc import Iterator
from itertools import groupby
from typing import TYPE_CHECKING

from fila_proto_zmq.events import QueueDeleted
from fila_worker.core.consuming import close_demands
from fila_worker.core.graveyard import purge
from fila_worker.core.keys import pack_u32, pack_u64
from fila_worker.core.lanes import held_bytes

if TYPE_CHECKING:
    from fila_worker.core.queues import Queue
    from fila_worker.core.state import State


def remove(shard: "State", queue: "Queue", *, idle: bool = False) -> None:
    """Remove a queue and its dead letter queue; ``idle``: because nobody uses it."""
    purge(shard)
    family = [each for each in (queue, queue.dead_letters) if each is not None]
    shard.notes.append(QueueDeleted(queue.name, shard.index, sum(each.depth for each in family), idle))
    for doomed in family:
        _remove(shard, doomed)


def _remove(shard: "State", queue: "Queue") -> None:
    close_demands(shard, queue)
    for lease in [lease for lease in shard.leases.leases.values() if lease.queue is queue]:
        shard.leases.drop(lease, shard.batch)
    ids = sorted(lane.id for key in queue.keys.values() for lane in key.views)
    lanes = [lane for key in queue.keys.values() if key.cold is None for lane in key.lanes.values()]
    for lane in lanes:
        shard.buffered_bytes -= held_bytes(lane.clear())
        shard.throttling.leave(lane)
        del shard.lanes[lane.id]
    for first, last in _stretches(ids):
        for family in (shard.store.families.messages, shard.store.families.delayed, shard.store.families.lanes):
            shard.batch.delete_range(pack_u64(first), pack_u64(last + 1), family)
    shard.ledger.forget_queue(queue)
    shard.ledger.forget(lanes, shard.batch)
    shard.batch.delete(pack_u32(queue.id), shard.store.families.queues)
    shard.batch.delete_range(pack_u32(queue.id), pack_u32(queue.id + 1), shard.store.families.dedup)
    if queue.hooks is not None:
        queue.hooks.hooks.close()
    shard.to_be_synced = True  # else a power cut could bring it back, and its name may be another queue's by then
    shard.wanted.pop(queue.id, None)
    del shard.queues[queue.name]
    del shard.queues_by_id[queue.id]


def _stretches(numbers: list[int]) -> Iterator[tuple[int, int]]:
    """The first and the last of each stretch of consecutive numbers: lanes of one queue are often made one after the other."""
    for _, stretch in groupby(enumerate(numbers), key=lambda pair: pair[1] - pair[0]):
        members = [number for _, number in stretch]
        yield members[0], members[-1]
