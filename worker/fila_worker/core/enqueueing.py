"""Accepting messages: with :mod:`core.delivery`, the hottest loop of the broker.

One message costs about 1.5 µs here plus 2.5 µs in RocksDB, so the loop over a usual batch is one function over locals: what
is the same for the whole batch is looked up, and checked, once. Dedup ids cost about 2 µs more, nearly all of it in RocksDB.
Batches with anything out of the ordinary (delays, leases of their own, times to live, the same dedup id twice, costs, limits in
sight, values out of bounds) go message by message.
"""

from collections.abc import Iterable, Sequence
from itertools import repeat
from operator import itemgetter
from typing import TYPE_CHECKING

import msgspec

from fila_proto_zmq.codec import to_fault
from fila_proto_zmq.commands import Enqueue, Enqueued, IntColumn
from fila_proto_zmq.errors import FilaError, InvalidArgumentError, InvalidFrameError
from fila_proto_zmq.ids import VARIANT, high_half, low_half
from fila_proto_zmq.limits import (
    COST_MILLI_DEFAULT,
    FRAME_MESSAGES_MAX,
    HEADERS_BYTES_MAX,
    PRIORITY_MAX,
    PRIORITY_MIN,
    WEIGHT_MAX,
)
from fila_proto_zmq.record import FIXED_BYTES, PLAIN, pack_fixed
from fila_worker.core import policy, quotas
from fila_worker.core.accepting import Faults, Known, ThrottleKeys, accept_one_by_one, check_message, wrong_throttle_keys
from fila_worker.core.dedup import Dedup, check_window
from fila_worker.core.effects import answer
from fila_worker.core.keys import PRIORITY_BIAS, pack_place
from fila_worker.core.lanes import ENTRY_BYTES

if TYPE_CHECKING:
    from fila_worker.core.effects import Call
    from fila_worker.core.queues import Queue
    from fila_worker.core.state import State

RECORD_BYTES = FIXED_BYTES + ENTRY_BYTES
"""What a plain record costs in memory beside its envelope."""
from_bytes = int.from_bytes


def enqueue(shard: "State", call: "Call", command: Enqueue) -> Enqueued | None:
    """Store a batch of messages. A bad one gets a fault and takes no id; the others are in."""
    queue = shard.queue(call.queue)
    if queue.is_dead_letter:
        raise InvalidArgumentError(f"{queue.name!r} is a dead letter queue: only the broker puts messages there")
    if len(command.envelopes) > FRAME_MESSAGES_MAX:
        raise InvalidFrameError(
            f"{len(command.envelopes)} messages in one frame: send at most {FRAME_MESSAGES_MAX}, in several frames"
        )
    check_window(command.dedup_window_ms)
    quotas.refuse_if_disk_is_full(shard)
    if not shard.namespaces.admit(call, command, shard.runtime.limits):
        return None
    return _take_in(shard, queue, command, call.now_ms)


def enqueue_held(shard: "State", call: "Call", command: Enqueue, count: int, error: FilaError | None) -> None:
    """Go on with an enqueue that waited for its quota: store the first ``count`` messages, refuse the others."""
    try:
        queue = shard.queue(call.queue)  # it may be gone meanwhile
        enqueued = _take_in(shard, queue, _only(command, range(count)), call.now_ms)
        if error is not None:
            enqueued.faults += [(index, to_fault(error)) for index in range(count, len(command.envelopes))]
    except FilaError as refused:
        shard.effects.append(answer(call, command, refused))
    else:
        shard.effects.append(answer(call, command, enqueued))


def _only(command: Enqueue, indexes: Sequence[int]) -> Enqueue:
    """Some messages of a batch, a batch of their own."""
    total = len(command.envelopes)
    if len(indexes) == total:
        return command
    columns = {name: getattr(command, name) for name in command.__struct_fields__}
    whole = {name: column for name, column in columns.items() if isinstance(column, list) and len(column) == total}
    return msgspec.structs.replace(command, **{name: [column[i] for i in indexes] for name, column in whole.items()})


