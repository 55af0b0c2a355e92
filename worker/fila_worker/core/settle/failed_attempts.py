"""The end of leases without an ack: failed attempts, expiry, loss of the consumer, and giving back.

A failed attempt is counted in the message's record. Then the message is retried (at once at its place in line, or after a
delay) or dead-lettered. For a nack the queue's ``on_failure`` hook chooses.
"""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Final, NamedTuple

from fila_proto_zmq.ids import format_id
from fila_proto_zmq.limits import PRIORITY_MIN
from fila_proto_zmq.record import HAS_TTL, Record, headers_length, pack_record
from fila_worker.core.callback_group_parts import MemberOutcome
from fila_worker.core.hooks import RETRY, FailedAttempt, FailureDecision, HookFailed
from fila_worker.core.keys import first_of_all, place_of
from fila_worker.core.model.due_index import DueKind, delay, on_the_grid, too_old
from fila_worker.core.model.lanes import extension_of, unpack_stored
from fila_worker.core.model.leases import TAKEN, Lease, Reservation
from fila_worker.core.settle import dead_letters

if TYPE_CHECKING:
    from fila_worker.core.model.lanes import Lane
    from fila_worker.core.model.queues import Queue
    from fila_worker.core.model.state import State

LEASE_EXPIRED: Final = "lease expired"
CONSUMER_LOST: Final = "consumer lost"
"""The texts of ``Delivery.error`` after an attempt that was not ended by its consumer."""

LEASE_COST: Final = 5
GIVE_BACK_COST: Final = 1
ATTEMPT_COST: Final = 10
"""The effort of ending a lease; and of each message: one put in line unchanged, and one that is read and written."""

HOOKED_MAX: Final = 100
"""The most failed attempts that are passed to a hook at once, because it may take long for each."""


class Attempt(NamedTuple):
    """The cause of a failed attempt, and the next step of the message. ``hooked``: the queue's hook may choose otherwise."""

    error: str
    now_ms: int
    after_ms: int = 0
    metadata: bytes | None = None
    dead_letter: bool = False
    hooked: bool = False


class _Returned(NamedTuple):
    """A message whose lease ended: where it was leased, its stored record, and its changed record."""

    key: bytes
    lane: "Lane"
    stored: bytes
    record: Record


def fail_attempts(state: "State", lease: Lease, indexes: list[int], ended: bool, attempt: Attempt) -> int:
    """Count a failed attempt of each member, then retry or dead-letter it. Return the number of ended members.

    If a hook takes long, these may be only the first ones. The leases of the others stay open.
    """
    if lease.at_most_once:
        _drop(state, lease, indexes, ended)
        state.touch(lease.queue, attempt.now_ms)
        return len(indexes)
    hooked = attempt.hooked and lease.queue.hooks is not None and lease.queue.hooks.hooks.has_on_failure
    failed = [_count(*each, attempt) for each in _records_of(state, lease, indexes[:HOOKED_MAX] if hooked else indexes)]
    decisions = _decisions(state, lease.queue, failed, attempt.now_ms) if hooked else [RETRY] * len(failed)
    indexes = indexes[: len(decisions)]
    _end(state, lease, indexes, ended)
    for message, decision in zip(failed, decisions, strict=False):
        reason = _dead_letter_reason(lease.queue, message, attempt, decision)
        if reason:
            _bury(state, message, reason, attempt.now_ms)
        else:
            _retry(state, message, attempt.now_ms, decision.delay_ms or attempt.after_ms)
    state.leases.close_members(lease, len(indexes), state.batch, given_back=True)
    invite(state, lease)
    return len(indexes)


def _take_back(state: "State", lease: Lease, indexes: list[int], ended: bool) -> "list[tuple[bytes, Lane, bytes]]":
    """End the leases of some members, and return them. They are pending, but in no line yet."""
    taken = _records_of(state, lease, indexes)
    _end(state, lease, indexes, ended)
    return taken


def _records_of(state: "State", lease: Lease, indexes: list[int]) -> "list[tuple[bytes, Lane, bytes]]":
    members: list[tuple[bytes, Lane]] = [lease.members[i] for i in indexes]  # type: ignore[misc]  # open: pairs
    records = state.read([key for key, _ in members])
    return [(key, lane, record) for (key, lane), record in zip(members, records, strict=True)]


def _end(state: "State", lease: Lease, indexes: list[int], ended: bool) -> None:
    if lease.labelled:
        state.count_leased(lease, indexes, -1)
    for index in indexes:
        message_key, lane = lease.members[index]  # type: ignore[misc]
        state.ledger.show(lane)
        lease.members[index] = ended
        lane.unlease(message_key)
    lease.taken |= ended is TAKEN


