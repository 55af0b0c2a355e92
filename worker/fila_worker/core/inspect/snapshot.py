"""Snapshots: queues as they were at one moment, and how the pages of a view are read from them.

Messages are read from families that were pinned at that moment (:class:`core.store.Pin`). The rest is copied by
:class:`SnapshotBuilder`: the lanes, how many messages each had, and the leases. Nothing here refers to present lanes or
queues, because these change and go.

A page is a walk over *stretches*: keys in the order of their names; within a key one lane after the other; within a lane
first the messages in line, then the delayed ones. So a page costs one seek for each lane that it visits, however many lanes a
key has. Rejected: a merge of all lanes of a key, as :mod:`core.inspect.browse` does it for people. It costs a seek for each
lane of the key on each page. A stretch ends after as many messages as it had, because behind its last one there may be only
tombstones.

Lanes and their counts are only in memory, so they are copied in steps after the pin. Code that changes a lane shows it first
(:meth:`core.model.ledger.Ledger.show`), and a lane without a copy is copied then. So each copy is of that moment, though the
queues change. The holders of messages are read from the pinned records of the leases.

Cost: some 10 µs a key over all steps. Code that changes lanes meanwhile pays for the copy of each lane that it shows.
Rejected: a copy in one turn (a second for 200,000 keys), and a recovery from pinned families (the memory of a second shard).
"""

from bisect import bisect_left
from collections.abc import Generator, Iterable, Iterator, Mapping
from heapq import merge
from itertools import chain, islice
from struct import Struct
from typing import TYPE_CHECKING, Final, NamedTuple, TypeAlias

from fila_proto_zmq.commands import BrowseView, MessageView, OpenView, ViewBrowsed, ViewedQueue
from fila_proto_zmq.errors import InvalidArgumentError
from fila_proto_zmq.limits import DELIVERY_BYTES_MAX
from fila_worker.core.inspect.backlog import DELAYED, LEASED, PENDING
from fila_worker.core.keys import LAST, MESSAGE_KEY_BYTES, lane_of, pack_u64
from fila_worker.core.model import acked_messages
from fila_worker.core.model.due_index import parse_delayed
from fila_worker.core.model.leases import decode_lease, member_ended
from fila_worker.core.settings import Limits
from fila_worker.core.walking import portions, views_of

if TYPE_CHECKING:
    from fila_worker.core.model.leases import Lease
    from fila_worker.core.model.queues import Queue
    from fila_worker.core.model.state import State
    from fila_worker.core.store import Families, Family, Pin
    from fila_worker.core.walking import View

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


class ViewStretch(NamedTuple):
    """Consecutive messages of one lane: ``left`` of them from ``begin`` on."""

    key: KeySnapshot
    kind: int
    lane: LaneSnapshot
    begin: bytes
    left: int


Cursor: TypeAlias = tuple[str, bytes]
"""Where a page begins: a fairness key; then, packed, the stretch, its first message and its number of remaining messages."""

# --- reading ----------------------------------------------------------------------------------------------------------


def read_page(
    queue: QueueSnapshot, command: BrowseView, pin: "Pin", families: "Families", limits: Limits
) -> tuple[ViewBrowsed, int]:
    """Return a page of the messages that ``command`` asks for and the start of the next page; and its effort."""
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
) -> Iterator[tuple[ViewStretch, int, bytes, bytes]]:
    """Yield messages of some keys in order: the stretch, how many are left of it from this one on, key and value."""
    for stretch in _stretches(queue, command, names):
        for number, (message_key, data) in enumerate(_messages(stretch, command.states, pin, families)):
            yield stretch, stretch.left - number, message_key, data


def _stretches(queue: QueueSnapshot, command: BrowseView, names: Iterable[str]) -> Iterator[ViewStretch]:
    """Yield the stretches of some keys that are left to read, in order."""
    cursor = _unpacked(command.start)
    for name in names:
        key = queue.keys[name]
        resumed = cursor if command.start is not None and name == command.start[0] else None
        for kind, lane in _lanes(key, command.states):
            whole = ViewStretch(key, kind, lane, *_extent(kind, lane))
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


