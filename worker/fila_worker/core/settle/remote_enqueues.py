"""Enqueues by the broker itself, into any queue of the cluster, for schedules and other features of a shard.

An enqueue is put into the outbox in the batch of its cause, and is carried out on the shard of its queue like an enqueue of a
client: the hook, dedup ids, limits and rates hold. The transfer makes it exactly one message
(:mod:`core.model.shard_transfers`). Its outcome comes back with the confirmation, and is passed to its *owner* in the batch
that forgets the transfer.

While the queue is full, or over its rate, the enqueue waits in the due index of the sending shard and is tried again. The
owner is notified of the wait. Any other fault is final, such as a missing queue: no message is stored, and the owner keeps
the fault for the operator. So an owner has a bounded number of enqueues under way. An enqueue that its owner does not wait
for any more is not tried again: else clients could make and delete owners, and leave any number of enqueues waiting.

Rejected: a call to the queue's own shard if that is this one. It would be a second path, with other commits.
"""

from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Final, NamedTuple, TypeAlias

from fila_proto_zmq.codec import from_fault, to_fault
from fila_proto_zmq.commands import Enqueue, EnqueueOutcome, Fault, Transfer
from fila_proto_zmq.errors import FilaError, StorageError, UnsupportedVersionError
from fila_proto_zmq.names import shard_of
from fila_worker.core.enqueue.enqueue import enqueue_one
from fila_worker.core.model.due_index import DueKind
from fila_worker.core.model.shard_transfers import BROKER, OutboxEntry, Owner, decode_outbox, encode_entry

if TYPE_CHECKING:
    from fila_worker.core.model.due_index import DueEntry
    from fila_worker.core.model.state import State

RETRY_MS_MIN: Final = 1000
RETRY_MS_MAX: Final = 30_000
"""The bounds of the time until an enqueue is tried again. It doubles with each try, or is the fault's if that is longer."""


class RemoteOutcome(NamedTuple):
    """The outcome of an enqueue. ``message``: the two halves of the message's id; None: it is not stored. ``(0, 0)``: it is
    stored, and its id is no longer known, because the disk of this shard was behind.

    ``retry_ms``: when it is tried again, Unix ms; None: this is the last outcome of this enqueue.
    """

    message: tuple[int, int] | None
    fault: Fault | None
    retry_ms: int | None
    number: int = 0
    """:attr:`~fila_worker.core.model.shard_transfers.Owner.number` of the enqueue."""


Receiver: TypeAlias = Callable[[str, RemoteOutcome, int], bool]
"""Takes an outcome: the owner's name, the outcome, the time in Unix ms. It returns whether the owner waits for this enqueue.
It only writes: it must not commit, and must not fail if the owner is gone."""


class Owners:
    """The features that own enqueues, by name."""

    def __init__(self) -> None:
        self._receivers: dict[str, Receiver] = {}

    def register(self, feature: str, receiver: Receiver) -> None:
        """Pass the outcomes for a feature's owners to ``receiver``. Call it when the shard is recovered, or before."""
        self._receivers[feature] = receiver

    def pass_on(self, owner: Owner, outcome: RemoteOutcome, now_ms: int) -> bool:
        """Pass an outcome to its owner, and return whether that waits for it. Drop that for an unknown feature."""
        receiver = self._receivers.get(owner.feature)
        return receiver is None or receiver(owner.name, outcome, now_ms)


def send(state: "State", owner: Owner, queue: str, command: Enqueue) -> None:
    """Enqueue one message into a queue of any shard, exactly once, with this turn's commit.

    ``command`` has one envelope and no ``after``. It only writes: write what causes the enqueue before the next commit.
    """
    assert len(command.envelopes) == 1, "an enqueue by the broker is one message"
    _put(state, OutboxEntry(BROKER, b"", Transfer(queue, "", 0, [], False, b"", command), owner))


def _put(state: "State", entry: OutboxEntry) -> None:
    transfer = entry.transfer
    assert transfer.enqueue is not None
    key = transfer.enqueue.fairness_key
    transfer.queue = state.runtime.definitions.partition_for(transfer.queue, key if isinstance(key, str) else key[0])
    state.outbox.add(shard_of(transfer.queue, state.shards), entry, state.batch)


def carry_out(state: "State", number: int, transfer: Transfer, now_ms: int) -> EnqueueOutcome:
    """Carry out an enqueue of another shard, or of this one. It may commit before it stores the message, not after."""
    assert transfer.enqueue is not None
    try:
        high, low = enqueue_one(state, transfer.queue, transfer.enqueue, now_ms)
    except StorageError:
        raise  # not a refusal: the turn's changes may not be on disk
    except FilaError as error:
        return EnqueueOutcome(number, fault=to_fault(error))
    return EnqueueOutcome(number, high, low)


def conclude(state: "State", entry: OutboxEntry, outcome: EnqueueOutcome | None, waits_as: bytes, now_ms: int) -> None:
    """Pass the outcome of an enqueue to the owner, and try the enqueue again if it may succeed and is waited for.

    ``waits_as``: the unique name of the enqueue while it waits. Without an outcome, the queue's shard has stored nothing, and
    does not say why.
    """
    assert entry.owner is not None
    fault = outcome.fault if outcome is not None else to_fault(_unexplained(entry))
    message = (outcome.id_high, outcome.id_low) if outcome is not None and fault is None else None
    retry_ms = None
    if fault is not None and (outcome is None or from_fault(fault).retryable):
        retry_ms = now_ms + min(max(fault.retry_after_ms, RETRY_MS_MIN << min(entry.tries, 10)), RETRY_MS_MAX)
    waited_for = state.part(Owners).pass_on(entry.owner, RemoteOutcome(message, fault, retry_ms, entry.owner.number), now_ms)
    if retry_ms is not None and waited_for:
        entry.tries += 1
        state.due_index.add(retry_ms, DueKind.ENQUEUE, waits_as, state.batch, encode_entry(entry))


def go_on(state: "State", due: "Iterable[DueEntry]", now_ms: int) -> None:
    """Send enqueues again that have waited. One that has an outcome already is concluded."""
    for each in due:
        entry = decode_outbox(each.note)
        outcome, entry.outcome = entry.outcome, None
        if outcome is not None:
            conclude(state, entry, outcome, each.subject, now_ms)
        else:
            _put(state, entry)


def _unexplained(entry: OutboxEntry) -> FilaError:
    return UnsupportedVersionError(
        f"the shard of queue {entry.transfer.queue!r} has stored nothing, and does not say why: the enqueue is tried again; if "
        "that stays so, its worker runs an earlier version, which does not enqueue for other shards: upgrade it"
    )
