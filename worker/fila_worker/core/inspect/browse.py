"""Pages of a queue's messages, in the order of their keys' names."""

from collections.abc import Generator, Iterator
from heapq import heapify, heappop, merge, nsmallest
from typing import TYPE_CHECKING, ClassVar, Final

from fila_proto_zmq.commands import Browse, Browsed, MessageView
from fila_proto_zmq.errors import InvalidArgumentError
from fila_proto_zmq.limits import BROWSE_MESSAGES_MAX, DELIVERY_BYTES_MAX
from fila_proto_zmq.record import record_id
from fila_worker.core.inspect.backlog import DELAYED, LEASED, PENDING, BrowseCursors, Found, as_found, find
from fila_worker.core.keys import FIRST_PLACE, after
from fila_worker.core.model import acked_messages
from fila_worker.core.model.component import Component
from fila_worker.core.walking import VIEWS_AT_ONCE, lease_pieces, pieces

if TYPE_CHECKING:
    from fila_worker.core.effects import ClientCall
    from fila_worker.core.jobs import Work
    from fila_worker.core.model.cold_lanes import ColdLane
    from fila_worker.core.model.fairness_keys import FairnessKey
    from fila_worker.core.model.lanes import Lane
    from fila_worker.core.model.queues import Queue
    from fila_worker.core.model.state import State
    from fila_worker.core.walking import View


STATES: Final = (PENDING, DELAYED, LEASED)

NAMES_MAX: Final = 1000
"""Names of keys that are sorted at a time: more would not fit on a page."""

NAMES_AT_ONCE: Final = 4
"""Names that are sorted for one unit of effort."""

KEY_COST: Final = 30
"""Effort to begin with a key: its lanes are merged."""

FEW_STORED: Final = 64
"""A lane with at most this many messages, and all their keys in memory, is shown without a scan."""


def browse(state: "State", call: "ClientCall", command: Browse) -> "Work":
    """Return a page of messages: the keys in the order of their names, and the messages of a key in line order.

    Other work may run between two keys, so a page does not show one instant.
    """
    queue = state.queues.find(call.queue)
    if not 1 <= command.limit <= BROWSE_MESSAGES_MAX:
        raise InvalidArgumentError(f"browse of {command.limit} messages: use 1 to {BROWSE_MESSAGES_MAX}")
    if command.state is not None and command.state not in STATES:
        raise InvalidArgumentError(f"state {command.state!r}: use one of {', '.join(STATES)}")
    start, place = "", FIRST_PLACE
    if command.after is not None:  # a place, not the message: that may be gone
        start, place = state.part(BrowseCursors).find(queue.id, command.after) or (
            yield from _place_of(state, queue, command.after)
        )
        place = after(place)
    page = _Page(command.limit)
    names, effort = _Names(state, queue, command, start), 0
    while not page.over and (name := (yield from names.following())) is not None:
        if effort == 0:
            acked_messages.purge(state)
            state.settle_writes()
        key = queue.keys.get(name)
        before = len(page.found)
        for found in _messages(state, key, command.state, place if name == start else FIRST_PLACE) if key else ():
            state.part(BrowseCursors).note(queue.id, record_id(found.record), (name, found.key[8:]))
            if not page.add(found):
                break
        effort += KEY_COST + len(page.found) - before
        if effort >= state.settings.limits.step_effort:
            yield effort
            effort = 0
    leased = {message_key: view for message_key, view in page.found if view.state == LEASED}
    yield from _name_holders(state, queue, leased)
    return Browsed([view for _, view in page.found], page.over)


class _Page:
    """The messages of a page, and whether there are more: the first message that does not fit shows it."""

    def __init__(self, limit: int) -> None:
        self.found: list[tuple[bytes, MessageView]] = []
        """Messages with their keys. These are copies, so the shard may change meanwhile."""
        self.over = False
        self._limit = limit
        self._room_bytes = DELIVERY_BYTES_MAX

    def add(self, found: Found) -> bool:
        """Put a message on the page; return False if it does not fit."""
        if len(self.found) == self._limit or self._room_bytes <= 0:
            self.over = True
            return False
        self.found.append((found.key, _view(found)))
        self._room_bytes -= len(found.record)
        return True


