"""Replacement: a message with a known dedup id takes over the place of the one that waits under that id.

The payload, the headers and the delay are replaced. The id, the place in line and all other options stay. If that message is
leased or gone, a consumer has or had the old content, and a confirmed update must be stored somewhere. So the new one is
stored as another message, which has the dedup id from then on.

The dedup id's record has the message's key if the first enqueue allowed replacement. Otherwise, and if it is not there
because it was redriven, the message is looked up in the lanes of its fairness key. If it is not found there, it stays beside
the new one. Rejected: a search of the whole queue, because a producer could ask for one with each message.
"""

from collections.abc import Iterator
from itertools import chain, islice
from typing import TYPE_CHECKING, Final, NamedTuple

from fila_proto_zmq.ids import sequence
from fila_proto_zmq.limits import PRIORITY_MIN
from fila_proto_zmq.record import Record, pack_record, record_id
from fila_worker.core.enqueue import quotas
from fila_worker.core.keys import PRIORITY_BIAS, first_of_all, lane_of, pack_place, place_of
from fila_worker.core.model.due_index import Delayed, DueKind, delay, lift, parse_delayed
from fila_worker.core.model.lanes import unpack_stored

if TYPE_CHECKING:
    from fila_worker.core.enqueue.dedup import Dedup
    from fila_worker.core.enqueue.insert import InsertedMessage
    from fila_worker.core.model.lanes import Lane
    from fila_worker.core.model.queues import Queue
    from fila_worker.core.model.state import State

PLACES_MAX: Final = 128
"""Places in which a message is looked up, some microseconds each: the priorities of its queue in the lanes of its key."""

LOOK_UP_COST: Final = 4
BYTES_READ: Final = 4096
"""Effort to look up a message, and the bytes that are read for one unit of effort."""


class Hint(NamedTuple):
    """Where the first message of a dedup id may be: the options of the one that replaces it."""

    key_name: str
    throttle_keys: tuple[str, ...]
    priority: int


class _Found(NamedTuple):
    """A message that may be replaced. ``delayed``: None for a pending one."""

    lane: "Lane"
    key: bytes
    record: bytes
    delayed: Delayed | None


