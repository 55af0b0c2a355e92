"""Enqueueing messages: with :mod:`core.deliver.delivery`, the hottest loop of the broker.

One message costs about 1.5 µs here and 2.5 µs in RocksDB. So the loop over a usual batch is one function over locals, and
everything common to the whole batch is looked up and checked once. Dedup ids cost about 2 µs more, nearly all of it in
RocksDB. Unusual batches go message by message: those with delays, lease durations of their own, times to live, the same dedup
id twice or that replace others, numbers of attempts of their own, costs, a batch, a limit that is near, or values out of
bounds.
"""

from collections.abc import Iterable, Sequence
from itertools import repeat
from operator import itemgetter
from typing import TYPE_CHECKING, Any, ClassVar

import msgspec

from fila_proto_zmq.codec import from_fault, to_fault
from fila_proto_zmq.commands import Enqueue, Enqueued, IntColumn, MakeByTemplate
from fila_proto_zmq.errors import (
    FilaError,
    InvalidArgumentError,
    InvalidFrameError,
    OverloadedError,
    PartitionedError,
    QueueNotFoundError,
    ShardUnavailableError,
)
from fila_proto_zmq.ids import VARIANT, high_half, low_half
from fila_proto_zmq.limits import (
    COST_MILLI_DEFAULT,
    FRAME_MESSAGES_MAX,
    HEADERS_BYTES_MAX,
    PRIORITY_MAX,
    PRIORITY_MIN,
    WEIGHT_MAX,
)
from fila_proto_zmq.names import is_dead_letter, whole_queue
from fila_proto_zmq.record import FIXED_BYTES, PLAIN, pack_fixed
from fila_worker.core.effects import Post
from fila_worker.core.enqueue import policy, quotas
from fila_worker.core.enqueue.closing import check_open
from fila_worker.core.enqueue.dedup import Dedup, check_window
from fila_worker.core.enqueue.enqueue_rates import EnqueueRates, RateVerdict
from fila_worker.core.enqueue.one_by_one import (
    Faults,
    Known,
    Numbers,
    ThrottleKeys,
    accept_one_by_one,
    check_message,
    wrong_throttle_keys,
)
from fila_worker.core.enqueue.retry_after import Returns
from fila_worker.core.enqueue.sequences import Sequences
from fila_worker.core.keys import PRIORITY_BIAS, pack_place
from fila_worker.core.model.component import Component
from fila_worker.core.model.lanes import ENTRY_BYTES

if TYPE_CHECKING:
    from fila_proto_zmq.commands import Grants
    from fila_worker.core.effects import ClientCall
    from fila_worker.core.jobs import Work
    from fila_worker.core.model.lanes import Lane
    from fila_worker.core.model.queues import Queue
    from fila_worker.core.model.state import State

_DEFAULT = Enqueue([])
_USUAL = (
    _DEFAULT.delay_ms, _DEFAULT.due_ms, _DEFAULT.lease_ms, _DEFAULT.throttle_keys, _DEFAULT.cost_milli, _DEFAULT.ttl_ms,
    _DEFAULT.dedup_id, _DEFAULT.dedup_window_ms, _DEFAULT.max_attempts, _DEFAULT.dedup_last, _DEFAULT.batch,
)  # fmt: skip
"""What a usual message has in the columns that may concern some rule: the defaults."""

RECORD_BYTES = FIXED_BYTES + ENTRY_BYTES
"""The memory of a plain record beside its envelope."""
from_bytes = int.from_bytes

IDS_RETRY_S = 0.05
"""When to try again if dedup ids are about to come from another partition."""

MESSAGE_COST = 2
UNUSUAL_COST = 8
LANE_COST = 6
"""The effort of each usual message, of each unusual one, and of each lane that is made."""


def enqueue(state: "State", call: "ClientCall", command: Enqueue) -> "Enqueued | Work | None":
    """Store a batch of messages. An invalid message gets a fault and no id. The others are stored."""
    return enqueue_usual(state, call, command) or _enqueue_unusual(state, call, command)


