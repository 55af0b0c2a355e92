"""Queues as they were at one moment: what a view remembers of them, and how it is read page by page.

Messages are read from families that were pinned at that moment (:class:`core.store.Pin`); what the disk does not say was copied
(:mod:`core.inspect.snapshot_builder`): which lanes there were, how many messages each had, who had leased which. Nothing here points at living lanes or
queues, which go on, or away.

A page is a walk over *stretches*: key by key in the order of their names, and of each key one lane after the other, first what
is stored in line, then what is delayed. So a page costs a seek for each lane that it comes to, however many lanes a key has; a
merge of all of a key's lanes, as :mod:`core.inspect.browse` does it for people, would cost that for each lane of the key, each time.
A stretch is left after as many messages as it had, because behind its last one may lie nothing but tombstones.
"""

from bisect import bisect_left
from collections.abc import Iterable, Iterator, Mapping
from itertools import chain, islice
from struct import Struct
from typing import TYPE_CHECKING, Final, NamedTuple, TypeAlias

from fila_proto_zmq.commands import BrowseView, MessageView, ViewBrowsed
from fila_proto_zmq.errors import InvalidArgumentError
from fila_proto_zmq.limits import DELIVERY_BYTES_MAX
from fila_worker.core.inspect.backlog import DELAYED, LEASED, PENDING
from fila_worker.core.keys import LAST, MESSAGE_KEY_BYTES, lane_of, pack_u64
from fila_worker.core.model.delays import parse_delayed
from fila_worker.core.settings import Limits

if TYPE_CHECKING:
    from fila_worker.core.store import Families, Family, Pin

IN_LINE, LATER = 0, 1
"""The two stretches of a lane: its messages in the ``messages`` family, and those in ``delayed``."""

KEY_COST: Final = 1
MESSAGE_COST: Final = 2
"""Effort to come to a key, and to look at a message."""

_CURSOR: Final = Struct(f">B{MESSAGE_KEY_BYTES}sI")
_KEY_START: Final = _CURSOR.pack(IN_LINE, bytes(MESSAGE_KEY_BYTES), 0)
_NOT_HELD: Final = (0, 0, "")
NO_HOLDS: Final[Mapping[bytes, "Hold"]] = {}
"""Of a lane without leased messages."""


class Hold(NamedTuple):
    """Who had leased a message: from when until when, Unix ms, and the holder as it is shown."""

    leased_ms: int
    expires_ms: int
    consumer: str


class LaneSnapshot(NamedTuple):
    """A lane with messages. None of those in line has a smaller key than ``start``."""

    id: int
    throttle_keys: list[str]
    start: bytes
    stored: int
    delayed: int
    holds: Mapping[bytes, Hold]
    """Those of its messages that were leased, by their keys, in their order; and some that had been acked."""


class KeySnapshot(NamedTuple):
    """A fairness key with messages; its lanes in the order of their ids."""

    name: str
    weight: int
    lanes: list[LaneSnapshot]


class QueueSnapshot(NamedTuple):
    """A queue; ``names`` are those of its keys, in order."""

    name: str
    keys: dict[str, KeySnapshot]
    names: list[str]


class Stretch(NamedTuple):
    """Messages of one lane that lie one behind the other: ``left`` of them from ``begin`` on."""

    key: KeySnapshot
    kind: int
    lane: LaneSnapshot
    begin: bytes
    left: int


Cursor: TypeAlias = tuple[str, bytes]
"""Where a page begins: a fairness key; then which stretch, the first message, and how many are left of it, packed."""

# --- reading ----------------------------------------------------------------------------------------------------------


def read_page(
    queue: QueueSnapshot, command: BrowseView, pin: "Pin", families: "Families", limits: Limits
) -> tuple[ViewBrowsed, int]:
    """The messages that ``command`` asks for, as many as fit on a page, and where the next one begins; and what effort that was."""
    names = _names(queue, command)
    chosen = list(islice(names, limits.view_keys_max))
    page: list[MessageView] = []
    examined, cursor = 0, None
    room_bytes = DELIVERY_BYTES_MAX
    for stretch, left, message_key, data in _examined(queue, command, chosen, pin, families):
        if len(page) == command.limit or room_bytes <= 0 or examined >= limits.view_examined_messages_max:
            cursor = stretch.key.name, _CURSOR.pack(stretch.kind, message_key, left)
            break
        examined += 1
        view = _view(stretch, message_key, data)
        if command.states is None or view.state in command.states:
            page.append(view)
            room_bytes -= len(view.record)
    passed = len(chosen) if cursor is None else bisect_left(chosen, cursor[0])
    if cursor is None and (unread := next(names, None)) is not None:
        cursor = unread, _KEY_START
    return ViewBrowsed(page, cursor), passed * KEY_COST + examined * MESSAGE_COST


