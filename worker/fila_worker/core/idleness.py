"""Queues that delete themselves: an idle expiry, judged by what is durable.

Every call to a queue (or its dead letter queue) uses it, and so does whatever ends by itself there: a message that expires, a
receive that has waited for long enough, a consumer that is lost (:meth:`State.use`). When it was last used is written at most
once a second, so after a restart a queue gets that much on top: it may live a second longer, never shorter.
"""

from typing import TYPE_CHECKING

from fila_worker.core.keys import pack_u32
from fila_worker.core.removal import remove
from fila_worker.core.schedule import Kind

if TYPE_CHECKING:
    from fila_worker.core.queues import Queue
    from fila_worker.core.state import State


def watch(shard: "State", queue: "Queue", now_ms: int) -> None:
    """Look at a queue when it may have been idle for too long; an earlier entry for it counts no more."""
    if queue.options.idle_expiry_ms is not None:
        queue.look_ms = max(now_ms + 1, queue.used_ms + queue.options.idle_expiry_ms)
        shard.schedule.add(queue.look_ms, Kind.IDLE, pack_u32(queue.id), shard.batch)


def look_at(shard: "State", queue_id: int, due_ms: int, now_ms: int) -> None:
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
