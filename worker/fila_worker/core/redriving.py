"""Redrive: dead letters go back to the queues they came from, all of them, those of a fairness key, or those that somebody picked.

Picked ones are found like any message by its id (:mod:`core.backlog`), or at once where they were browsed lately, as they were if
a person picks them. To find a message may take a look at many places, so a command looks for so many, and says how far it got.
"""

from typing import TYPE_CHECKING

from fila_proto_zmq.commands import Redrive, Redriven
from fila_proto_zmq.errors import InvalidArgumentError, NotADeadLetterQueueError
from fila_proto_zmq.events import QueueRedriven
from fila_proto_zmq.names import shard_of
from fila_proto_zmq.record import Record
from fila_worker.core import incoming, transfers
from fila_worker.core.backlog import PENDING, Found, effort, find_browsed, locate
from fila_worker.core.dead_letters import transfer_of
from fila_worker.core.keys import own_place
from fila_worker.core.lanes import held_bytes
from fila_worker.core.queues import Queue
from fila_worker.core.reading import next_entry, unpack_stored

if TYPE_CHECKING:
    from collections.abc import Iterator

    from fila_worker.core.effects import Call
    from fila_worker.core.fairness_key import FairnessKey
    from fila_worker.core.lanes import Entry, Lane
    from fila_worker.core.state import State


def redrive(shard: "State", call: "Call", command: Redrive) -> Redriven:
    """Move pending dead letters back to the queues they came from, with no attempts counted."""
    dead = shard.queue(call.queue)
    if not (dead.is_dead_letter or dead.appointed):
        raise NotADeadLetterQueueError(f"{dead.name!r} is no dead letter queue: redrive {dead.name + '.dlq'!r} instead")
    looked_at = 0
    if command.ids is None:
        moved = _redrive_first(shard, dead, command, call.now_ms)
    else:
        moved, looked_at = _redrive_picked(shard, dead, command, command.ids, call.now_ms)
    dead.meter.redriven += moved
    if moved:
        shard.notes.append(QueueRedriven(dead.name, shard.index, command.fairness_key, moved, dead.pending))
    return Redriven(moved, dead.pending, looked_at)


# --- the first ones ---------------------------------------------------------------------------------------------------


def _redrive_first(shard: "State", dead: Queue, command: Redrive, now_ms: int) -> int:
    if command.count < 0:
        raise InvalidArgumentError(f"redrive of {command.count} messages: use a count above 0, or 0 for all")
    most = shard.settings.limits.redrive_messages_max
    left = min(command.count or most, most)
    moved = 0
    for lane in _lanes_to_empty(dead, command.fairness_key):
        if moved >= left:
            break
        moved += _empty(shard, lane, left - moved, now_ms)
    return moved


def _lanes_to_empty(dead: Queue, name: str | None) -> "Iterator[Lane]":
    keys: list[FairnessKey] = [key for key in dead.keys.values() if key.ready and (name is None or key.name == name)]
    return (lane for key in keys for lane in tuple(key.lanes.values()) if lane.active)


def _empty(shard: "State", lane: "Lane", count: int, now_ms: int) -> int:
    """Send up to ``count`` messages of a lane back; returns how many went."""
    moved, look_max = 0, shard.settings.limits.redrive_look_messages_max
    stay: list[Entry] = []
    while moved < count and lane.pending > len(stay) and len(stay) < look_max:
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


# --- picked ones ------------------------------------------------------------------------------------------------------


def _redrive_picked(
    shard: "State", dead: Queue, command: Redrive, ids: list[tuple[int, int]], now_ms: int
) -> tuple[int, int]:
    """Send those back that are pending here; returns how many went, and how many of the ids were looked at."""
    if command.count or command.fairness_key is not None:
        raise InvalidArgumentError("dead letters by their ids, or so many of all or of a fairness key: ask for one of them")
    most = shard.settings.limits.redrive_messages_max
    if len(ids) > most:
        raise InvalidArgumentError(f"redrive of {len(ids)} ids: name at most {most} at a time")
    found, looked_at = _find_all(shard, dead, ids)
    return sum(_move(shard, each, now_ms) for each in found), looked_at


def _find_all(shard: "State", dead: Queue, ids: list[tuple[int, int]]) -> tuple[list[Found], int]:
    """Those of the ids that are there, and how many were looked for."""
    shard.settle_writes()
    found: dict[bytes, Found] = {}
    left, looked_at = shard.settings.limits.redrive_places_max, 0
    for high, low in ids:
        if left <= 0:
            break
        looked_at += 1
        message = find_browsed(shard, dead, high, low)
        if message is None:
            left -= effort(shard, dead, high)
            message = locate(shard, dead, high, low)
        if message is not None:
            found[message.key] = message
    return list(found.values()), looked_at


def _move(shard: "State", found: Found, now_ms: int) -> bool:
    """Send one back; False, and it stays, if it is not pending, or has nowhere to go."""
    if found.state != PENDING or not _may_go(shard, unpack_stored(found.record)):
        return False
    shard.buffered_bytes -= held_bytes(found.lane.remove({found.key}))
    _send_back(shard, found.lane, found.key, found.record, now_ms)
    shard.thin_out(found.lane)
    return True


# --- either -----------------------------------------------------------------------------------------------------------


def _send_back(shard: "State", lane: "Lane", message_key: bytes, record: bytes, now_ms: int) -> bool:
    """Move one message; False, and it stays, if it is no dead letter or the queue it came from is gone."""
    letter = unpack_stored(record)
    source = letter.extension.source_queue
    if source is None or not _may_go(shard, letter):
        return False
    shard.strike(lane, message_key, len(record))
    target = shard.queues.get(source)
    if target is None:
        place = own_place(message_key, letter.priority)
        transfers.send(shard, lane, place, transfer_of(source, lane, letter, redriven=True))
    else:
        message = incoming.Incoming(incoming.revived(letter), lane.key.name, throttle_keys=lane.throttle_keys)
        incoming.take_in(shard, target, message, now_ms)
    return True


def _may_go(shard: "State", letter: Record) -> bool:
    """Whether it is a dead letter, and the queue it came from is there, or may be on another shard."""
    source = letter.extension.source_queue
    return source is not None and (source in shard.queues or shard_of(source, shard.shards) != shard.index)
