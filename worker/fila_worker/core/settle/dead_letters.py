"""Dead letters: messages that leave their queue for another that collects them. They return by :mod:`core.manage.redrive`.

Usually the other queue is the queue's own ``.dlq`` on the same shard, so both moves are one write batch. A queue may also
name another queue for its dead letters, perhaps on another shard (:mod:`core.settle.transfers`), or drop them. A message
always keeps its id, and on its own shard also its place in line (priority and enqueue order).
"""

from typing import TYPE_CHECKING, Final

from fila_proto_zmq.commands import Transfer
from fila_proto_zmq.names import shard_of, whole_queue
from fila_proto_zmq.record import BATCHED, Record, pack_record
from fila_worker.core.callback_group_parts import MemberOutcome
from fila_worker.core.enqueue import insert
from fila_worker.core.keys import number_in, own_place
from fila_worker.core.model.lanes import tokens_of, unpack_stored
from fila_worker.core.model.queues import DISCARD, OWN, Queue
from fila_worker.core.settle import transfers

if TYPE_CHECKING:
    from fila_worker.core.model.lanes import Lane
    from fila_worker.core.model.state import State

FAILED: Final = "failed"
MAX_ATTEMPTS: Final = "max_attempts"
HOOK: Final = "hook"
EXPIRED: Final = "expired"
"""Reasons why a message was dead-lettered."""

EXPIRIES_MAX: Final = 16
"""The number of queues in a row in which a message may expire, each the dead letter queue of the one before. A longer row
counts as a circle: the message then goes to the ``.dlq`` of the queue in which it expired. The queues may be on different
shards, so no shard sees the whole circle."""


def expire(state: "State", lane: "Lane", message_key: bytes, record: bytes, now_ms: int) -> None:
    """Dead-letter a popped message that is too old to be delivered. The caller corrects its lane's activity."""
    state.delete_pending(lane, message_key, len(record))
    dead_letter(state, lane, message_key, record, EXPIRED, now_ms)


def dead_letter(state: "State", lane: "Lane", message_key: bytes, record: bytes, reason: str, now_ms: int) -> None:
    """Send a message that has left its lane to the target of its queue's dead letters."""
    source = lane.key.queue
    source.dead_lettered += 1
    state.touch(source, now_ms)
    if record[1] & BATCHED:
        state.end_members(source, tokens_of([record]).values(), MemberOutcome.DEAD)
    policy = source.options.dead_letter or OWN
    if policy == DISCARD or source.gone:
        return
    letter = unpack_stored(record)
    extension = letter.extension
    if reason == EXPIRED and _would_go_round(letter, policy):
        policy = OWN
    extension.expiries = extension.expiries + 1 if reason == EXPIRED else 0
    extension.reason, extension.source_queue, extension.dead_lettered_ms = reason, source.name, now_ms
    extension.expires_ms = extension.batch = None
    if policy != OWN:
        policy = state.runtime.definitions.partition_for(policy, lane.key.name)
    named = state.entrance(policy, now_ms) if policy != OWN else None
    if named is not None:
        state.appoint(named)  # it may not be the queue that was appointed
        number = insert.kept_number(state, message_key, source, named)
        message = insert.Incoming(
            letter, lane.key.name, weight=lane.key.weight, throttle_keys=lane.throttle_keys, number=number
        )
        insert.store(state, named, message, now_ms)
    elif policy != OWN and shard_of(policy, state.shards) != state.index:
        transfers.send(
            state, lane, own_place(message_key, letter.priority), transfer_of(policy, lane, letter, redriven=False)
        )
    else:
        _lay_down(state, insert.own_dead_letters(state, source), lane, own_place(message_key, letter.priority), letter)


def _would_go_round(letter: Record, policy: str) -> bool:
    """Return whether an expired message would go round in a circle without readers, back to an earlier queue."""
    extension = letter.extension
    back = extension.reason == EXPIRED and whole_queue(extension.source_queue or "") == policy
    return policy != OWN and (back or extension.expiries >= EXPIRIES_MAX)


def _lay_down(state: "State", target: Queue, lane: "Lane", place: bytes, letter: Record) -> None:
    resting = state.lane(target, lane.key.name, lane.throttle_keys)
    state.set_weight(resting.key, lane.key.weight)
    insert.remember(state, target, letter, number_in(place))
    state.put_in_line(resting, place, pack_record(letter))


def transfer_of(queue: str, lane: "Lane", letter: Record, *, redriven: bool) -> Transfer:
    """Return a message in the form for a queue of another shard."""
    key = lane.key
    return Transfer(queue, key.name, key.weight, list(lane.throttle_keys), redriven, pack_record(letter))
