"""How deliveries end: acks, which cost next to nothing, and everything that gives a message back.

Each settlement names its deliveries by fence. A member that its holder settled before is skipped, so a repeated command
gets the first answer again; one that was taken from its holder (its lease expired, its consumer was lost) is refused, and
whoever has the message now is left alone.
"""

from collections.abc import Iterator
from typing import TYPE_CHECKING, Final

from fila_proto_zmq.codec import to_fault
from fila_proto_zmq.commands import Extend, Extended, Fault, Fences, Settle, Settled, Verb
from fila_proto_zmq.errors import FilaError, InvalidArgumentError, LeaseExpiredError
from fila_proto_zmq.limits import DELAY_MS_MAX, ERROR_TEXT_BYTES_MAX, LEASE_MS_MAX, LEASE_MS_MIN, METADATA_BYTES_MAX
from fila_proto_zmq.record import Record, pack_record, unpack_record
from fila_worker.core import dead_letters
from fila_worker.core.keys import place_of
from fila_worker.core.leases import SETTLED, TAKEN, Lease
from fila_worker.core.schedule import delay

if TYPE_CHECKING:
    from fila_worker.core.consumers import Consumer
    from fila_worker.core.effects import Call
    from fila_worker.core.lanes import Lane
    from fila_worker.core.queues import Queue
    from fila_worker.core.shard import Shard

LEASE_EXPIRED: Final = "lease expired"
CONSUMER_LOST: Final = "consumer lost"
"""What ``Delivery.error`` says after an attempt that was not ended by its consumer."""

EXPIRIES_MAX: Final = 2000
"""Messages whose leases may expire in one turn, and the rest of the last lease; the others follow in the next."""

Faults = list[tuple[int, int, Fault]]


def settle(shard: "Shard", call: "Call", command: Settle) -> Settled:
    """End the named deliveries as the verb says."""
    queue = shard.queue(call.queue)
    verb = _checked(command)
    faults: Faults = []
    for lease, indexes in _fenced(shard, queue, command.fences, call.now_ms, faults):
        if verb is Verb.ACK:
            _ack(shard, queue, lease, indexes)
        elif verb is Verb.RELEASE:
            _give_back(shard, lease, indexes, SETTLED)
        else:
            _fail_attempts(shard, lease, indexes, SETTLED, _attempt(command, verb, call.now_ms))
            queue.nacked += len(indexes)
    return Settled(faults)


def _checked(command: Settle) -> Verb:
    try:
        verb = Verb(command.verb)
    except ValueError:
        known = ", ".join(f"{verb.value} ({verb.name.lower()})" for verb in Verb)
        raise InvalidArgumentError(f"unknown verb {command.verb}: use one of {known}") from None
    if not 0 <= command.after_ms <= DELAY_MS_MAX:
        raise InvalidArgumentError(f"retry after {command.after_ms} ms: use 0 to {DELAY_MS_MAX}")
    if len(command.metadata or b"") > METADATA_BYTES_MAX:
        raise InvalidArgumentError(f"metadata of {len(command.metadata or b'')} bytes: use at most {METADATA_BYTES_MAX}")
    return verb


# --- fences -----------------------------------------------------------------------------------------------------------


def _fenced(
    shard: "Shard", queue: "Queue", fences: Fences, now_ms: int, faults: Faults, *, repeatable: bool = True
) -> Iterator[tuple[Lease, list[int]]]:
    """The leases that ``fences`` name with their members that are still open; what is refused joins ``faults``.

    ``repeatable``: what its holder settled is passed over in silence, also if it was named by its index.
    """
    for lease_id, wanted in fences:
        lease = shard.leases.leases.get(lease_id)
        if lease is None or lease.queue is not queue:
            _judge_finished(shard, lease_id, wanted, faults, repeatable=repeatable)
            continue
        if lease.next_expiry() <= now_ms:
            expire(shard, lease, now_ms)  # also when the turn that would have noticed is yet to come
        members = lease.members
        if not wanted and lease.open == len(members):
            yield lease, list(range(len(members)))  # the usual case: all of a batch, none of it settled before
            continue
        if wanted and not 0 <= min(wanted) <= max(wanted) < len(members):
            _refuse_outsiders(lease_id, wanted, len(members), faults)
            indexes = [index for index in dict.fromkeys(wanted) if 0 <= index < len(members)]
        else:
            indexes = [*dict.fromkeys(wanted)] if wanted else list(range(len(members)))
        open_indexes = [index for index in indexes if members[index] is not SETTLED]
        if not repeatable and wanted:
            settled = [index for index in indexes if members[index] is SETTLED]
            faults.extend(_refusal(lease_id, index, _expired()) for index in settled)
        taken = [index for index in open_indexes if members[index] is TAKEN]
        if taken:
            faults.extend(_refusal(lease_id, index, _expired()) for index in taken)
            open_indexes = [index for index in open_indexes if members[index] is not TAKEN]
        if open_indexes:
            yield lease, open_indexes


