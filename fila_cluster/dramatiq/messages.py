"""A message that a worker has: the dramatiq message, and the lease that ends with its ack."""

import traceback
from dataclasses import dataclass
from typing import Any, Final

from dramatiq import Message, MessageProxy
from dramatiq.errors import DecodeError

from fila_cluster import Delivery
from fila_proto_zmq.limits import METADATA_BYTES_MAX

ETA: Final = "eta"
"""The option with the time of a delayed message, in Unix milliseconds."""


@dataclass(frozen=True, slots=True)
class Again:
    """How a delivered message is to be run once more."""

    message: "Message[Any]"
    data: bytes
    delay_ms: int


class DeliveredMessage(MessageProxy):
    """A message and its lease.

    To enqueue it once more, as ``Retries`` does, and then to ack it would be two steps, of which a crash could leave out one.
    So the first is noted here, and the ack becomes one settlement: *retry after so long*, with the message as it is then. It
    keeps its id, its place and its attempts.
    """

    def __init__(self, message: "Message[Any]", delivery: Delivery) -> None:
        super().__init__(message)
        self.delivery = delivery
        self.again: Again | None = None

    def run_again(self, message: "Message[Any]", delay_ms: int) -> bool:
        """Note that it is to be run once more; False if one settlement can't say that."""
        if self.again is not None or self.failed or message.queue_name != self.queue_name:
            return False
        data = message.encode()
        if len(data) > METADATA_BYTES_MAX:
            return False
        self.again = Again(message, data, delay_ms)
        return True

    @property
    def error(self) -> str:
        """Why its last attempt failed, as dead letters and retries show it. The end of a longer text is kept."""
        if self._exception is not None:
            return "".join(traceback.format_exception(self._exception, limit=-30))
        return str(self.options.get("traceback") or "")


def delivered(delivery: Delivery) -> DeliveredMessage:
    """Return the message of a delivery. Raises :class:`DecodeError` if it is none.

    A message that was retried is in what its last attempt left, with the options that the attempt has changed. After a
    redrive no attempt counts, and it begins as it was first sent.
    """
    message = _left_by_attempt(delivery) or Message.decode(delivery.payload)
    if isinstance(message.options.get(ETA), (int, float)):
        del message.options[ETA]  # it was due when it was delivered
    return DeliveredMessage(message, delivery)


def _left_by_attempt(delivery: Delivery) -> "Message[Any] | None":
    if not delivery.attempts or not delivery.metadata:
        return None
    try:
        return Message.decode(delivery.metadata)
    except DecodeError:  # another program has left something
        return None
