"""A queue's messages as they lie there: finding one by its id, and taking it out.

A message is found by its id without an index: the id has its number, the queue knows the
priorities that its messages had, so in each lane there are a few keys where it could be.
"""

from collections.abc import Iterator, Sequence
from itertools import islice
from struct import Struct
from typing import TYPE_CHECKING, Final, NamedTuple

from fila_proto_zmq.commands import Cancel, Cancelled
from fila_proto_zmq.errors import MessageNotFoundError
from fila_proto_zmq.ids import format_id, sequence, shard_of_id
from fila_proto_zmq.record import ID_AT
from fila_worker.core.delays import DELAYED_HEAD_BYTES, lift, parse_delayed
from fila_worker.core.graveyard import purge as purge_dead
from fila_worker.core.keys import PRIORITY_BIAS, pack_place
from fila_worker.core.lanes import held_bytes

if TYPE_CHECKING:
    from fila_worker.core.cold import ColdLane
    from fila_worker.core.effects import Call
    from fila_worker.core.lanes import Lane
    from fila_worker.core.queues import Queue
    from fila_worker.core.state import State

PENDING: Final = "pending"
LEASED: Final = "leased"
DELAYED: Final = "delayed"
_ID: Final = Struct(">QQ")
_DELAYED_ID_AT: Final = slice(DELAYED_HEAD_BYTES + ID_AT.start, DELAYED_HEAD_BYTES + ID_AT.stop)

LOOK_UP_KEYS: Final = 1000
"""Keys that are looked up at once when a message is sought."""


class Found(NamedTuple):
    """A message where it lies."""

    lane: "Lane"
    key: bytes
    state: str
    record: bytes
    due_ms: int = 0


# --- finding ----------------------------------------------------------------------------------------------------------


def find(shard: "State", queue: "Queue", high: int, low: int) -> Found:
    """The message with this id; :class:`MessageNotFoundError` if it is not in the queue."""
    purge_dead(shard)  # or acked ones would still be found
    shard.settle_writes()
    found = locate(shard, queue, high, low)
    if found is not None:
        return found
    raise MessageNotFoundError(
        f"no message {format_id(high, low)} in queue {queue.name!r}: it was settled, dead-lettered or removed, or never here",
        details={"queue": queue.name},
    )


def locate(shard: "State", queue: "Queue", high: int, low: int) -> Found | None:
    """Like :func:`find`, of what is committed; None if it is not there. What is acked and not removed yet counts as leased."""
    if not 0 <= min(high, low) <= max(high, low) < 2**64:
        return None
    wanted = _ID.pack(high, low)
    return next((found for found in _candidates(shard, queue, high, low, wanted) if found.record[ID_AT] == wanted), None)


def effort(shard: "State", queue: "Queue", high: int) -> int:
    """At how many places :func:`locate` may have to look."""
    stranger = shard_of_id(high) != shard.index
    if stranger and not queue.strangers:
        return 1
    return queue.depth if stranger or queue.priorities is None else queue.lanes * len(queue.priorities)


def find_browsed(shard: "State", queue: "Queue", high: int, low: int) -> Found | None:
    """A message that was browsed lately and is where it was then; of what is committed."""
    place = shard.bookmarks.find(queue.id, (high, low))
    key = queue.keys.get(place[0]) if place else None
    if place is None or key is None:
        return None
    wanted = _ID.pack(high, low)
    pairs = [(lane, lane.prefix + place[1]) for lane in key.views]
    return next((found for found in _look_up(shard, pairs) if found.record[ID_AT] == wanted), None)


def _candidates(shard: "State", queue: "Queue", high: int, low: int, wanted: bytes) -> Iterator[Found]:
    stranger = shard_of_id(high) != shard.index
    if stranger and not queue.strangers:
        return
    if stranger or queue.priorities is None:
        yield from _read_through(shard, queue, wanted)
        return
    places = [pack_place(priority + PRIORITY_BIAS, sequence(low)) for priority in queue.priorities]
    lanes = [lane for key in queue.keys.values() for lane in key.views if not lane.idle]
    pairs = iter([(lane, lane.prefix + place) for lane in lanes for place in places])
    while chunk := list(islice(pairs, LOOK_UP_KEYS)):
        yield from _look_up(shard, chunk)


def _read_through(shard: "State", queue: "Queue", wanted: bytes) -> Iterator[Found]:
    """Read all messages for one that could be anywhere: a second for each million."""
    families = shard.store.families
    for lane in [lane for key in queue.keys.values() for lane in key.views]:
        for key, record in shard.store.scan(lane.floor, lane.end, families.messages) if lane.stored else ():
            if record[ID_AT] == wanted:
                yield Found(lane.warm(), key, LEASED if key in lane.leased else PENDING, record)
        for key, value in shard.store.scan(lane.prefix, lane.end, families.delayed) if lane.delayed else ():
            if value[_DELAYED_ID_AT] == wanted:
                yield as_found(lane.warm(), key, value)


def _look_up(shard: "State", pairs: "Sequence[tuple[Lane | ColdLane, bytes]]") -> Iterator[Found]:
    keys, families = [key for _, key in pairs], shard.store.families
    for (lane, key), record in zip(pairs, shard.store.get_many(keys, families.messages), strict=True):
        if record is not None:
            yield Found(lane.warm(), key, LEASED if key in lane.leased else PENDING, record)
    pairs = [(lane, key) for lane, key in pairs if lane.delayed]
    keys = [key for _, key in pairs]
    for (lane, key), value in zip(pairs, shard.store.get_many(keys, families.delayed), strict=True):
        if value is not None:
            yield as_found(lane.warm(), key, value)


def as_found(lane: "Lane", key: bytes, value: bytes) -> Found:
    """A delayed message, from its value in the ``delayed`` family."""
    delayed = parse_delayed(value)
    return Found(lane, key, DELAYED, delayed.record, delayed.due_ms)


# --- taking out -------------------------------------------------------------------------------------------------------


def cancel(shard: "State", call: "Call", command: Cancel) -> Cancelled:
    """Remove a pending or delayed message; a leased one stays."""
    found = find(shard, shard.queue(call.queue), command.id_high, command.id_low)
    if found.state == LEASED:
        return Cancelled(False)
    if found.state == DELAYED:
        delayed = parse_delayed(shard.store.get(found.key, shard.store.families.delayed) or b"")
        lift(shard, found.lane, found.key, delayed)
        if delayed.retrying:
            shard.release_slot(found.lane.key)
    else:
        shard.buffered_bytes -= held_bytes(found.lane.remove({found.key}))
        shard.take_out(found.lane, found.key, len(found.record))
    return Cancelled(True)
