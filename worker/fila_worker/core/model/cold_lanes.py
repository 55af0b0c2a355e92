"""Cold keys: a fairness key far from its turn keeps a few packed bytes in memory instead of its lane.

A queue may have a million keys, most with a message or two. A lane can be read back: its messages are on disk in their order,
and the ledger has its counts. So a shard with more than ``Limits.warm_lanes_max`` lanes *cools* simple keys down. A simple
key has one lane that needs no tokens, nothing leased, nothing that waits for a retry, and an exact record on disk. A cold key
keeps its place in the ring, its weight, credit and counters: fairness does not depend on which keys are cold.

A key is *warm* again when its turn comes, when a message is enqueued to it, or when a command needs its lane. The keys whose
turns come next are warmed up with it, because a read of many messages costs little more than a read of one. A clock chooses
the keys to cool down: a hand goes over the warm lanes in the order in which they became warm (Corbato's clock algorithm,
without a reference bit), a bounded number of steps a turn.

Cost: 0.4 KiB for a cold key with its name, 1 KiB for a warm one with a message of 100 bytes. Rejected: the packed form for
the whole key (it saves 200 bytes, and the ring would have two kinds of keys), and least recently used lanes (a move for each
message).
"""

from collections import OrderedDict
from itertools import islice
from struct import Struct
from typing import TYPE_CHECKING, Final, NamedTuple

from fila_worker.core.keys import LANE_BYTES, LAST, after, pack_u64
from fila_worker.core.model.lanes import ENTRY_BYTES, Lane

if TYPE_CHECKING:
    from collections.abc import Set

    from fila_worker.core.model.fairness_keys import FairnessKey
    from fila_worker.core.model.lanes import Entry
    from fila_worker.core.model.queues import Queue
    from fila_worker.core.model.state import State

AHEAD_BYTES: Final = 256 * 1024
"""About how much is read at once when keys are warmed up because their turns come."""

COUNT_MAX: Final = 2**32 - 1
"""A lane with more messages stays warm."""

_PACKED: Final = Struct(">QII12s")
_COUNTS: Final = Struct(">QII")
_PLACE_AT: Final = 16


class WarmLanes(OrderedDict[int, Lane]):
    """The lanes of a shard that are objects, by id. The clock's hand stands at the first one.

    Rejected: a dictionary and a queue of ids. The queue keeps the ids of lanes that are gone, in memory that could otherwise
    be given back.
    """

    def __init__(self) -> None:
        super().__init__()
        self.entered = 0
        """The number of lanes that became warm since the hand last moved."""

    def enter(self, lane: Lane) -> None:
        """Add a lane that is new, or warm again."""
        self[lane.id] = lane
        self.entered += 1


class _Unpacked(NamedTuple):
    key: "FairnessKey"
    id: int
    stored: int
    delayed: int
    place: bytes
    """The place where its messages begin."""


class ColdLane(_Unpacked):
    """The lane of a cold key, for reading only. It has the attributes of a :class:`Lane` that are read."""

    __slots__ = ()

    retrying: Final = 0
    throttle: Final = None
    throttle_keys: Final[tuple[str, ...]] = ()
    blocked: Final = False
    idle: Final = False
    leased: "Final[Set[bytes]]" = frozenset()
    acked: Final[tuple[bytes, ...]] = ()
    claimed = leased

    @property
    def prefix(self) -> bytes:
        """The prefix of its messages' keys."""
        return pack_u64(self.id)

    @property
    def end(self) -> bytes:
        """The key behind all its messages."""
        return self.prefix + LAST

    @property
    def floor(self) -> bytes:
        """A lower bound of its messages' keys."""
        return self.prefix + self.place

    @property
    def tail(self) -> bytes | None:
        """The beginning of the messages that are only on disk, which are all pending ones."""
        return self.floor if self.stored else None

    @property
    def pending(self) -> int:
        """The number of messages that could be delivered."""
        return self.stored

    @property
    def active(self) -> bool:
        """Whether it has pending messages."""
        return self.stored > 0

    def peek(self) -> "Entry | None":
        """Return None: nothing is in memory."""
        return None

    def warm(self) -> Lane:
        """Return the lane as an object."""
        return self.key.lanes[()]


def packed(lane_id: int, stored: int, delayed: int, floor: bytes) -> bytes:
    """Return the packed form of a lane. ``floor``: a message key, the lane's prefix, or the key right behind a message's."""
    place = floor[8:20]
    if len(floor) > 20:
        place = (int.from_bytes(place, "big") + 1).to_bytes(12, "big")
    return _PACKED.pack(lane_id, stored, delayed, place)


