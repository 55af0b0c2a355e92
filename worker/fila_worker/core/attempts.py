"""How leases end without an ack: failed attempts, expiry, loss of the consumer, and giving back unharmed.

A failed attempt is counted in the message's record; then the message is retried (at once in its place in line, or through
the schedule) or dead-lettered.
"""

from typing import TYPE_CHECKING, Final

from fila_proto_zmq.record import Record, pack_record, unpack_record
from fila_worker.core import dead_letters
from fila_worker.core.delays import delay
from fila_worker.core.keys import place_of
from fila_worker.core.leases import TAKEN, Lease

if TYPE_CHECKING:
    from fila_worker.core.lanes import Lane
    from fila_worker.core.queues import Queue
    from fila_worker.core.state import State

LEASE_EXPIRED: Final = "lease expired"
CONSUMER_LOST: Final = "consumer lost"
"""What ``Delivery.error`` says after an attempt that was not ended by its consumer."""

EXPIRIES_MAX: Final = 2000
"""Messages whose leases may expire in one turn, and the rest of the last lease; the others follow in the next."""


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


def fail_attempts(shard: "State", lease: Lease, indexes: list[int], ended: bool, attempt: Attempt) -> None:
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
    lease.taken |= ended is TAKEN
    shard.leases.close_members(lease, len(indexes), shard.batch, given_back=True)
    invite(shard, lease)


def _dead_letter_reason(queue: "Queue", record: Record, attempt: Attempt) -> str | None:
    if queue.is_dead_letter:
        return None
    if attempt.dead_letter:
        return dead_letters.FAILED
    cap = queue.options.max_attempts
    return dead_letters.MAX_ATTEMPTS if cap is not None and record.attempts >= cap else None


def _retry(shard: "State", lane: "Lane", message_key: bytes, record: bytes, attempt: Attempt) -> None:
    if attempt.after_ms:
        shard.take_out(lane, message_key)
        delay(shard, lane, message_key, record, attempt.now_ms + attempt.after_ms)
    else:
        shard.batch.put(message_key, record, shard.store.families.messages)
        shard.line_up(lane, message_key, record)


def give_back(shard: "State", lease: Lease, indexes: list[int], ended: bool) -> None:
    """Put members in line again as they are."""
    for index in indexes:
        message_key, lane = lease.members[index]  # type: ignore[misc]
        lease.members[index] = ended
        _unlease(lane, message_key)
        shard.line_up(lane, message_key, None)
    lease.taken |= ended is TAKEN
    shard.leases.close_members(lease, len(indexes), shard.batch, given_back=True)
    invite(shard, lease)


def _unlease(lane: "Lane", message_key: bytes) -> None:
    """A leased message of this lane is pending."""
    queue = lane.key.queue
    lane.leased.remove(message_key)
    queue.in_flight -= 1
    queue.pending += 1


def expire_leases(shard: "State", now_ms: int) -> None:
    """End the leases whose time is up, as failed attempts."""
    left = EXPIRIES_MAX
    while left > 0 and (lease := shard.leases.pop_expired(now_ms)):
        left -= lease.open
        expire(shard, lease, now_ms)


def expire(shard: "State", lease: Lease, now_ms: int) -> None:
    """End the members of one lease whose time is up."""
    indexes = [index for index, _, _ in lease.open_members() if lease.expiry_of(index) <= now_ms]
    lease.queue.expired += len(indexes)
    fail_attempts(shard, lease, indexes, TAKEN, Attempt(LEASE_EXPIRED, now_ms))
    if lease.open:
        shard.leases.reschedule(lease)


def end_all(shard: "State", lease: Lease, error: str | None, now_ms: int) -> None:
    """Take a lease from its consumer: uncounted if ``error`` is None, else as a failed attempt."""
    indexes = [index for index, _, _ in lease.open_members()]
    if error is None:
        give_back(shard, lease, indexes, TAKEN)
    else:
        fail_attempts(shard, lease, indexes, TAKEN, Attempt(error, now_ms))


def invite(shard: "State", lease: Lease) -> None:
    """Members of a lease have ended: let their subscription have new messages."""
    subscription = lease.subscription
    if subscription is not None:
        lease.queue.want(subscription)
    if lease.queue.demands and lease.queue.pending:
        shard.wanted[lease.queue.id] = lease.queue