def enqueue_usual(state: "State", call: "ClientCall", command: Enqueue) -> Enqueued | None:
    """Store a batch of usual messages in a usual queue. None: something may concern them, so :func:`enqueue` has to look."""
    queue = state.queues.get(call.queue)
    if queue is not None and queue.usual and _concerns_nothing(state, queue, command):
        return _take_in_usual(state, call, queue, command)
    return None


def _concerns_nothing(state: "State", queue: "Queue", command: Enqueue) -> bool:
    """Return whether usual messages for a usual queue meet no rule, so that they only have to be stored."""
    count = len(command.envelopes)
    own = (
        command.delay_ms, command.due_ms, command.lease_ms, command.throttle_keys, command.cost_milli, command.ttl_ms,
        command.dedup_id, command.dedup_window_ms, command.max_attempts, command.dedup_last, command.batch,
    )  # fmt: skip
    return (
        own == _USUAL
        and not state.jobs.open
        and not state.disk_is_full
        and queue.refused is None
        and (queue.partition is None or not _is_elsewhere(queue, command))
        and 0 < count <= state.settings.limits.enqueue_step_messages
        and (type(command.fairness_key) is str or len(command.fairness_key) == count)
        and ((command.priority == 0 and command.weight == 0) or _is_within_bounds(command))
        and not (state.has_queue_limits and not quotas.has_room_for_all(state, queue, command))
    )


def _take_in_usual(state: "State", call: "ClientCall", queue: "Queue", command: Enqueue) -> Enqueued:
    """Store usual messages of a usual queue."""
    if command.after is not None:
        state.part(Sequences).go_on(call, command.after)
    if command.priority != 0:
        _note_priorities(state, queue, command.priority)
    counters, lanes, now_ms = state.counters, queue.lanes, call.now_ms
    high, first, count = id_high(state, now_ms), counters.sequence + 1, len(command.envelopes)
    faults = _accept(state, queue, command, repeat((), count), counters, high, now_ms)
    if faults:
        _note_visit(state, call, queue, faults, count, now_ms)
    state.jobs.left -= MESSAGE_COST * count + LANE_COST * (queue.lanes - lanes)
    if queue.demands:
        state.mark_runnable(queue)
    return Enqueued(high, VARIANT | first, counters.sequence + 1 - first, faults)


def _enqueue_unusual(state: "State", call: "ClientCall", command: Enqueue) -> "Enqueued | Work | None":
    queue = known_queue(state, call.queue, call.now_ms)
    if len(command.envelopes) > FRAME_MESSAGES_MAX:
        raise InvalidFrameError(
            f"{len(command.envelopes)} messages in one frame: send at most {FRAME_MESSAGES_MAX}, in several frames"
        )
    if command.dedup_window_ms:
        check_window(command.dedup_window_ms)
    if state.disk_is_full:
        raise quotas.disk_full(state)
    if command.batch and not state.batch_parts.admit(call, command, call.queue if queue is None else queue.counted_as):
        return None  # it continues when the owner of its batch has agreed
    if "/" in call.queue and not state.part(EnqueueRates).admit(call, command, state.runtime.limits):
        return None  # its namespace has a rate: it continues after the bank's answer
    return _take_in(state, call, queue or state.queue_by_template(call.queue, call.now_ms), command)


def queue_for(state: "State", name: str, now_ms: int) -> "Queue":
    """Return the queue that new messages name. A template may make it: call this when they are admitted.

    Raise :class:`QueueNotFoundError`, or :class:`InvalidArgumentError` for a dead letter queue.
    """
    return known_queue(state, name, now_ms) or state.queue_by_template(name, now_ms)


def queue_for_own(state: "State", name: str, now_ms: int) -> "Queue":
    """Return the queue that a message of the broker itself, or one that is moved, names. A template may make it.

    If it is to have several partitions, shard 0 makes it, and the message has to come again: raise
    :class:`ShardUnavailableError`. Clients have shard 0 make it themselves.
    """
    try:
        return queue_for(state, name, now_ms)
    except PartitionedError as error:
        if "template" not in error.details:
            raise
    make = Post(MakeByTemplate(0, whole_queue(name)))
    if state.effects[-1:] != [make]:  # a moved backlog asks once
        state.effects.append(make)
    raise ShardUnavailableError(
        f"queue {whole_queue(name)!r} is being made with partitions, by a template: try again; if that stays so, enqueue() "
        "says why it cannot be made",
        details={"refused": True},
    )