def _take_in(shard: "State", queue: "Queue", command: Enqueue, now_ms: int) -> Enqueued:
    counters = shard.counters
    counters.clock_ms = max(counters.clock_ms, now_ms)
    high = high_half(counters.clock_ms, shard.index)
    first = counters.sequence + 1
    command = policy.decide(queue, command, now_ms)
    dedup = Dedup(shard, queue, command, now_ms) if command.dedup_id != "" else None
    throttle_sets = _throttle_sets(command)
    known: Known = []
    if throttle_sets is None or not _is_usual(shard, queue, command) or (dedup and not dedup.usual):
        faults, known = accept_one_by_one(shard, queue, command, dedup, high, now_ms)
    elif dedup:
        faults, known = _accept_new(shard, queue, command, throttle_sets, dedup, high, now_ms)
    else:
        faults = _accept(shard, queue, command, throttle_sets, high, now_ms)
    shard.offer(queue)
    return Enqueued(high, low_half(first), counters.sequence + 1 - first, faults, known)


# --- the usual case ---------------------------------------------------------------------------------------------------


def _accept(
    shard: "State", queue: "Queue", command: Enqueue, throttle_sets: Iterable[ThrottleKeys], high: int, now_ms: int
) -> Faults:
    """Take in a batch of messages that are due now, the usual case. Returns the faults by index.

    ``counters.sequence`` grows by the number accepted. All columns were checked at once, and a known key's name when it was
    opened; so what is left to look at in each message is its envelope.
    """
    faults: Faults = []
    payload_max = shard.settings.max_payload_bytes
    unquestioned = min(payload_max, HEADERS_BYTES_MAX)
    keys, changed = queue.keys, shard.ledger.changed
    messages, put = shard.store.families.messages, shard.batch.put
    first = sequence = shard.counters.sequence
    room, buffered, size_bytes = shard.settings.buffer_bytes - shard.buffered_bytes, 0, 0
    count = len(command.envelopes)
    rows = zip(
        command.envelopes,
        policy.spread(command.fairness_key, count),
        policy.spread(command.weight, count),
        policy.spread(command.priority, count),
        throttle_sets,
        strict=False,
    )
    for envelope, name, weight, priority, throttle_keys in rows:
        key = keys.get(name)
        lane = key.sole if key else None
        if key and (lane is None or lane.throttle_keys is not throttle_keys):  # the usual one without the look-up
            lane = key.lanes.get(throttle_keys)
        headers_bytes = from_bytes(envelope[:4], "big")
        size = len(envelope)
        if lane is None or headers_bytes > size - 4 or size > unquestioned:
            try:
                check_message(envelope, name, payload_max)
                lane = lane or quotas.open_lane(shard, queue, name, throttle_keys, now_ms)
            except FilaError as error:
                faults.append((sequence - first + len(faults), to_fault(error)))
                continue
        if weight and weight != lane.key.weight:
            shard.set_weight(lane.key, weight)
        sequence += 1
        message_key = lane.prefix + pack_place(priority + PRIORITY_BIAS, sequence)
        record = pack_fixed(PLAIN, 0, priority, high, VARIANT | sequence) + envelope
        put(message_key, record, messages)
        lane.stored += 1
        size_bytes += size
        if not lane.changed:
            lane.changed = True
            changed.append(lane)
        line = lane.line
        if lane.tail is None and buffered < room and message_key > (line[-1][0] if line else lane.floor):
            line.append((message_key, record))
            buffered += size + RECORD_BYTES
            if not lane.active:
                shard.rouse(lane, message_key)
        else:
            shard.buffered_bytes += buffered
            shard.line_up(lane, message_key, record)
            buffered, room = 0, shard.settings.buffer_bytes - shard.buffered_bytes
    accepted = sequence - first
    shard.buffered_bytes += buffered
    shard.counters.sequence = sequence
    queue.pending, queue.enqueued = queue.pending + accepted, queue.enqueued + accepted
    queue.grow(size_bytes + accepted * FIXED_BYTES)
    shard.ledger.touch_queue(queue)
    return faults


