"""Browsing: a queue's messages as they lie there, page by page, without leasing any.

Key by key in the order of their names, in line order within a key, over all its lanes. What is in memory of small lanes is not
read from disk: a key may have thousands of lanes, and each scan has its price. Pages are remembered by the places of their
messages (:mod:`core.bookmarks`), so that the next one can be asked for by the id of a message that is gone by then.
"""

from collections.abc import Iterator
from heapq import heapify, heappop, merge
from typing import TYPE_CHECKING, Final

from fila_proto_zmq.commands import Browse, Browsed, MessageView
from fila_proto_zmq.errors import InvalidArgumentError
from fila_proto_zmq.limits import BROWSE_MESSAGES_MAX, DELIVERY_BYTES_MAX
from fila_proto_zmq.record import record_id
from fila_worker.core import graveyard
from fila_worker.core.backlog import DELAYED, LEASED, PENDING, Found, as_found, find
from fila_worker.core.keys import FIRST_PLACE, after

if TYPE_CHECKING:
    from fila_worker.core.cold import ColdLane
    from fila_worker.core.effects import Call
    from fila_worker.core.fairness_key import FairnessKey
    from fila_worker.core.lanes import Lane
    from fila_worker.core.leases import Lease
    from fila_worker.core.queues import Queue
    from fila_worker.core.state import State

STATES: Final = (PENDING, DELAYED, LEASED)

FEW_STORED: Final = 64
"""Messages of a lane whose keys are all in memory that are shown without a scan."""


def browse(shard: "State", call: "Call", command: Browse) -> Browsed:
    """A page of messages, key by key in the order of their names, in line order within a key."""
    queue = shard.queue(call.queue)
    if not 1 <= command.limit <= BROWSE_MESSAGES_MAX:
        raise InvalidArgumentError(f"browse of {command.limit} messages: ask for 1 to {BROWSE_MESSAGES_MAX}")
    if command.state is not None and command.state not in STATES:
        raise InvalidArgumentError(f"state {command.state!r}: use one of {', '.join(STATES)}")
    graveyard.purge(shard)
    shard.settle_writes()
    page: list[Found] = []
    room_bytes = DELIVERY_BYTES_MAX
    for found in _from(shard, queue, command):
        if len(page) == command.limit or room_bytes <= 0:
            return Browsed(_views(shard, queue, page), True)
        page.append(found)
        room_bytes -= len(found.record)
    return Browsed(_views(shard, queue, page), False)


def _from(shard: "State", queue: "Queue", command: Browse) -> Iterator[Found]:
    """The messages behind ``after``. Pages are remembered by their last place: it may be gone when the next one is asked for."""
    key_name, place = "", FIRST_PLACE
    if command.after is not None:
        key_name, place = shard.bookmarks.find(queue.id, command.after) or _place_of(shard, queue, command.after)
        place = after(place)
    for name in _names(queue, key_name, command.fairness_key):
        for found in _messages(shard, queue.keys[name], command.state, place if name == key_name else FIRST_PLACE):
            shard.bookmarks.note(queue.id, record_id(found.record), (name, found.key[8:]))
            yield found


def _names(queue: "Queue", start: str, chosen: str | None) -> Iterator[str]:
    """The names of a queue's keys from one on, in order. Few of many are wanted, so they are sorted as they are asked for."""
    if chosen is not None:
        yield from [chosen] if chosen in queue.keys and chosen >= start else []
        return
    names = [name for name in queue.keys if name >= start]
    heapify(names)
    while names:
        yield heappop(names)


def _place_of(shard: "State", queue: "Queue", message_id: tuple[int, int]) -> tuple[str, bytes]:
    found = find(shard, queue, *message_id)
    return found.lane.key.name, found.key[8:]


def _messages(shard: "State", key: "FairnessKey", state: str | None, place: bytes) -> Iterator[Found]:
    """A key's messages from a place on, over all its lanes."""
    if key.cold is not None and not any(_has_any(lane, state) for lane in key.views):
        return iter(())
    small = [lane for lane in key.lanes.values() if lane.tail is None and lane.stored <= FEW_STORED]
    large = [lane for lane in key.lanes.values() if lane.tail is not None or lane.stored > FEW_STORED]
    sources = [_in_memory(shard, small, state, place), *(_stored(shard, lane, state, place) for lane in large)]
    if state in {None, DELAYED}:
        sources += [_delayed(shard, lane, place) for lane in key.lanes.values() if lane.delayed]
    return merge(*sources, key=lambda found: found.key[8:])


def _has_any(lane: "Lane | ColdLane", state: str | None) -> bool:
    return bool({None: lane.stored + lane.delayed, PENDING: lane.pending, DELAYED: lane.delayed}.get(state, len(lane.leased)))


def _in_memory(shard: "State", lanes: "list[Lane]", state: str | None, place: bytes) -> Iterator[Found]:
    """Stored messages of lanes all of whose keys are in memory."""
    line: list[tuple[bytes, str, bytes | None, Lane]] = []
    for lane in lanes:
        start = lane.prefix + place
        if state in {None, PENDING}:
            line += [(key[8:], PENDING, record, lane) for key, record in (*lane.line, *lane.returned) if key >= start]
        if state in {None, LEASED}:
            line += [(key[8:], LEASED, None, lane) for key in lane.leased if key >= start]
    heapify(line)  # no two messages have the same place
    while line:
        place, state, record, lane = heappop(line)
        key = lane.prefix + place
        yield Found(lane, key, state, record or shard.read([key])[0])


def _stored(shard: "State", lane: "Lane", state: str | None, place: bytes) -> Iterator[Found]:
    """Stored messages of one lane, read from disk."""
    start = max(lane.prefix + place, lane.floor)
    if state == LEASED:
        for key in sorted(key for key in lane.leased if key >= start):
            yield Found(lane, key, LEASED, shard.read([key])[0])
    elif state != DELAYED:
        for key, record in shard.store.scan(start, lane.end, shard.store.families.messages):
            leased = key in lane.leased
            if not (leased and state == PENDING):
                yield Found(lane, key, LEASED if leased else PENDING, record)


def _delayed(shard: "State", lane: "Lane", place: bytes) -> Iterator[Found]:
    for key, value in shard.store.scan(lane.prefix + place, lane.end, shard.store.families.delayed):
        yield as_found(lane, key, value)


def _views(shard: "State", queue: "Queue", page: list[Found]) -> list[MessageView]:
    leases = _leases_of(shard, queue, {found.key for found in page if found.state == LEASED})
    return [_view(found, leases.get(found.key)) for found in page]


def _leases_of(shard: "State", queue: "Queue", keys: set[bytes]) -> "dict[bytes, tuple[Lease, int]]":
    """The leases of some messages, each with the message's index in it."""
    if not keys:
        return {}
    return {
        key: (lease, index)
        for lease in shard.leases.leases.values()
        if lease.queue is queue
        for index, key, _ in lease.open_members()
        if key in keys
    }


def _view(found: Found, leased: "tuple[Lease, int] | None") -> MessageView:
    key, lane = found.lane.key, found.lane
    lease, index = leased or (None, 0)
    return MessageView(
        found.state,
        key.name,
        key.weight,
        list(lane.throttle_keys),
        found.due_ms,
        lease.leased_ms if lease else 0,
        lease.expiry_of(index) if lease else 0,
        lease.holder.shown if lease else "",
        found.record,
    )