def known_queue(state: "State", name: str, now_ms: int) -> "Queue | None":
    """Return the queue that new messages name; None: it is not there, and a template may make it.

    Raise :class:`QueueNotFoundError`, or :class:`InvalidArgumentError` for a dead letter queue.
    """
    if state.closing:
        check_open(state, name)
    queue = state.entrance(name, now_ms)
    if queue is None:
        if is_dead_letter(name) or state.runtime.templates.find(whole_queue(name)) is None:
            raise state.queues.not_found(name)
    elif queue.is_dead_letter:
        raise InvalidArgumentError(f"{queue.name!r} is a dead letter queue: only the broker puts messages there")
    return queue


def enqueue_one(state: "State", name: str, command: Enqueue, now_ms: int) -> tuple[int, int]:
    """Store one message for the broker itself, at once. Return the halves of its id, or of that with its dedup id.

    Raise the errors of an enqueue. It may commit before it stores the message, not after.
    """
    known_queue(state, name, now_ms)
    if state.disk_is_full:
        raise quotas.disk_full(state)
    if "/" in name:
        state.part(EnqueueRates).admit_one(name, state.runtime.limits)
    queue = queue_for_own(state, name, now_ms)
    state.touch(queue, now_ms)
    command = policy.decide(state, queue, command, now_ms)
    plain = _is_plain(command)
    lanes, high, first = queue.lanes, id_high(state, now_ms), state.counters.sequence + 1
    faults, known = _store(state, queue, command, state.counters, high, now_ms, plain=plain)
    state.jobs.charge(_cost(command, plain=plain) + LANE_COST * (queue.lanes - lanes))
    if faults:
        raise from_fault(faults[0][1])
    state.mark_runnable(queue)
    return known[0][1:] if known else (high, low_half(first))


def enqueue_held(
    state: "State", call: "ClientCall", command: Enqueue, count: int, error: FilaError | None
) -> "Enqueued | Work":
    """Resume an enqueue that waited for its quota: store the first ``count`` messages, refuse the others."""
    refused = [] if error is None else [(index, to_fault(error)) for index in range(count, len(command.envelopes))]
    known = count > 0 or known_queue(state, call.queue, call.now_ms)
    if not known:  # nothing is admitted that a queue is to be made for
        return Enqueued(id_high(state, call.now_ms), low_half(state.counters.sequence + 1), 0, refused)
    queue = queue_for(state, call.queue, call.now_ms)  # it may be deleted since
    outcome = _take_in(state, call, queue, command.only(0, count))
    return _with_refused(outcome, refused) if refused else outcome


def _with_refused(outcome: "Enqueued | Work", refused: Faults) -> "Work":
    enqueued = outcome if isinstance(outcome, Enqueued) else (yield from outcome)
    assert isinstance(enqueued, Enqueued)
    enqueued.faults += refused
    return enqueued


def _take_in(state: "State", call: "ClientCall", queue: "Queue", command: Enqueue) -> "Enqueued | Work":
    """Store a batch at once, as usual. Or in steps, if it is large, its hook may take long, or other batches are waiting."""
    count = len(command.envelopes)
    hooked = queue.hooks is not None and queue.hooks.hooks.has_on_enqueue
    if _is_elsewhere(queue, command):
        raise _has_moved(state, queue)
    if queue.partition is not None and queue.partition.awaits_ids(command):
        raise _too_early(queue)
    many = count > 1 and count > _step_messages(state, command)
    if hooked or many or (state.jobs.open and call.queue in state.jobs):
        return _take_in_steps(state, call, queue, command)
    if command.after is not None:
        state.part(Sequences).go_on(call, command.after)
    plain = _is_plain(command)
    lanes, high, first = queue.lanes, id_high(state, call.now_ms), state.counters.sequence + 1
    faults, known = _store(state, queue, command, state.counters, high, call.now_ms, plain=plain)
    _note_visit(state, call, queue, faults, count, call.now_ms)
    state.jobs.charge(_cost(command, plain=plain) + LANE_COST * (queue.lanes - lanes))
    state.mark_runnable(queue)
    return Enqueued(high, low_half(first), state.counters.sequence + 1 - first, faults, known)