def _refuse_outsiders(lease_id: int, wanted: list[int], size: int, faults: Faults) -> None:
    error = InvalidArgumentError(f"no such delivery in this lease of {size}")
    faults.extend(_refusal(lease_id, index, error) for index in wanted if not 0 <= index < size)


def _judge_finished(shard: "Shard", lease_id: int, wanted: list[int], faults: Faults, *, repeatable: bool) -> None:
    """Answer for a lease that is over, as when it was open; an unknown one is long over."""
    members = shard.leases.finished.get(lease_id, TAKEN) if repeatable else TAKEN
    if members is SETTLED:
        return
    for index in wanted or (range(len(members)) if isinstance(members, list) else [-1]):
        settled = isinstance(members, list) and index < len(members) and members[index] is SETTLED
        if not settled:
            faults.append(_refusal(lease_id, index, _expired()))


def _expired() -> FilaError:
    return LeaseExpiredError("the lease ended before this delivery was settled: the message is or was delivered again")


def _refusal(lease_id: int, index: int, error: FilaError) -> tuple[int, int, Fault]:
    return lease_id, index, to_fault(error)


# --- acks -------------------------------------------------------------------------------------------------------------


def _ack(shard: "Shard", queue: "Queue", lease: Lease, indexes: list[int]) -> None:
    """Remove the messages for good. Hot: about 1 µs a message."""
    members, changed, messages = lease.members, shard.ledger.changed, shard.store.families.messages
    delete = shard.batch.delete
    for index in indexes:
        message_key, lane = members[index]  # type: ignore[misc]  # open members are pairs
        members[index] = SETTLED
        delete(message_key, messages)
        lane.stored -= 1
        lane.leased.remove(message_key)
        if not lane.changed:
            lane.changed = True
            changed.append(lane)
    queue.in_flight -= len(indexes)
    queue.acked += len(indexes)
    _ended(shard, lease, len(indexes), given_back=False)


def _ended(shard: "Shard", lease: Lease, count: int, *, given_back: bool) -> None:
    """Count ended members, and let their subscription have new messages."""
    shard.leases.close_members(lease, count, shard.batch, given_back=given_back)
    subscription = lease.subscription
    if subscription is not None:
        lease.queue.want(subscription)
    if lease.queue.demands and lease.queue.pending:
        shard.wanted[lease.queue.id] = lease.queue


# --- giving back ------------------------------------------------------------------------------------------------------


class Attempt:
    """How an attempt failed, and what is asked for the message."""

    __slots__ = ("after_ms", "dead_letter", "error", "metadata", "now_ms")

    def __init__(
        self, error: str, now_ms: int, *, after_ms: int = 0, metadata: bytes | None = None, dead_letter: bool = False
    ) -> None:
        self.error = error
        self.now_ms = now_ms
        self.after_ms = after_ms
        self.metadata = metadata
        self.dead_letter = dead_letter

    def count(self, record: Record) -> None:
        """Write the failed attempt into a message's record."""
        record.attempts += 1
        record.extension.error = self.error
        if self.metadata is not None:
            record.extension.metadata = self.metadata


def _attempt(command: Settle, verb: Verb, now_ms: int) -> Attempt:
    error = command.error.encode()[-ERROR_TEXT_BYTES_MAX:].decode(errors="ignore")
    after_ms = command.after_ms if verb is Verb.RETRY else 0
    return Attempt(error, now_ms, after_ms=after_ms, metadata=command.metadata, dead_letter=verb is Verb.FAIL)


def _fail_attempts(shard: "Shard", lease: Lease, indexes: list[int], ended: bool, attempt: Attempt) -> None:
    """Count a failed attempt of each member, then retry or dead-letter it."""
    records = shard.read([lease.members[index][0] for index in indexes])  # type: ignore[index]
    for index, data in zip(indexes, records, strict=True):
        message_key, lane = lease.members[index]  # type: ignore[misc]
        lease.members[index] = ended
        _unlease(lane, message_key)
        record = unpack_record(data)
        attempt.count(record)
        reason = _dead_letter_reason(lease.queue, record, attempt)
        if reason:
            shard.take_out(lane, message_key)
            dead_letters.bury(shard, lease.queue, lane.key.name, place_of(message_key), record, reason, attempt.now_ms)
        else:
            _retry(shard, lane, message_key, pack_record(record), attempt)
    _ended(shard, lease, len(indexes), given_back=True)


