"""A queue's messages in their places: find one by its id, and cancel it.

To find a message by its id takes no index. The id contains the message's sequence number, and the queue has the priorities of
its messages. So there are only a few keys in each lane where the message can be.
"""

from collections import OrderedDict
from collections.abc import Generator, Iterator, Sequence
from itertools import islice
from struct import Struct
from typing import TYPE_CHECKING, ClassVar, Final, NamedTuple

from fila_proto_zmq.commands import Cancel, Cancelled
from fila_proto_zmq.errors import MessageNotFoundError
from fila_proto_zmq.ids import format_id, sequence
from fila_proto_zmq.record import ID_AT
from fila_worker.core.callback_group_parts import MemberOutcome
from fila_worker.core.keys import PRIORITY_BIAS, after, pack_place, pack_u64
from fila_worker.core.model.component import Component
from fila_worker.core.model.due_index import DELAYED_HEAD_BYTES, lift, parse_delayed
from fila_worker.core.model.lanes import FEW, tokens_of
from fila_worker.core.settings import Limits
from fila_worker.core.walking import View, again, pieces

if TYPE_CHECKING:
    from fila_worker.core.effects import ClientCall
    from fila_worker.core.jobs import Work
    from fila_worker.core.model.lanes import Lane
    from fila_worker.core.model.queues import Queue
    from fila_worker.core.model.state import State
    from fila_worker.core.store import Family

PENDING: Final = "pending"
LEASED: Final = "leased"
DELAYED: Final = "delayed"
_ID: Final = Struct(">QQ")
_DELAYED_ID_AT: Final = slice(DELAYED_HEAD_BYTES + ID_AT.start, DELAYED_HEAD_BYTES + ID_AT.stop)

LOOK_UP_KEYS: Final = 1000
"""Lanes of a key that are searched at once for a message that was browsed lately."""

LOOK_UPS_MAX: Final = 8
"""Places in a lane that are looked up one by one. Above that, reading the whole lane is mostly cheaper."""

NEAR_LANES: Final = 1
"""Lanes with all keys in memory that are searched for one unit of effort."""

LOOK_UP_COST: Final = 3
"""Effort to look up one place in a lane that is not in memory."""

READ_COST: Final = 3
"""Cost of starting a read somewhere, in messages."""


class Found(NamedTuple):
    """A message and its place."""

    lane: "Lane"
    key: bytes
    state: str
    record: bytes
    due_ms: int = 0


# --- finding ----------------------------------------------------------------------------------------------------------


def find(state: "State", queue: "Queue", high: int, low: int) -> "Generator[int, int, Found]":
    """Return a message, in steps, or raise :class:`MessageNotFoundError`. The place is valid until the caller yields."""
    found = yield from locate(state, queue, high, low)
    if found is not None:
        return found
    raise MessageNotFoundError(
        f"no message {format_id(high, low)} in queue {queue.name!r}: it was settled, dead-lettered, removed or never in it",
        details={"queue": queue.name},
    )


def locate(state: "State", queue: "Queue", high: int, low: int) -> "Generator[int, int, Found | None]":
    """Return the message as :func:`find` does; None if it is missing. One visit to each lane is enough: messages stay."""
    if not 0 <= min(high, low) <= max(high, low) < 2**64:
        return None
    numbers: list[int | None] = [sequence(low)] if state.is_own(queue, high, low) else []
    if queue.strangers:
        numbers.append(None)
    step = state.settings.limits.step_effort
    for number in numbers:
        search = _Search(state, queue, _ID.pack(high, low), number)
        for views in pieces(state, queue, step):
            found = yield from search.look_into(views)
            if found is not None and not _was_acked(found):
                state.jobs.charge(search.spent())
                return found
            yield 1 + len(views) // NEAR_LANES + search.spent()
    return None


def find_browsed(state: "State", queue: "Queue", high: int, low: int) -> Found | None:
    """Return a message that was browsed lately and is still in its place; only among committed messages."""
    place = state.part(BrowseCursors).find(queue.id, (high, low))
    key = queue.keys.get(place[0]) if place else None
    if place is None or key is None or (key.several is not None and len(key.several) > LOOK_UP_KEYS):
        return None
    wanted = _ID.pack(high, low)
    pairs = [(lane, lane.prefix + place[1]) for lane in key.views]
    return next((found for found in _look_up(state, pairs) if found.record[ID_AT] == wanted and not _was_acked(found)), None)


def _was_acked(found: Found) -> bool:
    """Return whether a message is acked, but not removed yet."""
    return found.key in found.lane.acked


class BrowseCursors:
    """The places of the last shown messages, by queue and message id. So a page can begin after a removed message."""

    def __init__(self, limits: Limits) -> None:
        self._count_max = limits.browse_cursors_max
        self._places: OrderedDict[tuple[int, tuple[int, int]], tuple[str, bytes]] = OrderedDict()

    def __len__(self) -> int:
        return len(self._places)

    def note(self, queue: int, message_id: tuple[int, int], place: tuple[str, bytes]) -> None:
        """Note that a message was shown at this place: its fairness key, and its place in its lane."""
        self._places[queue, message_id] = place
        if len(self._places) > self._count_max:
            self._places.popitem(last=False)

    def find(self, queue: int, message_id: tuple[int, int]) -> tuple[str, bytes] | None:
        """Return the place of a message that was shown lately; None if it is unknown."""
        return self._places.get((queue, message_id))