def _messages(
    stretch: ViewStretch, states: list[str] | None, pin: "Pin", families: "Families"
) -> Iterator[tuple[bytes, bytes]]:
    """Return the stored messages of a stretch; without pending ones, only leased ones."""
    if stretch.kind == LATER:
        return _scan(stretch, pin, families.delayed)
    if not _wants(states, PENDING):
        held = [key for key in stretch.lane.holds if key >= stretch.begin]
        firsts = ((wanted, *found) for wanted in held for found in islice(pin.scan(wanted, families.messages), 1))
        return ((key, data) for wanted, key, data in firsts if key == wanted)
    return _scan(stretch, pin, families.messages)


def _scan(stretch: ViewStretch, pin: "Pin", family: "Family") -> Iterator[tuple[bytes, bytes]]:
    end = pack_u64(stretch.lane.id) + LAST
    for message_key, data in islice(pin.scan(stretch.begin, family), stretch.left):
        if message_key >= end:
            return  # the cursor is of another view
        yield message_key, data


def _view(stretch: ViewStretch, message_key: bytes, data: bytes) -> MessageView:
    key, lane = stretch.key, stretch.lane
    if stretch.kind == LATER:
        delayed = parse_delayed(data)
        return MessageView(DELAYED, key.name, key.weight, lane.throttle_keys, delayed.due_ms, *_NOT_HELD, delayed.record)
    hold = lane.holds.get(message_key)
    return MessageView(LEASED if hold else PENDING, key.name, key.weight, lane.throttle_keys, 0, *(hold or _NOT_HELD), data)


LANE_COST: Final = 4
LEASE_COST: Final = 10
BUILD_KEY_COST: Final = 3
"""Effort to copy a lane, to read a lease, and to complete a key."""

HOLDS_AT_ONCE: Final = 2
"""Leased messages that are noted for one unit of effort."""

NAMES_AT_ONCE: Final = 4
"""Names of keys that are sorted for one unit of effort."""

NO_THROTTLE_KEYS: Final[list[str]] = []

Holds = dict[int, dict[bytes, Hold]]
"""Leased messages, by lane."""


class _Copy:
    """The copy of a queue so far."""

    def __init__(self, queue: "Queue") -> None:
        self.queue = queue
        self.keys: dict[str, KeySnapshot] = {}
        """Keys with messages; their lanes are in any order."""
        self.seen: set[int] = set()
        """The ids of all lanes that were shown or visited."""
        self.messages = 0