class _Names:
    """The names of a queue's keys that have wanted messages, in order, from one name on.

    A queue may have a million keys, so one walk over all of them finds the next :data:`NAMES_MAX`.
    """

    def __init__(self, state: "State", queue: "Queue", command: Browse, start: str) -> None:
        self._state, self._queue, self._wanted, self._chosen = state, queue, command.state, command.fairness_key
        self._names: list[str] = []
        self._start, self._included, self._all_found = start, True, False

    def following(self) -> "Generator[int, int, str | None]":
        """Return the next name; None at the end."""
        if not self._names and not self._all_found:
            yield from self._find()
        if not self._names:
            return None
        self._start, self._included = self._names.pop(), False
        return self._start

    def _find(self) -> "Generator[int, int, None]":
        found: list[str] = []
        step = self._state.settings.limits.step_effort
        for views in pieces(self._state, self._queue, step, self._chosen):
            names = {view.key.name for view in views if self._is_wanted(view)}
            if len(found) > NAMES_MAX:
                names = {name for name in names if name < found[-1]}
            if names:
                found = nsmallest(NAMES_MAX + 1, names.union(found))
                self._state.jobs.charge((len(found) + len(names)) // NAMES_AT_ONCE)
            yield 1 + len(views) // VIEWS_AT_ONCE
        self._all_found = len(found) <= NAMES_MAX
        self._names = found[::-1]

    def _is_wanted(self, lane: "View") -> bool:
        name, wanted = lane.key.name, self._wanted
        if name < self._start or (name == self._start and not self._included):
            return False
        if wanted == PENDING:
            return lane.pending > 0
        if wanted == LEASED:
            return bool(lane.leased)
        return lane.delayed > 0 if wanted == DELAYED else not lane.idle


def _place_of(state: "State", queue: "Queue", message_id: tuple[int, int]) -> "Generator[int, int, tuple[str, bytes]]":
    found = yield from find(state, queue, *message_id)
    return found.lane.key.name, found.key[8:]


def _messages(state: "State", key: "FairnessKey", wanted: str | None, place: bytes) -> Iterator[Found]:
    """Return a key's messages from a place on, over all its lanes."""
    if key.cold is not None and not any(_has_any(lane, wanted) for lane in key.views):
        return iter(())
    small = [lane for lane in key.lanes.values() if lane.tail is None and lane.stored <= FEW_STORED]
    large = [lane for lane in key.lanes.values() if lane.tail is not None or lane.stored > FEW_STORED]
    sources = [_in_memory(state, small, wanted, place), *(_stored(state, lane, wanted, place) for lane in large)]
    if wanted in {None, DELAYED}:
        sources += [_delayed(state, lane, place) for lane in key.lanes.values() if lane.delayed]
    return merge(*sources, key=lambda found: found.key[8:])


def _has_any(lane: "Lane | ColdLane", wanted: str | None) -> bool:
    return bool(
        {None: lane.stored + lane.delayed, PENDING: lane.pending, DELAYED: lane.delayed}.get(wanted, len(lane.leased))
    )


def _in_memory(state: "State", lanes: "list[Lane]", wanted: str | None, place: bytes) -> Iterator[Found]:
    """Yield the stored messages of lanes that have all their keys in memory."""
    line: list[tuple[bytes, str, bytes | None, Lane]] = []
    for lane in lanes:
        start = lane.prefix + place
        if wanted in {None, PENDING}:
            line += [(key[8:], PENDING, record, lane) for key, record in (*lane.line, *lane.returned) if key >= start]
        if wanted in {None, LEASED}:
            line += [(key[8:], LEASED, None, lane) for key in lane.leased if key >= start]
    heapify(line)  # no two messages have the same place
    while line:
        place, found_in, record, lane = heappop(line)
        key = lane.prefix + place
        yield Found(lane, key, found_in, record or state.read([key])[0])


def _stored(state: "State", lane: "Lane", wanted: str | None, place: bytes) -> Iterator[Found]:
    """Yield the stored messages of one lane, read from disk."""
    start = max(lane.prefix + place, lane.floor)
    if wanted == LEASED:
        for key in sorted(key for key in lane.leased if key >= start):
            yield Found(lane, key, LEASED, state.read([key])[0])
    elif wanted != DELAYED:
        for key, record in state.store.scan(start, lane.end, state.store.families.messages):
            leased = key in lane.leased
            if not (leased and wanted == PENDING):
                yield Found(lane, key, LEASED if leased else PENDING, record)


def _delayed(state: "State", lane: "Lane", place: bytes) -> Iterator[Found]:
    for key, value in state.store.scan(lane.prefix + place, lane.end, state.store.families.delayed):
        yield as_found(lane, key, value)


def _name_holders(state: "State", queue: "Queue", views: dict[bytes, MessageView]) -> "Generator[int, int, None]":
    """Enter the lease and its holder into the views of leased messages, by key; nothing if the lease ended meanwhile."""
    left = set(views)
    for leases, effort in lease_pieces(state, queue) if views else ():
        for lease in leases:
            for index, message_key, _ in lease.open_members():
                if message_key in left:
                    left.remove(message_key)
                    view = views[message_key]
                    view.leased_ms, view.lease_expires_ms = lease.leased_ms, lease.expiry_of(index)
                    view.consumer = lease.holder.shown
        if not left:
            state.jobs.charge(effort)
            break
        yield effort


def _view(found: Found) -> MessageView:
    key, lane = found.lane.key, found.lane
    return MessageView(found.state, key.name, key.weight, list(lane.throttle_keys), found.due_ms, 0, 0, "", found.record)


class Browses(Component):
    """The command that shows pages of messages."""

    verbs: ClassVar = {Browse: browse}