def unpacked(key: "FairnessKey") -> ColdLane:
    """Return the lane of a cold key."""
    assert key.cold is not None, f"{key.name!r} is warm"
    return ColdLane(key, *_PACKED.unpack(key.cold))


def pending_cold(key: "FairnessKey") -> int:
    """Return the number of messages of a cold key that could be delivered."""
    assert key.cold is not None, f"{key.name!r} is warm"
    return int.from_bytes(key.cold[8:12], "big")


# --- warming up -------------------------------------------------------------------------------------------------------


def _floor(cold: bytes) -> bytes:
    """Return where the messages of a packed lane begin, without unpacking the rest."""
    return cold[:LANE_BYTES] + cold[_PLACE_AT:]


def warm_up(key: "FairnessKey") -> Lane:
    """Return the lane of a cold key, as an object again."""
    cold = key.cold
    assert cold is not None, f"{key.name!r} is warm"
    lane_id, stored, delayed = _COUNTS.unpack_from(cold)
    lane = Lane(lane_id, key)
    lane.stored, lane.delayed, lane.floor = stored, delayed, _floor(cold)
    lane.tail = lane.floor if stored else None
    lane.active, lane.recorded = key.ready > 0, True
    key.cold, key.only = None, lane
    key.queue.warm.enter(lane)
    if key.queue.options.max_in_flight_per_key is None:  # the usual case of settle_shape()
        key.only_lane = lane
    else:
        key.settle_shape()
    return lane


def warm_up_next(state: "State", queue: "Queue", key: "FairnessKey") -> Lane | None:
    """Warm up a cold key that has its turn, and the keys after it, with their first messages. Return its ``only_lane``."""
    size_bytes = max(1, queue.size_bytes // max(1, queue.depth)) + ENTRY_BYTES
    room_bytes = min(AHEAD_BYTES, state.buffers.room_bytes)
    count = min(state.settings.limits.warm_ahead_max, room_bytes // size_bytes)
    if count < 1:
        warm_up(key)
        return key.only_lane
    keys = dict.fromkeys([key, *(each for each in queue.ring.upcoming(count) if each.cold is not None)])
    firsts = [_floor(each.cold) for each in keys if each.cold is not None]
    found = state.store.get_many(firsts, state.store.families.messages)  # the messages of cold keys are committed
    for each, first, record in zip(keys, firsts, found, strict=True):
        lane = warm_up(each)
        if record is not None and lane.stored:
            lane.line.append((first, record))
            lane.tail = after(first) if lane.stored > 1 else None
            state.buffers.hold(record)
    return key.only_lane


# --- cooling down -----------------------------------------------------------------------------------------------------


def cool_down(state: "State") -> None:
    """Move the clock's hand some steps, because many lanes are warm. Everything must be committed.

    The hand goes two steps for each lane that became warm, to keep pace with new lanes, and a few more.
    """
    warm, limits = state.lanes, state.settings.limits
    entered, warm.entered = warm.entered, 0
    for lane in list(islice(warm.values(), limits.cool_steps_min + 2 * entered)):
        most = limits.warm_small_lanes_max if lane.stored + lane.delayed == 1 else limits.warm_lanes_max
        if len(warm) > most and _may_cool(state, lane):
            _cool(state, lane)
        else:
            warm.move_to_end(lane.id)


def _may_cool(state: "State", lane: Lane) -> bool:
    """Return whether nothing is lost with the object."""
    key = lane.key
    return (
        state.ledger.is_folded(lane)
        and not lane.leased
        and not lane.acked
        and lane.recorded
        and not lane.changed
        and not lane.throttle_keys
        and not lane.retrying
        and not lane.idle
        and key.only is lane
        and key.queue.ring.current is not key
        and lane.stored <= COUNT_MAX >= lane.delayed
    )


def _cool(state: "State", lane: Lane) -> None:
    key = lane.key
    head, floor = lane.peek(), lane.floor
    if lane.stored:
        floor = min(first for first in (head[0] if head else None, lane.tail) if first is not None)
    state.buffers.clear(lane)
    key.cold, key.only, key.only_lane, key.heads = packed(lane.id, lane.stored, lane.delayed, floor), None, None, None
    del state.lanes[lane.id]
    del lane.key  # code that still has the object must fail