class Replacements:
    """The messages that a batch replaces or stores, by dedup id: one id may come several times."""

    def __init__(self, state: "State", queue: "Queue", dedup: "Dedup", now_ms: int) -> None:
        self._state, self._queue, self._dedup, self._now_ms = state, queue, dedup, now_ms
        self._found: dict[str, _Found | None] = {}
        self._new: set[str] = set()
        self._replaced: dict[str, bytes] = {}

    def stored(self, name: str, stored: "InsertedMessage") -> None:
        """Note that the message of a dedup id was stored with this batch."""
        delayed = Delayed(stored.due_ms, False, False, stored.record) if stored.due_ms else None
        self._found[name] = _Found(stored.lane, stored.key, stored.record, delayed)
        self._new.add(name)

    def replace(self, name: str, hint: Hint, envelope: bytes, deliver_ms: int) -> bool:
        """Replace the message of a known dedup id. Return False if it is leased or gone, or was not found.

        Raise :class:`~fila_proto_zmq.errors.OverloadedError` if its queue has no room for more bytes.
        """
        if name not in self._found:
            self._found[name] = self._find(name, hint)
        found = self._found[name]
        if found is None:
            return False
        self._found[name] = _replace(self._state, found, bytes(envelope), deliver_ms, self._now_ms)
        if name not in self._new:
            self._replaced[name] = found.key
        return True

    def remember(self) -> None:
        """Make durable where the messages are. Call it when the dedup ids of the batch are remembered."""
        for name in self._new:
            found = self._found[name]
            assert found is not None, f"the message of dedup id {name!r} was stored, and is not there"
            self._dedup.place(name, *record_id(found.record), found.key)
        for name, message_key in self._replaced.items():
            self._dedup.renew(name, message_key)

    # --- finding ------------------------------------------------------------------------------------------------------

    def _find(self, name: str, hint: Hint) -> _Found | None:
        """Return a committed message; None if it is leased or gone."""
        state, message_id = self._state, self._dedup.seen[name]
        for lane, message_key in self._places(name, hint):
            state.jobs.charge(LOOK_UP_COST)
            record = state.store.get(message_key, state.store.families.messages)
            if record is not None and record_id(record) == message_id:
                state.jobs.charge(len(record) // BYTES_READ)
                waits = message_key not in lane.leased and message_key not in lane.acked
                return _Found(lane, message_key, record, None) if waits else None
            value = state.store.get(message_key, state.store.families.delayed) if lane.delayed else None
            delayed = parse_delayed(value) if value is not None else None
            if delayed is not None and record_id(delayed.record) == message_id:
                state.jobs.charge(len(delayed.record) // BYTES_READ)
                return _Found(lane, message_key, delayed.record, delayed)
        return None

    def _places(self, name: str, hint: Hint) -> "Iterator[tuple[Lane, bytes]]":
        """Return where the message may be."""
        known = self._dedup.places.get(name)
        if known is not None:
            lane = self._state.find_lane(lane_of(known))
            if lane is not None and lane.key.queue is self._queue:
                yield lane, known
                yield lane, first_of_all(known)
        yield from islice(self._likely(self._dedup.seen[name], hint), PLACES_MAX)  # it was redriven, or is of mode "first"

    def _likely(self, message_id: tuple[int, int], hint: Hint) -> "Iterator[tuple[Lane, bytes]]":
        queue = self._queue
        key = queue.keys.get(hint.key_name)
        if key is None or not self._state.is_own(queue, *message_id):
            return
        lanes = key.lanes
        same = lanes.get(hint.throttle_keys)
        priorities = {hint.priority} if queue.priorities is None else queue.priorities
        places = [pack_place(priority + PRIORITY_BIAS, sequence(message_id[1])) for priority in sorted(priorities)]
        for lane in chain([same] if same is not None else [], islice(lanes.values(), PLACES_MAX)):
            for place in places:
                yield lane, lane.prefix + place


# --- replacing --------------------------------------------------------------------------------------------------------


def _replace(state: "State", found: _Found, envelope: bytes, deliver_ms: int, now_ms: int) -> _Found:
    """Replace the payload, the headers and the delay of a message. Return it as it is now."""
    lane, key, old, delayed = found
    record = unpack_stored(old)
    record.envelope = envelope
    packed = pack_record(record)
    quotas.check_growth(state, lane.key.queue, len(packed) - len(old))
    if delayed is not None:
        lift(state, lane, key, delayed)
        state.due_index.remove(delayed.due_ms, DueKind.RELEASE, key, state.batch)
    else:
        state.ledger.show(lane)
        state.buffers.remove(lane, {key})
        if deliver_ms <= now_ms:
            _rewrite(state, lane, key, len(old), packed)
            return _Found(lane, key, packed, None)
        state.take_out(lane, key, len(old))
    if deliver_ms <= now_ms:
        state.put_in_line(lane, place_of(key), packed)
        if delayed is not None and delayed.retrying:
            state.release_slot(lane.key)
        return _Found(lane, key, packed, None)
    retrying = _keeps_others_waiting(lane, key, record) if delayed is None else delayed.retrying
    if delayed is None and retrying:
        lane.key.held += 1
        state.refresh_eligibility(lane.key)
    delay(state, lane, key, packed, deliver_ms, retrying=retrying)
    return _Found(lane, key, packed, Delayed(deliver_ms, retrying, False, packed))


def _rewrite(state: "State", lane: "Lane", key: bytes, old_bytes: int, record: bytes) -> None:
    """Store a pending message that is in no line with another record, in its place in line."""
    queue = lane.key.queue
    state.batch.put(key, record, state.store.families.messages)
    queue.grow(len(record))
    queue.shrink(old_bytes)
    state.ledger.touch_queue(queue)
    state.line_up(lane, key, record)


def _keeps_others_waiting(lane: "Lane", key: bytes, record: Record) -> bool:
    """Return whether the others of a strictly ordered key wait for a pending message, because it was delivered before."""
    moved_up = key == first_of_all(key) and (record.priority != PRIORITY_MIN or record.attempts > 0)
    return moved_up and lane.key.queue.options.max_in_flight_per_key == 1