def _dead_letter_reason(queue: "Queue", record: Record, attempt: Attempt) -> str | None:
    if queue.is_dead_letter:
        return None
    if attempt.dead_letter:
        return dead_letters.FAILED
    cap = queue.options.max_attempts
    return dead_letters.MAX_ATTEMPTS if cap is not None and record.attempts >= cap else None


def _retry(shard: "Shard", lane: "Lane", message_key: bytes, record: bytes, attempt: Attempt) -> None:
    if attempt.after_ms:
        shard.take_out(lane, message_key)
        delay(shard, lane, message_key, record, attempt.now_ms + attempt.after_ms)
    else:
        shard.batch.put(message_key, record, shard.store.families.messages)
        shard.line_up(lane, message_key, record)


def _give_back(shard: "Shard", lease: Lease, indexes: list[int], ended: bool) -> None:
    """Put members in line again as they are."""
    for index in indexes:
        message_key, lane = lease.members[index]  # type: ignore[misc]
        lease.members[index] = ended
        _unlease(lane, message_key)
        shard.line_up(lane, message_key, None)
    _ended(shard, lease, len(indexes), given_back=True)


def _unlease(lane: "Lane", message_key: bytes) -> None:
    """A leased message of this lane is pending."""
    queue = lane.key.queue
    lane.leased.remove(message_key)
    queue.in_flight -= 1
    queue.pending += 1


# --- leases that end by themselves ------------------------------------------------------------------------------------


def expire_leases(shard: "Shard", now_ms: int) -> None:
    """End the leases whose time is up, as failed attempts."""
    left = EXPIRIES_MAX
    while left > 0 and (lease := shard.leases.pop_expired(now_ms)):
        left -= lease.open
        expire(shard, lease, now_ms)


def expire(shard: "Shard", lease: Lease, now_ms: int) -> None:
    """End the members of one lease whose time is up."""
    indexes = [index for index, _, _ in lease.open_members() if lease.expiry_of(index) <= now_ms]
    lease.queue.expired += len(indexes)
    _fail_attempts(shard, lease, indexes, TAKEN, Attempt(LEASE_EXPIRED, now_ms))
    if lease.open:
        shard.leases.reschedule(lease)


def end_all(shard: "Shard", lease: Lease, error: str | None, now_ms: int) -> None:
    """Take a lease from its consumer: uncounted if ``error`` is None, else as a failed attempt."""
    indexes = [index for index, _, _ in lease.open_members()]
    if error is None:
        _give_back(shard, lease, indexes, TAKEN)
    else:
        _fail_attempts(shard, lease, indexes, TAKEN, Attempt(error, now_ms))


# --- extending --------------------------------------------------------------------------------------------------------


def extend(shard: "Shard", call: "Call", command: Extend) -> Extended:
    """Let the named deliveries' leases end ``duration_ms`` from now, sooner or later than before."""
    queue = shard.queue(call.queue)
    if not LEASE_MS_MIN <= command.duration_ms <= LEASE_MS_MAX:
        raise InvalidArgumentError(f"extension by {command.duration_ms} ms: use {LEASE_MS_MIN} to {LEASE_MS_MAX}")
    faults: Faults = []
    expires_ms = call.now_ms + command.duration_ms
    for lease, indexes in _fenced(shard, queue, command.fences, call.now_ms, faults, repeatable=False):
        lease.extended.update(dict.fromkeys(indexes, expires_ms))
        shard.leases.save(lease, shard.batch)
        shard.leases.reschedule(lease)
    return Extended(expires_ms, faults)


def renew(shard: "Shard", consumer: "Consumer", lease_ids: list[int], now_ms: int) -> None:
    """Let leases of a living consumer start over, once a third of their time is gone."""
    for lease_id in lease_ids:
        lease = consumer.leases.get(lease_id)
        if lease is not None and lease.next_expiry() - now_ms < lease.duration_ms * 2 // 3:
            lease.expires_ms = now_ms + lease.duration_ms
            lease.extended = {
                index: expires_ms for index, expires_ms in lease.extended.items() if expires_ms > lease.expires_ms
            }
            shard.leases.save(lease, shard.batch)
