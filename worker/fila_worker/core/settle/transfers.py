"""Messages from one shard to another: dead letters of a queue that names a queue elsewhere for them, and their way back.

A message leaves its queue and enters the outbox in one batch; the other shard takes it into its queue and remembers its number in
one batch; then the outbox forgets it. What the other shard refuses, because the queue is not there or the message was written by
a later version, goes back to where it came from, or to the queue's own ``.dlq``, and holds up nothing.
"""

from typing import TYPE_CHECKING

from fila_proto_zmq.commands import MessagesTransferred, Transfer, TransferMessages
from fila_proto_zmq.errors import InvalidFrameError
from fila_proto_zmq.names import shard_of
from fila_proto_zmq.record import Record, unpack_record
from fila_worker.core.effects import Post
from fila_worker.core.enqueue import insert
from fila_worker.core.model.lanes import unpack_stored
from fila_worker.core.model.outbox import STREAM_BYTES, OutboxEntry

if TYPE_CHECKING:
    from fila_worker.core.model.lanes import Lane
    from fila_worker.core.model.queues import Queue
    from fila_worker.core.state import State


def send(shard: "State", lane: "Lane", place: bytes, transfer: Transfer) -> None:
    """A message that has left its lane, where it had this place, goes to a queue of another shard."""
    parcel = OutboxEntry(lane.key.queue.id, place, transfer)
    shard.outbox.add(shard_of(transfer.queue, shard.shards), parcel, shard.batch)


def send_due(shard: "State", now_ms: int) -> None:
    """Send what has not been confirmed."""
    due = shard.outbox.due(now_ms)
    if due:
        shard.settle_writes()
    shard.effects.extend(Post(shard.outbox.frame(to_shard, shard.store, now_ms)) for to_shard in due)


def take(shard: "State", command: TransferMessages, now_ms: int) -> None:
    """Take in messages of another shard, each once, and say so."""
    outbox = shard.outbox
    if len(command.stream) != STREAM_BYTES:
        raise InvalidFrameError(f"stream of {len(command.stream)} bytes: it has {STREAM_BYTES}")
    outbox.forget_streams(command.from_shard, command.since, shard.batch)
    taken = outbox.last_taken(command.from_shard, command.stream)
    last = command.first + len(command.transfers) - 1
    if last > taken.last:
        fresh = range(max(command.first, taken.last + 1), last + 1)
        refused = [number for number in taken.refused if number >= command.first]  # the sender may not have heard of it
        for number in fresh:
            index = number - command.first
            if not _take_one(shard, command.transfers[index], now_ms):
                refused.append(number)
        taken = outbox.take(command, last, refused, shard.batch)
    posted = MessagesTransferred(command.from_shard, shard.index, taken.last, taken.refused, command.stream)
    shard.effects.append(Post(posted))


def _take_one(shard: "State", transfer: Transfer, now_ms: int) -> bool:
    """Take in one message; False if its queue is not here, or its record is of a layout that this version can't read."""
    queue = shard.queues.get(transfer.queue)
    record = _read(transfer)
    if queue is None or record is None:
        return False
    message = insert.Incoming(
        insert.revived(record) if transfer.redriven else record,
        transfer.fairness_key,
        weight=0 if transfer.redriven else transfer.weight,
        throttle_keys=tuple(transfer.throttle_keys),
    )
    if transfer.redriven:
        insert.take_in(shard, queue, message, now_ms)
    else:
        shard.appoint(queue)  # it may be another than the one that was asked for
        insert.store(shard, queue, message, now_ms)
    return True


def _read(transfer: Transfer) -> Record | None:
    try:
        return unpack_record(transfer.record)
    except InvalidFrameError:
        return None


def confirm(shard: "State", command: MessagesTransferred) -> None:
    """Forget what has arrived; what was refused comes back."""
    if not shard.outbox.awaits(command.from_shard, command.stream, command.last):
        return  # said before
    if command.refused:
        _bring_back(shard, command)
    shard.outbox.confirmed(command.from_shard, command.last, shard.batch)


def _bring_back(shard: "State", command: MessagesTransferred) -> None:
    shard.settle_writes()
    refused = set(command.refused)
    unconfirmed = shard.outbox.unconfirmed(command.from_shard, shard.store, command.last)
    for number, parcel in list(unconfirmed):
        origin = shard.queues_by_id.get(parcel.origin)
        if number in refused and origin is not None and not origin.gone:
            _lay_back(shard, origin, parcel)


def _lay_back(shard: "State", origin: "Queue", parcel: OutboxEntry) -> None:
    transfer = parcel.transfer
    queue = origin if transfer.redriven else insert.own_dead_letters(shard, origin)
    lane = shard.lane(queue, transfer.fairness_key, tuple(transfer.throttle_keys))
    insert.remember(shard, queue, unpack_stored(transfer.record))
    shard.put_in_line(lane, parcel.place, transfer.record)
