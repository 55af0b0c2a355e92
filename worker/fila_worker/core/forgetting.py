"""Forgetting keys with nothing left: a queue remembers some of them, for their weights and counters, as long as there is room.

A lane is *idle* when none of its messages is there and none will come by itself. The ledger's fold sees which lanes became idle; those of a
queue that remembers many are forgotten there (``State.fold``), the others lie in the queue's ``resting`` ones until room is needed.
"""

from typing import TYPE_CHECKING

from fila_worker.core import graveyard

if TYPE_CHECKING:
    from fila_worker.core.queues import Queue
    from fila_worker.core.state import State


def make_room(shard: "State", queue: "Queue", now_ms: int) -> bool:
    """Forget a queue's idle lanes, if it has as many keys as it may; returns whether there is room for another key.

    The lanes that changed since the ledger was folded are looked through, once in a millisecond at most, so that a batch whose messages are
    all refused is refused in one go.
    """
    most = shard.settings.max_keys_per_queue
    while queue.resting and len(queue.keys) >= most:
        _, lane = queue.resting.popitem()
        if lane.idle and shard.lanes.get(lane.id) is lane:
            shard.ledger.forget([lane], shard.batch)
            shard.forget_lane(lane)
    if len(queue.keys) >= most and queue.searched_ms != now_ms:
        queue.searched_ms = now_ms
        graveyard.purge(shard)  # a lane is idle once its dead are gone
        idle = [lane for lane in shard.ledger.unfolded() if lane.key.queue is queue and lane.idle]
        shard.ledger.forget(idle, shard.batch)
        for lane in idle:
            shard.forget_lane(lane)
    return len(queue.keys) < most
