"""Dead letters: messages that leave their queue for another that collects them, and how they come back.

Usually that is the queue's own ``.dlq``, on the same shard, so both moves are one write batch. A queue may also name another
queue for its dead letters, perhaps on another shard (:mod:`core.transfers`), or have none and drop them. A message keeps its
id through all of it, and on its own shard its place in line (priority and enqueue order).
"""

from typing import TYPE_CHECKING, Final

from fila_proto_zmq.commands import Redrive, Redriven, Transfer
from fila_proto_zmq.errors import InvalidArgumentError, NotADeadLetterQueueError
from fila_proto_zmq.names import shard_of
from fila_proto_zmq.record import Record, pack_record, unpack_record
from fila_worker.core import incoming, transfers
from fila_worker.core.keys import place_of
from fila_worker.core.lanes import held_bytes
from fila_worker.core.queues import DISCARD, OWN, Queue
from fila_worker.core.reading import next_entry

if TYPE_CHECKING:
    from fila_worker.core.effects import Call
    from fila_worker.core.fairness_key import FairnessKey
    from fila_worker.core.lanes import Entry, Lane
    from fila_worker.core.state import State

FAILED: Final = "failed"
MAX_ATTEMPTS: Final = "max_attempts"
HOOK: Final = "hook"
EXPIRED: Final = "expired"
"""Reasons why a message was dead-lettered."""

REDRIVE_MAX: Final = 1000
"""Messages that one command moves, so that no turn is long: callers repeat it."""

LOOK_MAX: Final = 10_000
"""Messages of a key that one command looks at for dead letters, in a queue that has other messages too."""


# --- there ------------------------------------------------------------------------------------------------------------


def expire(shard: "State", lane: "Lane", message_key: bytes, record: bytes, now_ms: int) -> None:
    """A message that was popped from its line is too old to be delivered. The caller looks after its lane's activity."""
    shard.strike(lane, message_key, len(record))
    bury(shard, lane, message_key, record, EXPIRED, now_ms)


def bury(shard: "State", lane: "Lane", message_key: bytes, record: bytes, reason: str, now_ms: int) -> None:
    """A message that has left its lane goes where the dead letters of its queue go."""
    source = lane.key.queue
    source.dead_lettered += 1
    shard.use(source, now_ms)
    policy = source.options.dead_letter or OWN
    if policy == DISCARD:
        return
    letter = unpack_record(record)
    extension = letter.extension
    extension.reason, extension.source_queue, extension.dead_lettered_ms = reason, source.name, now_ms
    extension.expires_ms = None
    named = shard.queues.get(policy) if policy != OWN else None
    if named is not None:
        shard.appoint(named)  # it may be another than the one that was asked for
        message = incoming.Incoming(letter, lane.key.name, weight=lane.key.weight, throttle_keys=lane.throttle_keys)
        incoming.store(shard, named, message, now_ms)
    elif policy != OWN and shard_of(policy, shard.shards) != shard.index:
        transfers.send(shard, lane, message_key, _transfer(policy, lane, letter, redriven=False))
    else:
        _lay_down(shard, incoming.own_dead_letters(shard, source), lane, place_of(message_key), letter)


def _lay_down(shard: "State", target: Queue, lane: "Lane", place: bytes, letter: Record) -> None:
    resting = shard.lane(target, lane.key.name, lane.throttle_keys)
    shard.set_weight(resting.key, lane.key.weight)
    incoming.remember(shard, target, letter)
    shard.put_in_line(resting, place, pack_record(letter))


def _transfer(queue: str, lane: "Lane", letter: Record, *, redriven: bool) -> Transfer:
    key = lane.key
    return Transfer(queue, key.name, key.weight, list(lane.throttle_keys), redriven, pack_record(letter))


# --- and back ---------------------------------------------------------------------------------------------------------


def redrive(shard: "State", call: "Call", command: Redrive) -> Redriven:
    """Move pending dead letters back to the queues they came from, with no attempts counted."""
    dead = shard.queue(call.queue)
    if not (dead.is_dead_letter or dead.appointed):
        raise NotADeadLetterQueueError(f"{dead.name!r} is no dead letter queue: redrive {dead.name + '.dlq'!r} instead")
    if command.count < 0:
        raise InvalidArgumentError(f"redrive of {command.count} messages: use a count above 0, or 0 for all")
    left = min(command.count or REDRIVE_MAX, REDRIVE_MAX)
    moved = 0
    for lane in _lanes_to_empty(dead, command.fairness_key):
        if moved >= left:
            break
        moved += _empty(shard, lane, left - moved, call.now_ms)
    dead.meter.redriven += moved
    return Redriven(moved, dead.pending)


def _lanes_to_empty(dead: Queue, name: str | None) -> "list[Lane]":
    keys: list[FairnessKey] = [key for key in dead.keys.values() if name is None or key.name == name]
    return [lane for key in keys for lane in key.lanes.values() if lane.active]


def _empty(shard: "State", lane: "Lane", count: int, now_ms: int) -> int:
    """Send up to ``count`` messages of a lane back; returns how many went."""
    moved = 0
    stay: list[Entry] = []
    while moved < count and lane.pending > len(stay) and len(stay) < LOOK_MAX:
        entries = [next_entry(shard, lane) for _ in range(min(count - moved, lane.pending - len(stay)))]
        shard.buffered_bytes -= held_bytes(entries)
        for message_key, record in _with_records(shard, entries):
            if _send_back(shard, lane, message_key, record, now_ms):
                moved += 1
            else:
                stay.append((message_key, record))
    for message_key, kept in stay:
        shard.line_up(lane, message_key, kept)
    shard.thin_out(lane)
    return moved


def _with_records(shard: "State", entries: "list[Entry]") -> list[tuple[bytes, bytes]]:
    unread = [message_key for message_key, record in entries if record is None]
    found = dict(zip(unread, shard.read(unread), strict=True)) if unread else {}
    return [(message_key, record or found[message_key]) for message_key, record in entries]


def _send_back(shard: "State", lane: "Lane", message_key: bytes, record: bytes, now_ms: int) -> bool:
    """Move one message; False, and it stays, if it is no dead letter or the queue it came from is gone."""
    letter = unpack_record(record)
    source = letter.extension.source_queue
    if source is None:
        return False
    target = shard.queues.get(source)
    if target is None:
        if shard_of(source, shard.shards) == shard.index:
            return False
        shard.strike(lane, message_key, len(record))
        transfers.send(shard, lane, message_key, _transfer(source, lane, letter, redriven=True))
        return True
    shard.strike(lane, message_key, len(record))
    message = incoming.Incoming(incoming.revived(letter), lane.key.name, throttle_keys=lane.throttle_keys)
    incoming.take_in(shard, target, message, now_ms)
    return True