def _count(key: bytes, lane: "Lane", stored: bytes, attempt: Attempt) -> _Returned:
    record = unpack_stored(stored)
    record.attempts += 1
    record.extension.error = attempt.error
    if attempt.metadata is not None:
        record.extension.metadata = attempt.metadata
    return _Returned(key, lane, stored, record)


def _decisions(state: "State", queue: "Queue", failed: Sequence[_Returned], now_ms: int) -> list[FailureDecision]:
    """Return the hook's decisions on the first messages: as many as the turn has time for, and at least one."""
    assert queue.hooks is not None
    decisions = queue.hooks.on_failure([_failure(message) for message in failed], now_ms, state.jobs.time_left_ns)
    state.jobs.charge_ns(queue.hooks.took_ns)
    return [RETRY if isinstance(decision, HookFailed) else decision for decision in decisions]


def _failure(message: _Returned) -> FailedAttempt:
    record = message.record
    headers = record.envelope[4 : 4 + headers_length(record.envelope)]
    name = message.lane.key.name
    return FailedAttempt(headers, format_id(record.id_high, record.id_low), record.attempts, record.extension.error, name)


def _dead_letter_reason(queue: "Queue", message: _Returned, attempt: Attempt, decision: FailureDecision) -> str | None:
    if queue.is_dead_letter:
        return None
    if attempt.dead_letter:
        return dead_letters.FAILED
    if decision.dead_letter:
        return dead_letters.HOOK
    cap = max_attempts(queue, message.record)
    if cap is not None and message.record.attempts >= cap:
        return dead_letters.MAX_ATTEMPTS
    return dead_letters.EXPIRED if too_old(message.stored, attempt.now_ms) else None


def max_attempts(queue: "Queue", record: Record) -> int | None:
    """Return how many deliveries a message may have in a queue; None: any number.

    Its own number counts until they are over. A dead letter in another queue has the number of that queue.
    """
    own = record.extension.max_attempts
    return own if own is not None and record.extension.reason is None else queue.options.max_attempts


def _bury(state: "State", message: _Returned, reason: str, now_ms: int) -> None:
    state.take_out(message.lane, message.key, len(message.stored))
    dead_letters.dead_letter(state, message.lane, message.key, pack_record(message.record), reason, now_ms)
    state.release_slot(message.lane.key)


def _retry(state: "State", message: _Returned, now_ms: int, after_ms: int) -> None:
    key, lane, stored, record = message
    packed = pack_record(record)
    if after_ms:
        _put_off(state, lane, key, stored, packed, now_ms + after_ms)
        return
    if _moves_up(lane, key):
        _move_up(state, lane, key, stored, packed)
    else:
        state.batch.put(key, packed, state.store.families.messages)
        lane.key.queue.grow(len(packed))
        lane.key.queue.shrink(len(stored))
        state.ledger.touch_queue(lane.key.queue)
        state.line_up(lane, key, packed)
    state.release_slot(lane.key)


# --- the order of strictly ordered keys ---------------------------------------------------------------------------------
#
# With a cap of 1, a message that was delivered goes before all others of its key until it is acked or dead-lettered. Else a
# more urgent message that came meanwhile would overtake it. With a larger cap it keeps its place. The message is stored at
# the very front of its lane, so the order is on disk and no other state is needed. This does not depend on how its delivery
# ended, because a consumer that gives a message back may have seen it.


def _moves_up(lane: "Lane", key: bytes) -> bool:
    """Return whether a message that comes back has to change its place."""
    return lane.key.queue.options.max_in_flight_per_key == 1 and key != first_of_all(key)


def _key_in_front(state: "State", lane: "Lane", key: bytes, record: bytes) -> bytes:
    """Return the new key of a message that moves up, and note it for all searches by key."""
    front = first_of_all(key)
    if lane.key.queue.note_priorities({PRIORITY_MIN}):
        state.save_queue(lane.key.queue)
    expires_ms = extension_of(record).expires_ms if record[1] & HAS_TTL else None
    if expires_ms is not None:
        state.due_index.add(on_the_grid(expires_ms), DueKind.EXPIRE, front, state.batch)
    return front


def _move_up(state: "State", lane: "Lane", key: bytes, stored: bytes, record: bytes) -> None:
    """Put a pending message that is in no line at the front of its lane."""
    state.delete_pending(lane, key, len(stored))
    state.put_in_line(lane, place_of(_key_in_front(state, lane, key, record)), record)


def _put_off(
    state: "State", lane: "Lane", key: bytes, stored: bytes, record: bytes, due_ms: int, *, deferred: bool = False
) -> None:
    """Delay a pending message that is in no line until its next attempt."""
    front = _key_in_front(state, lane, key, record) if _moves_up(lane, key) else key
    state.take_out(lane, key, len(stored))
    delay(state, lane, front, record, due_ms, retrying=True, deferred=deferred)