def _accept_new(
    shard: "State",
    queue: "Queue",
    command: Enqueue,
    throttle_sets: Iterable[ThrottleKeys],
    dedup: Dedup,
    high: int,
    now_ms: int,
) -> tuple[Faults, Known]:
    """Take in a usual batch with dedup ids: those that are known are set aside, the others are a batch like any other."""
    faults: Faults = []
    known: Known = []
    new: Sequence[int] = range(len(dedup.ids))
    if dedup.seen:
        faults, known = _set_aside(shard, command, dedup)
        new = [index for index in new if dedup.ids[index] not in dedup.seen]
        command = _only(command, new)
        throttle_sets = _throttle_sets(command) or ()
    first = shard.counters.sequence + 1
    refused = _accept(shard, queue, command, throttle_sets, high, now_ms)
    stored = dedup.ids
    if dedup.seen or refused:
        faults = sorted(faults + [(new[position], fault) for position, fault in refused], key=itemgetter(0))
        out = {index for index, _ in faults}
        stored = [dedup.ids[index] for index in new if index not in out]
    dedup.remember(stored, high, first)
    return faults, known


def _set_aside(shard: "State", command: Enqueue, dedup: Dedup) -> tuple[Faults, Known]:
    """What to answer for the messages of a usual batch whose dedup ids are known."""
    faults: Faults = []
    known: Known = []
    names = policy.spread(command.fairness_key, len(command.envelopes))
    for index, (envelope, name, dedup_id) in enumerate(zip(command.envelopes, names, dedup.ids, strict=True)):
        earlier = dedup.seen.get(dedup_id)
        if earlier is None:
            continue
        try:
            check_message(envelope, name, shard.settings.max_payload_bytes)
        except FilaError as error:
            faults.append((index, to_fault(error)))
        else:
            known.append((index, *earlier))
    return faults, known


def _is_usual(shard: "State", queue: "Queue", command: Enqueue) -> bool:
    """Whether all messages are due now, have nothing of their own, no limit near, and options within bounds."""
    if (command.delay_ms, command.due_ms, command.lease_ms, command.ttl_ms) != (0, 0, 0, 0):
        return False
    if command.cost_milli != COST_MILLI_DEFAULT or queue.options.default_ttl_ms:
        return False
    if not (_within(command.weight, -WEIGHT_MAX, WEIGHT_MAX) and _within(command.priority, PRIORITY_MIN, PRIORITY_MAX)):
        return False
    _note_priorities(shard, queue, command.priority)
    return quotas.has_room_for_all(shard, queue, command)


def _within(column: IntColumn, least: int, most: int) -> bool:
    if isinstance(column, list):
        return not column or (min(column) >= least and max(column) <= most)
    return least <= column <= most


def _note_priorities(shard: "State", queue: "Queue", column: IntColumn) -> None:
    if queue.note_priorities(set(column) if isinstance(column, list) else {column}):
        shard.save_queue(queue)


def _throttle_sets(command: Enqueue) -> Iterable[ThrottleKeys] | None:
    """Each message's set of throttle keys; None if one of them will not do."""
    if not command.throttle_keys:
        return repeat((), len(command.envelopes))
    canonical: dict[ThrottleKeys, ThrottleKeys] = {}
    sets = []
    for throttle_keys in policy.spread_keys(command.throttle_keys, len(command.envelopes)):
        given = tuple(throttle_keys)
        found = canonical.get(given)
        if found is None:
            if wrong_throttle_keys(given):
                return None
            found = canonical[given] = policy.canonical(given)
        sets.append(found)
    return sets
