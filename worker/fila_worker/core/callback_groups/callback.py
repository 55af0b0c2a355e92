"""The callback of a batch: checked when the batch is opened, enqueued when it ends.

It takes the normal enqueue path (the queue's hook decides), but no limit of the queue refuses it: it was accepted when the batch
was opened.
"""

from typing import TYPE_CHECKING, Final

from fila_proto_zmq.errors import InvalidArgumentError
from fila_proto_zmq.ids import low_half
from fila_proto_zmq.limits import HEADERS_BYTES_MAX, QUEUE_NAME_BYTES_MAX
from fila_proto_zmq.names import BATCH_TOKEN_BYTES
from fila_proto_zmq.record import headers_length, open_envelope, seal_envelope
from fila_worker.core.enqueue import insert
from fila_worker.core.enqueue.enqueue import id_high
from fila_worker.core.enqueue.one_by_one import check_enqueue, incoming_single

if TYPE_CHECKING:
    from fila_proto_zmq.commands import Enqueue
    from fila_worker.core.callback_groups.owned import OwnedBatch
    from fila_worker.core.model.queues import Queue
    from fila_worker.core.model.state import State

NAME_BYTES_MAX: Final = 200

HEADER_ID: Final = "fila-batch"
HEADER_NAME: Final = "fila-batch-name"
HEADER_TOTAL: Final = "fila-batch-total"
HEADER_ACKED: Final = "fila-batch-acked"
HEADER_DEAD: Final = "fila-batch-dead"
HEADER_REMOVED: Final = "fila-batch-removed"
"""What the broker adds to the headers of a callback."""

_ADDED_BYTES_MAX: Final = QUEUE_NAME_BYTES_MAX + 2 * BATCH_TOKEN_BYTES + NAME_BYTES_MAX + 256
"""The bytes of these headers: names, values, and their lengths."""


def check_callback(state: "State", callback: "Enqueue", name: str, now_ms: int) -> None:
    """Raise the error for a callback that could not be enqueued later, or for a batch's name."""
    if len(name.encode()) > NAME_BYTES_MAX:
        raise InvalidArgumentError(f"a batch's name of {len(name.encode())} bytes: use at most {NAME_BYTES_MAX}")
    if len(callback.envelopes) != 1:
        raise InvalidArgumentError(f"{len(callback.envelopes)} callbacks: a batch has one")
    if callback.dedup_id not in ("", [""]):
        raise InvalidArgumentError("a batch's callback has a dedup_id: leave it out, a callback is enqueued once in any case")
    if callback.batch:
        raise InvalidArgumentError("a batch's callback is a member of a batch: callbacks are in no batch")
    check_enqueue(callback, state.settings.max_payload_bytes, now_ms)
    envelope = callback.envelopes[0]
    most = HEADERS_BYTES_MAX - _ADDED_BYTES_MAX
    if headers_length(envelope) > most:
        raise InvalidArgumentError(
            f"headers of {headers_length(envelope)} bytes: those of a batch's callback may have {most}, because the broker adds some"
        )
    open_envelope(envelope)


def enqueue_callback(state: "State", queue: "Queue", owned: "OwnedBatch", callback: "Enqueue", now_ms: int) -> None:
    """Enqueue the callback of a batch whose members are all done."""
    headers, payload = open_envelope(callback.envelopes[0])
    total = owned.record.counts
    headers |= {
        HEADER_ID: str(owned.name),
        HEADER_TOTAL: str(total.added),
        HEADER_ACKED: str(total.acked),
        HEADER_DEAD: str(total.dead),
        HEADER_REMOVED: str(total.removed),
    }
    if owned.record.name:
        headers[HEADER_NAME] = owned.record.name
    callback.envelopes[0] = seal_envelope(payload, headers)
    state.counters.sequence += 1
    low = low_half(state.counters.sequence)
    insert.take_in(state, queue, incoming_single(callback, id_high(state, now_ms), low, now_ms), now_ms)