# --- giving back ------------------------------------------------------------------------------------------------------


def give_back(state: "State", lease: Lease, indexes: list[int], ended: bool, now_ms: int) -> None:
    """Put members in line again unchanged. Those that are too old are dead-lettered."""
    if lease.mortal or lease.queue.options.max_in_flight_per_key == 1:
        for key, lane, stored in _take_back(state, lease, indexes, ended):
            if too_old(stored, now_ms):
                _bury(state, _Returned(key, lane, stored, unpack_stored(stored)), dead_letters.EXPIRED, now_ms)
                continue
            if _moves_up(lane, key):
                _move_up(state, lane, key, stored, stored)
            else:
                state.line_up(lane, key, stored)
            state.release_slot(lane.key)
    else:
        if lease.labelled:
            state.count_leased(lease, indexes, -1)
        for index in indexes:
            message_key, lane = lease.members[index]  # type: ignore[misc]
            lease.members[index] = ended
            lane.unlease(message_key)
            state.line_up(lane, message_key, None)
            state.release_slot(lane.key)
    lease.taken |= ended is TAKEN
    state.leases.close_members(lease, len(indexes), state.batch, given_back=True)
    invite(state, lease)


def defer(state: "State", lease: Lease, indexes: list[int], ended: bool, until_ms: int, now_ms: int) -> None:
    """Delay members until a time, uncounted. Until then their throttle keys deliver nothing on any shard."""
    if lease.at_most_once:
        _drop(state, lease, indexes, ended)
        return
    parked: dict[str, int] = {}
    for key, lane, stored in _take_back(state, lease, indexes, ended):
        parked.update(dict.fromkeys(lane.throttle_keys, until_ms))
        if too_old(stored, now_ms):
            _bury(state, _Returned(key, lane, stored, unpack_stored(stored)), dead_letters.EXPIRED, now_ms)
            continue
        _put_off(state, lane, key, stored, stored, until_ms, deferred=True)
    state.park_everywhere(parked, now_ms)
    state.leases.close_members(lease, len(indexes), state.batch, given_back=True)
    invite(state, lease)


def _drop(state: "State", lease: Lease, indexes: list[int], ended: bool) -> None:
    """Remove members that are delivered at most once: they do not come back, however their lease ends."""
    if lease.batches is not None:
        tokens = [lease.batches[each] for each in indexes if each in lease.batches]
        state.end_members(lease.queue, tokens, MemberOutcome.ACKED)
    for index in indexes:
        message_key, lane = lease.members[index]  # type: ignore[misc]
        lease.members[index] = ended
        lane.unlease(message_key)
        state.take_out(lane, message_key, lease.sizes[index])
        state.release_slot(lane.key)
    lease.taken |= ended is TAKEN
    state.leases.close_members(lease, len(indexes), state.batch, given_back=True)
    invite(state, lease)


def expire_leases(state: "State", now_ms: int) -> None:
    """End the leases whose time is up, as failed attempts."""
    left = state.settings.limits.turn_expiries_max
    while left > 0 and (lease := state.leases.pop_expired(now_ms)):
        left -= lease.open
        expire(state, lease, now_ms)


def expire(state: "State", lease: Lease, now_ms: int) -> None:
    """End the members of one lease whose time is up."""
    indexes = [index for index, _, _ in lease.open_members() if lease.expiry_of(index) <= now_ms]
    lease.queue.expired += len(indexes)
    if isinstance(lease.holder, Reservation):  # a reader that reserves has not begun to work on messages
        give_back(state, lease, indexes, TAKEN, now_ms)
    else:
        fail_attempts(state, lease, indexes, TAKEN, Attempt(LEASE_EXPIRED, now_ms))
    if lease.open:
        state.leases.reschedule(lease)


def end_all(state: "State", lease: Lease, error: str | None, now_ms: int) -> int:
    """Take a lease from its consumer: uncounted if ``error`` is None, else as a failed attempt. Return the effort."""
    indexes = [index for index, _, _ in lease.open_members()]
    if error is None:
        give_back(state, lease, indexes, TAKEN, now_ms)
    else:
        fail_attempts(state, lease, indexes, TAKEN, Attempt(error, now_ms))
    return LEASE_COST + len(indexes) * (GIVE_BACK_COST if error is None and not lease.mortal else ATTEMPT_COST)


def invite(state: "State", lease: Lease) -> None:
    """Put the subscription of a lease with ended members in line for new messages."""
    subscription = lease.subscription
    if subscription is not None:
        lease.queue.want(subscription)
    state.mark_runnable(lease.queue)