class _Search:
    """The search for a message by its id: in memory if all keys of a lane are there, else by look-ups at the possible places.

    ``number`` is the sequence number in the message's key, as its id has it. It is None if the message came from another
    shard: then it can have any place.
    """

    __slots__ = ("_effort", "_last", "_number", "_places", "_queue", "_state", "_step", "_wanted")

    def __init__(self, state: "State", queue: "Queue", wanted: bytes, number: int | None) -> None:
        self._state, self._queue, self._wanted, self._number = state, queue, wanted, number
        self._last = pack_u64(number or 0)
        self._step = state.settings.limits.step_effort
        self._effort = 0

    def spent(self) -> int:
        """Return the effort of the look-ups since the last call."""
        effort, self._effort = self._effort, 0
        return effort

    def look_into(self, views: "list[View]") -> "Generator[int, int, Found | None]":
        """Search some lanes that exist at this moment; between steps they may be packed as cold, or forgotten."""
        far: list[View] = []
        for view in views:
            lane = self._state.lanes.get(view.id)
            if lane is None or self._number is None or lane.tail is not None or lane.stored > FEW or lane.delayed:
                if not view.idle:
                    far.append(view)
            elif (key := self._key_in_memory(lane)) is not None:
                found = self._read(lane, key)
                if found is not None:
                    return found
        priorities = self._queue.priorities
        if self._number is None or priorities is None or len(priorities) > LOOK_UPS_MAX:
            return (yield from self._read_through(far))
        places = [pack_place(priority + PRIORITY_BIAS, self._number) for priority in priorities]
        return (yield from self._look_up_in(far, places))

    def _key_in_memory(self, lane: "Lane") -> bytes | None:
        last = self._last
        for key, _ in lane.line:
            if key[12:] == last:
                return key
        for key, _ in lane.returned:
            if key[12:] == last:
                return key
        for key in lane.leased:
            if key[12:] == last:
                return key
        return None

    def _read(self, lane: "Lane", key: bytes) -> Found | None:
        self._state.settle_writes()
        found = _look_up(self._state, [(lane, key)])
        return next((each for each in found if each.record[ID_AT] == self._wanted), None)

    def _look_up_in(self, views: "list[View]", places: list[bytes]) -> "Generator[int, int, Found | None]":
        state, count = self._state, max(1, self._step // len(places))
        for start in range(0, len(views), count):
            if start:
                yield self.spent()
            state.settle_writes()
            self._effort += LOOK_UP_COST * len(views[start : start + count]) * len(places)
            living = [view for each in views[start : start + count] if (view := again(state, each)) is not None]
            for found in _look_up(state, [(view, view.prefix + place) for view in living for place in places]):
                if found.record[ID_AT] == self._wanted:
                    return found
        return None

    def _read_through(self, views: "list[View]") -> "Generator[int, int, Found | None]":
        """Read all messages for one that can have any place: a second for each million."""
        families = self._state.store.families
        for view in views:
            found = yield from self._read_family(view, families.messages, ID_AT)
            if found is None:
                found = yield from self._read_family(view, families.delayed, _DELAYED_ID_AT)
            if found is not None:
                return found
        return None

    def _read_family(self, view: "View", family: "Family", id_at: slice) -> "Generator[int, int, Found | None]":
        state, begin = self._state, b""
        while True:
            state.settle_writes()
            current = again(state, view)
            if current is None or not (current.delayed if family is state.store.families.delayed else current.stored):
                return None
            first = current.floor if family is state.store.families.messages else current.prefix
            piece = list(islice(state.store.scan(max(begin, first), current.end, family), self._step))
            for key, value in piece:
                if value[id_at] == self._wanted:
                    return _as_found(state, current.warm(), key, value, family)
            if len(piece) < self._step:
                return None
            begin = after(piece[-1][0])
            yield READ_COST + len(piece)


def _look_up(state: "State", pairs: "Sequence[tuple[View, bytes]]") -> Iterator[Found]:
    families = state.store.families
    for family in (families.messages, families.delayed):
        if family is families.delayed:
            pairs = [(view, key) for view, key in pairs if view.delayed]
        keys = [key for _, key in pairs]
        for (view, key), value in zip(pairs, state.store.get_many(keys, family), strict=True):
            if value is not None:
                yield _as_found(state, view.warm(), key, value, family)


def _as_found(state: "State", lane: "Lane", key: bytes, value: bytes, family: "Family") -> Found:
    if family is state.store.families.delayed:
        return as_found(lane, key, value)
    return Found(lane, key, LEASED if key in lane.leased else PENDING, value)


def as_found(lane: "Lane", key: bytes, value: bytes) -> Found:
    """Return a delayed message, from its value in the ``delayed`` family."""
    delayed = parse_delayed(value)
    return Found(lane, key, DELAYED, delayed.record, delayed.due_ms)


# --- cancelling -------------------------------------------------------------------------------------------------------


def cancel(state: "State", call: "ClientCall", command: Cancel) -> "Work":
    """Remove a pending or delayed message; a leased one stays."""
    found = yield from find(state, state.queues.find(call.queue), command.id_high, command.id_low)
    if found.state == LEASED:
        return Cancelled(False)
    if found.state == DELAYED:
        delayed = parse_delayed(state.store.get(found.key, state.store.families.delayed) or b"")
        lift(state, found.lane, found.key, delayed)
        if delayed.retrying:
            state.release_slot(found.lane.key)
    else:
        state.buffers.remove(found.lane, {found.key})
        state.take_out(found.lane, found.key, len(found.record))
    state.end_members(found.lane.key.queue, tokens_of([found.record]).values(), MemberOutcome.REMOVED)
    return Cancelled(True)


class Backlog(Component):
    """The command that cancels a message by its id."""

    verbs: ClassVar = {Cancel: cancel}

    def __init__(self, state: "State") -> None:
        super().__init__(state)
        state.keep(BrowseCursors(state.settings.limits))
