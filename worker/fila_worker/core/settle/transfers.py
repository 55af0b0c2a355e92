"""Messages from one shard to another: dead letters for a queue on another shard, and their way back.

A message leaves its queue and enters the outbox in one batch. The other shard puts it into its queue and remembers its number
in one batch. Then the outbox forgets it. If the other shard refuses a message, because the queue does not exist or a later
version wrote the message, it goes back to its queue, or to the queue's own ``.dlq``, and blocks no other message.

Enqueues by the broker itself take the same way (:mod:`core.settle.remote_enqueues`), also to a queue of this shard.
"""

from typing import TYPE_CHECKING, ClassVar

from fila_proto_zmq.codec import to_fault
from fila_proto_zmq.commands import Carried, EnqueueOutcome, MessagesTransferred, Transfer, TransferMessages
from fila_proto_zmq.errors import FilaError, InvalidFrameError, StorageError
from fila_proto_zmq.names import shard_of
from fila_proto_zmq.record import Record, unpack_record
from fila_worker.core.effects import Post
from fila_worker.core.enqueue import insert
from fila_worker.core.enqueue.enqueue import queue_for_own
from fila_worker.core.keys import number_in
from fila_worker.core.model.component import Component, Steps
from fila_worker.core.model.due_index import DueKind, on_the_grid
from fila_worker.core.model.lanes import unpack_stored
from fila_worker.core.model.shard_transfers import STREAM_BYTES, InboxCursor, OutboxEntry, outbox_key
from fila_worker.core.settle import remote_enqueues

if TYPE_CHECKING:
    from fila_worker.core.model.lanes import Lane
    from fila_worker.core.model.queues import Queue
    from fila_worker.core.model.state import State


def send(state: "State", lane: "Lane", place: bytes, transfer: Transfer) -> None:
    """Send a message that has left its lane to a queue of another shard, or to a partition. ``place``: its place in the lane."""
    parcel = OutboxEntry(lane.key.queue.id, place, transfer)
    state.outbox.add(shard_of(transfer.queue, state.shards), parcel, state.batch)


def send_due(state: "State", now_ms: int) -> None:
    """Send messages that are not confirmed."""
    due = state.outbox.due(now_ms)
    if due:
        state.settle_writes()
    for to_shard in due:
        frame = state.outbox.frame(to_shard, state.store, now_ms)
        if to_shard == state.index:  # what the broker enqueues here, too, goes this one way
            confirm(state, _taken(state, frame, now_ms), now_ms)
        else:
            state.effects.append(Post(frame))


def take(state: "State", command: TransferMessages, now_ms: int) -> None:
    """Take in messages of another shard, each once, and confirm them."""
    state.effects.append(Post(_taken(state, command, now_ms)))


def _taken(state: "State", command: TransferMessages, now_ms: int) -> MessagesTransferred:
    """Take in messages, each once. Return the confirmation, perhaps of the first ones only."""
    outbox = state.outbox
    insert.prepare(state, command.transfers)
    if len(command.stream) != STREAM_BYTES:
        raise InvalidFrameError(f"stream of {len(command.stream)} bytes: it has {STREAM_BYTES}")
    outbox.forget_streams(command.from_shard, command.since, state.batch)
    taken = outbox.last_taken(command.from_shard, command.stream)
    last = command.first + len(command.transfers) - 1
    if last > taken.last:
        # the sender may lack the outcomes so far
        outcomes = [each for each in taken.outcomes if each.number >= command.first]
        taken = InboxCursor(max(taken.last, command.first - 1), list(taken.refused), outcomes, taken.forgotten)
        refused = taken.refused
        fresh = range(taken.last + 1, last + 1)
        for number in fresh:
            transfer = command.transfers[number - command.first]
            if transfer.version > state.runtime.version:
                break  # this shard does not know yet that messages move: the sender sends the rest again
            if transfer.enqueue is not None:
                if number > fresh.start and state.jobs.full:
                    break  # hooks took long: the sender sends the rest again
                outbox.take(command, taken, state.batch)  # the enqueue may commit what is written so far
                outcomes.append(outcome := remote_enqueues.carry_out(state, number, transfer, now_ms))
                if outcome.fault is not None:
                    refused.append(number)
            else:
                if number > fresh.start and transfer.redriven and state.jobs.full:
                    break
                try:
                    arrives = _take_one(state, transfer, now_ms)
                except StorageError:
                    raise  # not a refusal: the turn's changes may not be on disk
                except FilaError as error:
                    outcomes.append(EnqueueOutcome(number, fault=to_fault(error)))
                    arrives = False
                if not arrives:
                    refused.append(number)
            taken.last = number
        taken.forget(command.first, state.settings.limits.refusals_max)
        outbox.take(command, taken, state.batch)
    confirmed = min(last, taken.last)
    refused, outcomes = taken.confirms(range(command.first, confirmed + 1))
    return MessagesTransferred(command.from_shard, state.index, confirmed, refused, command.stream, outcomes)