class SnapshotBuilder:
    """Copies some queues as of the moment of its construction, which may be within a turn."""

    def __init__(self, state: "State", queues: "list[Queue]") -> None:
        self._state = state
        acked_messages.purge(state)
        state.settle_writes()
        families = state.store.families
        self.pin = state.store.pin([families.messages, families.delayed])
        """The messages at that moment."""
        self._lease_pin = state.store.pin([families.leases])
        self._copies = {queue.id: _Copy(queue) for queue in queues}
        self._last_lane = state.counters.lane
        self._leases = list(state.leases.leases.values())
        state.ledger.watches.append(self._copy)

    def freeze(self, command: OpenView) -> "Generator[int, int, tuple[dict[str, QueueSnapshot], list[ViewedQueue]]]":
        """Copy the queues in steps; return the snapshots by name, and a description of each."""
        for copy in self._copies.values():
            yield from self._walk(copy.queue)
        self._state.ledger.watches.remove(self._copy)
        holds = yield from self._read_leases()
        self._lease_pin.close()
        frozen, viewed = {}, []
        for copy in self._copies.values():
            queue, bounds = yield from self._put_together(copy, holds, command)
            frozen[queue.name] = queue
            viewed.append(ViewedQueue(queue.name, copy.messages, bounds))
        return frozen, viewed

    # --- lanes --------------------------------------------------------------------------------------------------------

    def _copy(self, lane: "View", leaving: bytes | None = None) -> None:
        """Copy a lane that is as it was at the moment, except for ``leaving``, a message that was taken out of its line."""
        copy = self._copies.get(lane.key.queue.id)
        if copy is None or lane.id > self._last_lane or lane.id in copy.seen:
            return
        copy.seen.add(lane.id)
        if not (lane.stored or lane.delayed):
            return
        throttle_keys = list(lane.throttle_keys) if lane.throttle_keys else NO_THROTTLE_KEYS
        frozen = LaneSnapshot(lane.id, throttle_keys, _start(lane, leaving), lane.stored, lane.delayed, NO_HOLDS)
        copy.messages += lane.stored + lane.delayed
        key = copy.keys.get(lane.key.name)
        if key is None:
            copy.keys[lane.key.name] = KeySnapshot(lane.key.name, lane.key.weight, [frozen])
        else:
            key.lanes.append(frozen)

    def _walk(self, queue: "Queue") -> "Generator[int, int, None]":
        step = max(1, self._state.settings.limits.step_effort // LANE_COST)
        for keys in portions(self._state, queue):
            views = views_of(self._state, keys)
            while piece := list(islice(views, step)):
                for view in piece:
                    self._copy(view)
                yield LANE_COST * len(piece)

    # --- leases -------------------------------------------------------------------------------------------------------

    def _read_leases(self) -> "Generator[int, int, Holds]":
        holds: Holds = {}
        effort = 0
        for lease in self._leases:
            effort += 1
            if lease.queue.id in self._copies:
                effort += LEASE_COST + self._read_lease(lease, holds) // HOLDS_AT_ONCE
            if effort >= self._state.settings.limits.step_effort:
                yield effort
                effort = 0
        self._state.jobs.charge(effort)
        return holds

    def _read_lease(self, lease: "Lease", holds: Holds) -> int:
        """Note the messages that a lease held at the moment; return the number of messages in its record."""
        wanted = pack_u64(lease.id)
        key, data = next(self._lease_pin.scan(wanted, self._state.store.families.leases))
        assert key == wanted, f"lease {lease.id} was open and has no record"
        record = decode_lease(data)
        common = Hold(record.leased_ms, record.expires_ms, lease.holder.shown)
        for index, start in enumerate(range(0, len(record.keys), MESSAGE_KEY_BYTES)):
            message_key = record.keys[start : start + MESSAGE_KEY_BYTES]
            if member_ended(message_key) is None:
                hold = common._replace(expires_ms=record.extended[index]) if index in record.extended else common
                holds.setdefault(lane_of(message_key), {})[message_key] = hold
        return len(record.keys) // MESSAGE_KEY_BYTES

    # --- keys ---------------------------------------------------------------------------------------------------------

    def _put_together(
        self, copy: _Copy, holds: Holds, command: OpenView
    ) -> "Generator[int, int, tuple[QueueSnapshot, list[str]]]":
        """Return a queue with its keys in the order of their names, and the names that divide the keys into ranges."""
        limits = self._state.settings.limits
        target = max(command.range_messages, -(-copy.messages // limits.view_ranges_max))
        queue, bounds, gathered = QueueSnapshot(copy.queue.name, copy.keys, []), [], 0
        step = max(1, limits.step_effort // BUILD_KEY_COST)
        names = yield from _sorted_runs(copy.keys, limits.view_names_at_once)
        while piece := list(islice(names, step)):
            for name in piece:
                lanes = copy.keys[name].lanes
                if gathered >= target:
                    bounds.append(name)
                    gathered = 0
                for lane in lanes:
                    gathered += lane.stored + lane.delayed
                if holds or len(lanes) > 1:
                    lanes[:] = [_with_holds(lane, holds) for lane in sorted(lanes)]
            queue.names.extend(piece)
            yield BUILD_KEY_COST * len(piece)
        return queue, bounds


def _start(lane: "View", leaving: bytes | None) -> bytes:
    """Return a key from which a scan meets no tombstones of messages that were consumed before."""
    head = lane.peek()
    start = head[0] if head else lane.end
    for first in (lane.tail, leaving, min(lane.claimed, default=None)):
        if first is not None and first < start:
            start = first
    return start


def _with_holds(lane: LaneSnapshot, holds: Mapping[int, dict[bytes, Hold]]) -> LaneSnapshot:
    held = holds.get(lane.id)
    if held is None:
        return lane
    return lane._replace(holds=held if len(held) == 1 else dict(sorted(held.items())))


def _sorted_runs(names: Iterable[str], at_once: int) -> "Generator[int, int, Iterable[str]]":
    """Return names in order: each step sorts a run, and the runs are merged while the result is read."""
    left, runs = iter(names), []
    while run := sorted(islice(left, at_once)):
        runs.append(run)
        yield 1 + len(run) // NAMES_AT_ONCE
    return merge(*runs)