def _step_messages(state: "State", command: Enqueue) -> int:
    """Return how many messages are stored in one step. To replace one reads the old one, which may be large."""
    limits = state.settings.limits
    return limits.enqueue_step_messages if command.dedup_last is False else limits.due_read_messages_max


class _Reserved:
    """Sequence numbers reserved for a batch, so that its ids are consecutive though others are stored between its steps."""

    def __init__(self, state: "State", count: int) -> None:
        self.sequence = state.counters.sequence
        state.counters.sequence += count


def _take_in_steps(state: "State", call: "ClientCall", queue: "Queue", command: Enqueue) -> "Work":
    """Store a batch part by part. Messages for which there is no time are refused, not left open.

    A batch that waited for too long is refused whole, and may be sent again. What it waited for the batch before it in its
    sequence does not count: the client has seen that one's answer. A batch of a sequence that is cut ends the sequence, so
    that the client can send the rest before what follows.
    """
    now_ms, limits, total = (yield 0), state.settings.limits, len(command.envelopes)
    sequences = state.part(Sequences)
    if now_ms - sequences.waits_since_ms(call, command.after, now_ms) >= limits.enqueue_ms_max:
        raise _too_late(queue)
    if queue.gone:
        if state.runtime.templates.find(call.queue) is None:
            raise _deleted(queue)
        queue = queue_for(state, call.queue, now_ms)
    if _is_elsewhere(queue, command):
        raise _has_moved(state, queue)
    if queue.partition is not None and queue.partition.awaits_ids(command):
        raise _too_early(queue)
    if command.after is not None:
        sequences.go_on(call, command.after)
    began_ms = now_ms  # a batch behind others still has its whole time
    high, numbers = id_high(state, now_ms), _Reserved(state, total)
    first, done = numbers.sequence + 1, 0
    faults: Faults = []
    known: Known = []
    late = False
    while done < total:
        lanes = queue.lanes
        part = command.only(done, done + _step_messages(state, command))
        part = policy.decide(state, queue, part, now_ms)
        plain = _is_plain(part)
        new_faults, new_known = _store(state, queue, part, numbers, high, now_ms, plain=plain)
        _note_visit(state, call, queue, new_faults, len(part.envelopes), now_ms)
        faults += [(done + index, fault) for index, fault in new_faults]
        known += [(done + index, *ids) for index, *ids in new_known]  # type: ignore[misc]
        done += len(part.envelopes)
        state.mark_runnable(queue)
        effort = _cost(part, plain=plain) + LANE_COST * (queue.lanes - lanes)
        if done == total:
            state.jobs.charge(effort)
            break
        now_ms = yield effort
        error = _deleted(queue) if queue.gone else _has_moved(state, queue) if _is_elsewhere(queue, command) else None
        late = error is None and now_ms - began_ms >= limits.enqueue_ms_max
        if late:
            error = _too_late(queue)
        if error is not None:
            faults += [(index, to_fault(error)) for index in range(done, total)]
            break
    if late:
        sequences.cut(call)
    else:
        sequences.stored(call, now_ms)
    return Enqueued(high, low_half(first), numbers.sequence + 1 - first, faults, known)


def _note_visit(state: "State", call: "ClientCall", queue: "Queue", faults: Faults, count: int, now_ms: int) -> None:
    """Adjust the dates of refused clients to the outcome of a batch, and put the date of this client into its faults."""
    returns = state.part(Returns)
    if returns.dates:
        returns.came(queue, call.client, now_ms, taken=4 * len(faults) <= count)
    if faults:
        returns.say_when(queue, call.client, faults, now_ms)


def _cost(command: Enqueue, *, plain: bool) -> int:
    return (MESSAGE_COST if plain else UNUSUAL_COST) * len(command.envelopes)