def _take_one(state: "State", transfer: Transfer, now_ms: int) -> bool:
    """Take in one message, behind all others of the shard. Return False if its queue is not here, or this version can't read
    the layout of its record. Raise the errors of an enqueue for a message that was moved."""
    record = _read(transfer)
    if transfer.forwarded:
        return (transfer.what != Carried.MESSAGE or record is not None) and insert.forwarded(state, transfer, now_ms)
    if record is not None and transfer.due_ms is not None:
        keys = tuple(transfer.throttle_keys)
        message = insert.moved(record, transfer.fairness_key, transfer.weight, keys, transfer.due_ms, now_ms)
        insert.take_in(state, queue_for_own(state, transfer.queue, now_ms), message, now_ms, limited=True)
        return True
    queue = state.entrance(transfer.queue, now_ms)
    if queue is None or record is None:
        return False
    message = insert.Incoming(
        insert.revived(record) if transfer.redriven else record,
        transfer.fairness_key,
        weight=0 if transfer.redriven else transfer.weight,
        throttle_keys=tuple(transfer.throttle_keys),
    )
    if transfer.redriven:
        insert.take_in(state, queue, message, now_ms)
    else:
        state.appoint(queue)  # it may not be the queue that was appointed
        insert.store(state, queue, message, now_ms)
    return True


def _read(transfer: Transfer) -> Record | None:
    try:
        return unpack_record(transfer.record)
    except InvalidFrameError:
        return None


def confirm(state: "State", command: MessagesTransferred, now_ms: int) -> None:
    """Forget messages that have arrived, and bring back refused ones."""
    if state.outbox.rests(now_ms) or not state.outbox.awaits(command.from_shard, command.stream, command.last):
        # After a rest the confirmation comes again. One that is not awaited is a repeated one.
        return
    if command.refused or state.outbox.carries_enqueues(command.from_shard):
        _bring_back(state, command, now_ms)
    state.outbox.confirmed(command.from_shard, command.last, state.batch)


def _bring_back(state: "State", command: MessagesTransferred, now_ms: int) -> None:
    """Put refused messages back in line, and conclude enqueues. All of them are committed, because they were sent."""
    if command.refused:
        state.settle_writes()
    refused = set(command.refused)
    outcomes = {outcome.number: outcome for outcome in command.outcomes}
    unconfirmed = state.outbox.unconfirmed(command.from_shard, state.store, command.last)
    for number, parcel in list(unconfirmed):
        if parcel.owner is not None:
            waits_as = outbox_key(command.from_shard, command.stream, number)
            outcome = outcomes.get(number) or (None if number in refused else EnqueueOutcome(number))
            remote_enqueues.conclude(state, parcel, outcome, waits_as, now_ms)
            continue
        origin = state.queues.by_id.get(parcel.origin)
        if number in refused and origin is not None and not origin.gone:
            _lay_back(state, origin, parcel, now_ms)
            outcome = outcomes.get(number)
            for watch in state.outbox.watchers:
                watch(command.from_shard, number, None if outcome is None else outcome.fault)


def _lay_back(state: "State", origin: "Queue", parcel: OutboxEntry, now_ms: int) -> None:
    transfer = parcel.transfer
    if transfer.what:
        if transfer.what == Carried.PAUSE:
            origin.paused_keys.add(transfer.fairness_key)
            state.define_queue(origin)
        return  # dedup ids are still here
    queue = origin if transfer.redriven else insert.own_dead_letters(state, origin)
    lane = state.lane(queue, transfer.fairness_key, tuple(transfer.throttle_keys))
    if queue.partition is not None and queue.partition.draining is not None:
        queue.partition.draining[lane.key] = None
    record = unpack_stored(transfer.record)
    insert.remember(state, queue, record, number_in(parcel.place))
    if record.extension.expires_ms is not None:  # its entry may have come due meanwhile
        due_ms = on_the_grid(record.extension.expires_ms)
        state.due_index.add(due_ms, DueKind.EXPIRE, lane.prefix + parcel.place, state.batch)
    if (transfer.due_ms or 0) > now_ms:
        insert.put_off(
            state, lane, lane.prefix + parcel.place, transfer.record, transfer.due_ms or 0, came_back=transfer.came_back
        )
    else:
        state.put_in_line(lane, parcel.place, transfer.record)


class Transfers(Component):
    """Messages on their way to other shards, and from them."""

    peer_verbs: ClassVar = {TransferMessages: take, MessagesTransferred: confirm}

    def __init__(self, state: "State") -> None:
        state.keep(remote_enqueues.Owners())
        super().__init__(state, state.outbox.timer)

    def recover(self, now_ms: int) -> Steps:
        """Read what is unconfirmed."""
        self.state.outbox.recover(self.state.store, self.state.batch)
        yield

    def tick(self, now_ms: int) -> int | None:
        """Send messages that are not confirmed."""
        send_due(self.state, now_ms)
        return self.state.outbox.next_due()
