"""Queues as they were at one moment: what a view keeps of them, and how its pages are read.

Messages are read from families that were pinned at that moment (:class:`core.store.Pin`). What is not on disk was copied
(:mod:`core.inspect.snapshot_builder`): the lanes, how many messages each had, and the leases. Nothing here refers to living
lanes or queues, because these change and go.

A page is a walk over *stretches*: keys in the order of their names; within a key one lane after the other; within a lane
first the messages in line, then the delayed ones. So a page costs one seek for each lane that it visits, however many lanes a
key has. Rejected: a merge of all lanes of a key, as :mod:`core.inspect.browse` does it for people. It costs a seek for each
lane of the key on each page. A stretch ends after as many messages as it had, because behind its last one there may be only
tombstones.
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
from fila_worker.core.model.due_index import parse_delayed
from fila_worker.core.settings import Limits

if TYPE_CHECKING:
    from fila_worker.core.store import Families, Family, Pin

IN_LINE, LATER = 0, 1
"""The two stretches of a lane: its messages in the ``messages`` family, and those in ``delayed``."""

KEY_COST: Final = 1
MESSAGE_COST: Final = 2
"""Effort to begin with a key, and to examine a message."""

_CURSOR: Final = Struct(f">B{MESSAGE_KEY_BYTES}sI")
_KEY_START: Final = _CURSOR.pack(IN_LINE, bytes(MESSAGE_KEY_BYTES), 0)
_NOT_HELD: Final = (0, 0, "")
NO_HOLDS: Final[Mapping[bytes, "Hold"]] = {}
"""The holds of a lane without leased messages."""


class Hold(NamedTuple):
    """A lease that held a message: from when until when, Unix ms, and the name of its holder."""

    leased_ms: int
    expires_ms: int
    consumer: str


class LaneSnapshot(NamedTuple):
    """A lane with messages. No message in line has a smaller key than ``start``."""

    id: int
    throttle_keys: list[str]
    start: bytes
    stored: int
    delayed: int
    holds: Mapping[bytes, Hold]
    """The holds of its leased messages, by key, in key order; some of these messages may have been acked."""


class KeySnapshot(NamedTuple):
    """A fairness key with messages; its lanes are in the order of their ids."""

    name: str
    weight: int
    lanes: list[LaneSnapshot]


class QueueSnapshot(NamedTuple):
    """A queue; ``names`` are the names of its keys, in order."""

    name: str
    keys: dict[str, KeySnapshot]
    names: list[str]


class Stretch(NamedTuple):
    """Consecutive messages of one lane: ``left`` of them from ``begin`` on."""

    key: KeySnapshot
    kind: int
    lane: LaneSnapshot
    begin: bytes
    left: int


Cursor: TypeAlias = tuple[str, bytes]
"""Where a page begins: a fairness key; then, packed, the stretch, its first message and how many messages are left of it."""

# --- reading ----------------------------------------------------------------------------------------------------------


def read_page(
    queue: QueueSnapshot, command: BrowseView, pin: "Pin", families: "Families", limits: Limits
) -> tuple[ViewBrowsed, int]:
    """Return a page of the messages that ``command`` asks for and the start of the next page; and the effort that it took."""
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
    """Yield messages of some keys in order: the stretch, how many are left of it from this one on, key and value."""
    for stretch in _stretches(queue, command, names):
        for number, (message_key, data) in enumerate(_messages(stretch, command.states, pin, families)):
            yield stretch, stretch.left - number, message_key, data


def _stretches(queue: QueueSnapshot, command: BrowseView, names: Iterable[str]) -> Iterator[Stretch]:
    """Yield the stretches of some keys that are left to read, in order."""
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
        raise InvalidArgumentError(f"start={start!r}: use the `next` of the page before, unchanged")
    kind, message_key, left = _CURSOR.unpack(start[1])
    return kind, message_key, left


def _names(queue: QueueSnapshot, command: BrowseView) -> Iterator[str]:
    """Return the names of the keys that are left to read."""
    begin = command.from_key if command.start is None else max(command.from_key, command.start[0])
    names = queue.names
    if command.fairness_keys is not None:
        names = sorted(name for name in set(command.fairness_keys) if name in queue.keys)
    end = len(names) if command.to_key is None else bisect_left(names, command.to_key)
    return map(names.__getitem__, range(bisect_left(names, begin), end))


def _lanes(key: KeySnapshot, states: list[str] | None) -> Iterable[tuple[int, LaneSnapshot]]:
    """Return a key's stretches that may have wanted messages."""
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
    """Return the stored messages of a stretch; only leased ones if no pending ones are wanted."""
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
            return  # the cursor is of another view
        yield message_key, data


def _view(stretch: Stretch, message_key: bytes, data: bytes) -> MessageView:
    key, lane = stretch.key, stretch.lane
    if stretch.kind == LATER:
        delayed = parse_delayed(data)
        return MessageView(DELAYED, key.name, key.weight, lane.throttle_keys, delayed.due_ms, *_NOT_HELD, delayed.record)
    hold = lane.holds.get(message_key)
    return MessageView(LEASED if hold else PENDING, key.name, key.weight, lane.throttle_keys, 0, *(hold or _NOT_HELD), data)
