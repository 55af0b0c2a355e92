"""Dead letters: messages that leave their queue for its ``.dlq``, and how they come back.

Both moves are one write batch, because a queue and its dead letter queue share a shard. A message keeps its id and its
place in line (priority and enqueue order) on the way out and on the way back.
"""

from typing import TYPE_CHECKING, Final

from fila_proto_zmq.commands import Redrive, Redriven
from fila_proto_zmq.errors import InvalidArgumentError, NotADeadLetterQueueError
from fila_proto_zmq.record import Extension, Record, pack_record, unpack_record
from fila_worker.core.delivery import next_entry
from fila_worker.core.keys import place_of
from fila_worker.core.lanes import held_bytes

if TYPE_CHECKING:
    from fila_worker.core.effects import Call
    from fila_worker.core.fairness import FairnessKey
    from fila_worker.core.lanes import Entry
    from fila_worker.core.queues import Queue
    from fila_worker.core.state import State

FAILED: Final = "failed"
MAX_ATTEMPTS: Final = "max_attempts"
"""Reasons why a message was dead-lettered."""

REDRIVE_MAX: Final = 1000
"""Messages that one command moves, so that no turn is long: callers repeat it."""


def bury(shard: "State", source: "Queue", key: str, place: bytes, record: Record, reason: str, now_ms: int) -> None:
    """Put a message that has left ``source`` into its dead letter queue."""
    source.dead_lettered += 1
    if source.dead_letters is None:
        return
    extension = record.extension
    extension.reason, extension.source_queue, extension.dead_lettered_ms = reason, source.name, now_ms
    shard.put_in_line(source.dead_letters, key, place, pack_record(record))


def redrive(shard: "State", call: "Call", command: Redrive) -> Redriven:
    """Move pending dead letters back to the queues they came from, with no attempts counted."""
    dead = shard.queue(call.queue)
    if not dead.is_dead_letter:
        raise NotADeadLetterQueueError(f"{dead.name!r} is no dead letter queue: redrive {dead.name + '.dlq'!r} instead")
    if command.count < 0:
        raise InvalidArgumentError(f"redrive of {command.count} messages: use a count above 0, or 0 for all")
    left = min(command.count or REDRIVE_MAX, REDRIVE_MAX)
    moved = 0
    for key in _keys_to_empty(dead, command.fairness_key):
        entries = _take(shard, key, left)
        moved += sum(_send_back(shard, key, entry) for entry in entries)
        left -= len(entries)
    return Redriven(moved, dead.pending)


def _keys_to_empty(dead: "Queue", name: str | None) -> list["FairnessKey"]:
    keys = dead.ring.active_keys()
    return keys if name is None else [key for key in keys if key.name == name]


def _take(shard: "State", key: "FairnessKey", count: int) -> list["Entry"]:
    """Take up to ``count`` pending messages out of a key's line, their records read back where need be."""
    entries = [next_entry(shard, key.lane) for _ in range(min(count, key.lane.pending))]
    shard.buffered_bytes -= held_bytes(entries)
    unread = [message_key for message_key, record in entries if record is None]
    found = dict(zip(unread, shard.read(unread), strict=True)) if unread else {}
    return [(message_key, record or found[message_key]) for message_key, record in entries]


def _send_back(shard: "State", key: "FairnessKey", entry: "Entry") -> bool:
    """Move one message; False, and it stays, if the queue it came from is gone."""
    message_key, data = entry
    assert data is not None
    record = unpack_record(data)
    target = shard.queues.get(record.extension.source_queue or "")
    if target is None:
        shard.line_up(key.lane, message_key, data)
        return False
    shard.take_out(key.lane, message_key)
    record.attempts = 0
    record.extension = Extension(lease_ms=record.extension.lease_ms, metadata=record.extension.metadata)
    shard.put_in_line(target, key.name, place_of(message_key), pack_record(record))
    target.enqueued += 1
    return True