def _is_plain(command: Enqueue) -> bool:
    """Return whether no message has times, a number of attempts, or a batch of its own, or replaces another one."""
    own = (command.delay_ms, command.due_ms, command.lease_ms, command.ttl_ms, command.max_attempts)
    return own == (0, 0, 0, 0, 0) and command.dedup_last is False and not command.batch


def _is_elsewhere(queue: "Queue", command: Enqueue) -> bool:
    """Return whether some messages are for another partition, as their client knows it, or this shard: one of them lags.

    A hook may decide the keys otherwise. But once the number of partitions has changed, clients that know different ones would send
    messages of a key to different partitions, and their order would be lost.
    """
    partition = queue.partition
    if partition is None or (partition.hooked and not partition.has_changed):
        return False
    names = command.dedup_id if partition.has_all_keys else command.fairness_key
    return (
        not partition.is_entrance_for(names) if isinstance(names, str) else not all(map(partition.is_entrance_for, {*names}))
    )


def _has_moved(state: "State", queue: "Queue") -> FilaError:
    definition = state.runtime.definitions.find(queue.name)
    return _deleted(queue) if definition is None else definition.refusal(queue.name)


def _too_early(queue: "Queue") -> FilaError:
    return ShardUnavailableError(
        f"{queue.name!r} does not know yet which dedup ids were used before the number of partitions changed: try again",
        retry_after=IDS_RETRY_S,
        details={"queue": queue.name, "refused": True},
    )


def _deleted(queue: "Queue") -> FilaError:
    return QueueNotFoundError(f"queue {queue.name!r} was deleted")


def _too_late(queue: "Queue") -> FilaError:
    return OverloadedError(
        f"not stored, because there was no time: enqueues of {queue.name!r} take long, because of its on_enqueue hook or "
        "because many are under way; send smaller batches, later, or make the hook faster",
        retry_after=1.0,
        details={"queue": queue.name, "refused": True, "late": True},
    )


def id_high(state: "State", now_ms: int) -> int:
    """Return the first half of the ids of messages that are stored now."""
    counters = state.counters
    counters.clock_ms = max(counters.clock_ms, now_ms)
    return high_half(counters.clock_ms, state.index)


def _store(
    state: "State", queue: "Queue", command: Enqueue, numbers: Numbers, high: int, now_ms: int, *, plain: bool
) -> tuple[Faults, Known]:
    """Store messages with the next of some sequence numbers, without invalid ones. ``plain``: see :func:`_is_plain`."""
    if command.batch and (refusal := state.batch_parts.refusal(queue.counted_as, command.batch)) is not None:
        return [(index, to_fault(refusal)) for index in range(len(command.envelopes))], []
    dedup = Dedup(state, queue, command, now_ms) if command.dedup_id != "" else None
    throttle_sets = _throttle_sets(command)
    if throttle_sets is None or not plain or not _is_usual(state, queue, command) or (dedup and not dedup.usual):
        return accept_one_by_one(state, queue, command, dedup, numbers, high, now_ms)
    if dedup:
        return _accept_new(state, queue, command, throttle_sets, dedup, numbers, high, now_ms)
    return _accept(state, queue, command, throttle_sets, numbers, high, now_ms), []


# --- the usual case ---------------------------------------------------------------------------------------------------


