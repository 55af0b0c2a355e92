"""Batches of messages with a callback: their commands."""

import secrets
from typing import Any

from fila_cluster.client import checks
from fila_cluster.client.calls.request import Request
from fila_cluster.client.message import Message
from fila_cluster.client.protocol.encoding import seal_message, seal_rows
from fila_proto_zmq.commands import AbandonBatch, OpenBatch, SealBatch
from fila_proto_zmq.errors import BatchError, InvalidArgumentError
from fila_proto_zmq.names import BATCH_TOKEN_BYTES, batch_id


class BatchTerms:
    """The terms of a new batch: its callback, checked, and its id."""

    def __init__(self, callback: Any, queue: Any, name: Any) -> None:
        """Raise :class:`InvalidArgumentError` if an argument is malformed."""
        if not isinstance(callback, Message):
            raise InvalidArgumentError(
                f"callback={checks.shown(callback)}: pass a Message, which is enqueued when the batch is done"
            )
        if callback.dedup_id is not None:
            raise InvalidArgumentError(
                f"the callback has dedup_id={checks.shown(callback.dedup_id)}: leave it out, "
                "a callback is enqueued once in any case"
            )
        if name is not None:
            if not isinstance(name, str):
                raise InvalidArgumentError(f"name={checks.shown(name)}: use a str, or None")
            checks.encodable("name", name)
        self.queue = checks.queue_name(queue)
        self.name: str | None = name
        self._token = secrets.token_bytes(BATCH_TOKEN_BYTES)
        self._callback = seal_rows([seal_message(callback)])

    @property
    def id(self) -> str:
        """The id of the batch."""
        return batch_id(self.queue, self._token)

    def open(self) -> Request:
        """Return the request that opens it."""
        return Request(self.queue, OpenBatch(self._token, self._callback, self.name or ""))

    def seal(self) -> Request:
        """Return the request that seals it."""
        return Request(self.queue, SealBatch(self._token))

    def abandon(self) -> Request:
        """Return the request that abandons it."""
        return Request(self.queue, AbandonBatch(self._token))


def check_open(stage: str) -> None:
    """Raise :class:`InvalidArgumentError` if a batch takes no messages. ``stage``: its state in a word, empty if open."""
    if stage:
        raise InvalidArgumentError(f"this batch is {stage}: enqueue its messages inside its with block")


def only_error(error: BatchError) -> Exception:
    """Return the error of a message that was enqueued alone."""
    result = error.results[0]
    return result if isinstance(result, Exception) else error
