"""Delayed messages: into the schedule, and out of it when they are due."""

from typing import TYPE_CHECKING

from fila_worker.core.keys import lane_of, message_key_of, schedule_key

if TYPE_CHECKING:
    from fila_worker.core.lanes import Lane
    from fila_worker.core.state import State


def delay(shard: "State", lane: "Lane", key: bytes, record: bytes, due_ms: int) -> None:
    """Let a message of ``lane``, not counted anywhere, come to its place ``key`` at ``due_ms``."""
    shard.batch.put(schedule_key(due_ms, key), record, shard.store.families.schedule)
    lane.delayed += 1
    lane.key.queue.delayed += 1
    shard.ledger.touch(lane)
    shard.schedule.expect(due_ms)


def release_due(shard: "State", now_ms: int) -> None:
    """Put the delayed messages that are due in line."""
    due_ms = shard.schedule.next_due_ms
    if due_ms is None or due_ms > now_ms:
        return
    shard.settle_writes()
    families = shard.store.families
    for key, record in shard.schedule.due(now_ms):
        shard.batch.delete(key, families.schedule)
        message_key = message_key_of(key)
        lane = shard.lanes.get(lane_of(message_key))
        if lane is None:
            continue  # its queue was deleted meanwhile
        shard.batch.put(message_key, record, families.messages)
        lane.delayed -= 1
        lane.stored += 1
        lane.key.queue.delayed -= 1
        lane.key.queue.pending += 1
        shard.ledger.touch(lane)
        shard.line_up(lane, message_key, record)