def _accept(
    state: "State",
    queue: "Queue",
    command: Enqueue,
    throttle_sets: Iterable[ThrottleKeys],
    numbers: Numbers,
    high: int,
    now_ms: int,
) -> Faults:
    """Take in a batch of messages that are due at once, the usual case. Return the faults by index.

    ``numbers.sequence`` grows by the number of accepted messages. All columns, and the names of known keys, were checked
    before.
    """
    faults: Faults = []
    messages, columns = state.store.families.messages, _columns(command)
    unquestioned = min(state.settings.max_payload_bytes, HEADERS_BYTES_MAX)
    keys, put, buffers, ledger = queue.keys, state.batch.put, state.buffers, state.ledger
    sequence = first = numbers.sequence
    room, buffered, size_bytes = buffers.room_bytes, 0, 0
    for envelope, name, weight, priority, throttle_keys in zip(command.envelopes, *columns, throttle_sets, strict=False):
        key = keys.get(name)
        lane = key.only_lane if key else None
        if key and (lane is None or lane.throttle_keys is not throttle_keys):  # the usual lane without the look-up
            lane = key.lanes.get(throttle_keys)
        size = len(envelope)
        if lane is None or from_bytes(envelope[:4], "big") > size - 4 or size > unquestioned:
            place = _checked_lane(state, queue, lane, (envelope, name, throttle_keys), now_ms)
            if isinstance(place, FilaError):
                faults.append((sequence - first + len(faults), to_fault(place)))
                continue
            lane = place
        if weight and weight != lane.key.weight:
            state.set_weight(lane.key, weight)
        sequence += 1
        message_key = lane.prefix + pack_place(priority + PRIORITY_BIAS, sequence)
        record = pack_fixed(PLAIN, 0, priority, high, VARIANT | sequence) + envelope
        put(message_key, record, messages)
        if not lane.changed:
            if ledger.watches:
                ledger.show(lane)
            lane.changed = True
            ledger.changed.append(lane)
        lane.stored += 1
        size_bytes += size
        line, tail = lane.line, lane.tail
        if tail is None and buffered < room and message_key > (line[-1][0] if line else lane.floor):
            line.append((message_key, record))
            buffered += size + RECORD_BYTES
            if not lane.active:
                state.rouse(lane, message_key)
        elif tail is None or message_key < tail or not lane.active:  # else it is read from disk when its turn comes
            buffers.used_bytes += buffered
            state.line_up(lane, message_key, record)
            buffered, room = 0, buffers.room_bytes
    buffers.used_bytes += buffered
    numbers.sequence = sequence
    queue.count_enqueued(sequence - first, size_bytes + (sequence - first) * FIXED_BYTES)
    ledger.touch_queue(queue)
    return faults


def _columns(command: Enqueue) -> list[Iterable[Any]]:
    """Return the fairness key, weight and priority of each message. Usually each column is one value for all of them."""
    count, columns = len(command.envelopes), (command.fairness_key, command.weight, command.priority)
    if list not in map(type, columns):
        return [*map(repeat, columns)]
    return [policy.spread(column, count) if type(column) is list else repeat(column) for column in columns]


def _checked_lane(
    state: "State", queue: "Queue", lane: "Lane | None", message: tuple[bytes, str, ThrottleKeys], now_ms: int
) -> "Lane | FilaError":
    """Return the lane of a message, ``(envelope, key's name, throttle keys)``, that is new or unusual; or why it is
    refused."""
    envelope, name, throttle_keys = message
    try:
        check_message(envelope, name, state.settings.max_payload_bytes)
        return lane or quotas.open_lane(state, queue, name, throttle_keys, now_ms)
    except FilaError as error:
        return error


def _accept_new(
    state: "State",
    queue: "Queue",
    command: Enqueue,
    throttle_sets: Iterable[ThrottleKeys],
    dedup: Dedup,
    numbers: Numbers,
    high: int,
    now_ms: int,
) -> tuple[Faults, Known]:
    """Take in a usual batch with dedup ids. Messages with known ids are set aside. The others are an ordinary batch."""
    faults: Faults = []
    known: Known = []
    new: Sequence[int] = range(len(dedup.ids))
    if dedup.seen:
        faults, known = _set_aside(state, command, dedup)
        new = [index for index in new if dedup.ids[index] not in dedup.seen]
        command = _chosen(command, new)
        throttle_sets = _throttle_sets(command) or ()
    first = numbers.sequence + 1
    refused = _accept(state, queue, command, throttle_sets, numbers, high, now_ms)
    stored = dedup.ids
    if dedup.seen or refused:
        faults = sorted(faults + [(new[position], fault) for position, fault in refused], key=itemgetter(0))
        out = {index for index, _ in faults}
        stored = [dedup.ids[index] for index in new if index not in out]
    dedup.remember(stored, high, first)
    return faults, known