def _examined(
    queue: QueueSnapshot, command: BrowseView, names: Iterable[str], pin: "Pin", families: "Families"
) -> Iterator[tuple[Stretch, int, bytes, bytes]]:
    """Messages of some keys in order: the stretch, how many are left of it from this one on, key and value."""
    for stretch in _stretches(queue, command, names):
        for number, (message_key, data) in enumerate(_messages(stretch, command.states, pin, families)):
            yield stretch, stretch.left - number, message_key, data


def _stretches(queue: QueueSnapshot, command: BrowseView, names: Iterable[str]) -> Iterator[Stretch]:
    """What is left to read of some keys, in order."""
    cursor = _unpacked(command.start)
    for name in names:
        key = queue.keys[name]
        resumed = cursor if command.start is not None and name == command.start[0] else None
        for kind, lane in _lanes(key, command.states):
            whole = Stretch(key, kind, lane, *_extent(kind, lane))
            if resumed is None or (kind, lane.id) > (resumed[0], lane_of(resumed[1])):
                yield whole
            elif (kind, lane.id) == (resumed[0], lane_of(resumed[1])):
                yield whole._replace(begin=resumed[1], left=min(resumed[2], whole.left))


def _unpacked(start: Cursor | None) -> tuple[int, bytes, int] | None:
    if start is None:
        return None
    if len(start[1]) != _CURSOR.size:
        raise InvalidArgumentError(f"start={start!r}: it is `next` of the page before, as it came")
    kind, message_key, left = _CURSOR.unpack(start[1])
    return kind, message_key, left


def _names(queue: QueueSnapshot, command: BrowseView) -> Iterator[str]:
    """The names of the keys that are left to read."""
    begin = command.from_key if command.start is None else max(command.from_key, command.start[0])
    names = queue.names
    if command.fairness_keys is not None:
        names = sorted(name for name in set(command.fairness_keys) if name in queue.keys)
    end = len(names) if command.to_key is None else bisect_left(names, command.to_key)
    return map(names.__getitem__, range(bisect_left(names, begin), end))


def _lanes(key: KeySnapshot, states: list[str] | None) -> Iterable[tuple[int, LaneSnapshot]]:
    """A key's stretches that may have what is wanted."""
    if _wants(states, PENDING):
        in_line = [(IN_LINE, lane) for lane in key.lanes if lane.stored]
    else:
        in_line = [(IN_LINE, lane) for lane in key.lanes if lane.holds] if _wants(states, LEASED) else []
    later = [(LATER, lane) for lane in key.lanes if lane.delayed] if _wants(states, DELAYED) else []
    return chain(in_line, later)


def _wants(states: list[str] | None, state: str) -> bool:
    return states is None or state in states


def _extent(kind: int, lane: LaneSnapshot) -> tuple[bytes, int]:
    return (lane.start, lane.stored) if kind == IN_LINE else (pack_u64(lane.id), lane.delayed)


def _messages(stretch: Stretch, states: list[str] | None, pin: "Pin", families: "Families") -> Iterator[tuple[bytes, bytes]]:
    """What is stored of a stretch; only what is leased, where nothing else is wanted of it."""
    if stretch.kind == LATER:
        return _scan(stretch, pin, families.delayed)
    if not _wants(states, PENDING):
        held = [key for key in stretch.lane.holds if key >= stretch.begin]
        firsts = ((wanted, *found) for wanted in held for found in islice(pin.scan(wanted, families.messages), 1))
        return ((key, data) for wanted, key, data in firsts if key == wanted)
    return _scan(stretch, pin, families.messages)


def _scan(stretch: Stretch, pin: "Pin", family: "Family") -> Iterator[tuple[bytes, bytes]]:
    end = pack_u64(stretch.lane.id) + LAST
    for message_key, data in islice(pin.scan(stretch.begin, family), stretch.left):
        if message_key >= end:
            return  # a foreign cursor
        yield message_key, data


def _view(stretch: Stretch, message_key: bytes, data: bytes) -> MessageView:
    key, lane = stretch.key, stretch.lane
    if stretch.kind == LATER:
        delayed = parse_delayed(data)
        return MessageView(DELAYED, key.name, key.weight, lane.throttle_keys, delayed.due_ms, *_NOT_HELD, delayed.record)
    hold = lane.holds.get(message_key)
    return MessageView(LEASED if hold else PENDING, key.name, key.weight, lane.throttle_keys, 0, *(hold or _NOT_HELD), data)