def _chosen(command: Enqueue, indexes: Sequence[int]) -> Enqueue:
    """Return some messages of a batch as a batch."""
    total = len(command.envelopes)
    columns = {name: getattr(command, name) for name in command.__struct_fields__}
    whole = {name: column for name, column in columns.items() if isinstance(column, list) and len(column) == total}
    return msgspec.structs.replace(command, **{name: [column[i] for i in indexes] for name, column in whole.items()})


def _set_aside(state: "State", command: Enqueue, dedup: Dedup) -> tuple[Faults, Known]:
    """Return the answer for the messages of a usual batch whose dedup ids are known."""
    faults: Faults = []
    known: Known = []
    names = policy.spread(command.fairness_key, len(command.envelopes))
    for index, (envelope, name, dedup_id) in enumerate(zip(command.envelopes, names, dedup.ids, strict=True)):
        earlier = dedup.seen.get(dedup_id)
        if earlier is None:
            continue
        try:
            check_message(envelope, name, state.settings.max_payload_bytes)
        except FilaError as error:
            faults.append((index, to_fault(error)))
        else:
            known.append((index, *earlier))
    return faults, known


def _is_usual(state: "State", queue: "Queue", command: Enqueue) -> bool:
    """Return whether all of these plain messages are due at once, meet no limit, and are within bounds."""
    if command.cost_milli != COST_MILLI_DEFAULT or queue.options.default_ttl_ms:
        return False
    if not _is_within_bounds(command):
        return False
    _note_priorities(state, queue, command.priority)
    return not state.has_queue_limits or quotas.has_room_for_all(state, queue, command)


def _is_within_bounds(command: Enqueue) -> bool:
    """Return whether weights and priorities are within their bounds."""
    count = len(command.envelopes)
    return _within(command.weight, -WEIGHT_MAX, WEIGHT_MAX, count) and _within(
        command.priority, PRIORITY_MIN, PRIORITY_MAX, count
    )


def _within(column: IntColumn, least: int, most: int, count: int) -> bool:
    if isinstance(column, list):
        return len(column) == count and (not column or (min(column) >= least and max(column) <= most))
    return least <= column <= most


def _note_priorities(state: "State", queue: "Queue", column: IntColumn) -> None:
    if queue.note_priorities(set(column) if isinstance(column, list) else {column}):
        state.save_queue(queue)


def _throttle_sets(command: Enqueue) -> Iterable[ThrottleKeys] | None:
    """Return each message's set of throttle keys; None if one of the sets is not valid."""
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


class Enqueues(Component):
    """Enqueued messages, and the enqueues that wait for their namespace's rate."""

    verbs: ClassVar = {Enqueue: enqueue}

    def __init__(self, state: "State") -> None:
        limits = state.settings.limits
        self._rates = state.keep(EnqueueRates(limits, state.token_client.bank))
        state.keep(Returns(limits.returns_max))
        state.keep(Sequences(limits.sequences_max))
        super().__init__(state, self._rates.waits)

    def tick(self, now_ms: int) -> int | None:
        """Refuse the enqueues that the bank does not answer in time."""
        for call, command, error in self._rates.overdue(now_ms):
            self.state.conclude(call, command, error)
        return self._rates.next_due()

    def on_config(self, now_ms: int) -> None:
        """Resume the enqueues whose limit was removed."""
        self._go_on(self._rates.follow(self.state.runtime.limits))

    def on_grants(self, grants: "Grants", now_ms: int) -> None:
        """Resume the enqueues that were granted messages."""
        if grants.session == self.state.token_client.session:
            for grant in grants.grants:
                self._go_on(self._rates.granted(grant))

    def on_session(self, now_ms: int) -> None:
        """Begin a session of the rates: earlier grants are void."""
        self._rates.new_session()

    def _go_on(self, verdicts: Iterable[RateVerdict]) -> None:
        for verdict in verdicts:
            try:
                self.state.pursue(verdict.call, verdict.command, enqueue_held(self.state, *verdict))
            except FilaError as error:
                self.state.conclude(verdict.call, verdict.command, error)
