"""The consumer of a worker's thread: one queue, pushed within the worker's prefetch, and its messages with their leases.

Dramatiq's worker calls ``__next__`` in one thread, and ``ack`` and ``nack`` in those that run the actors. An ack is sent
without a wait, as with its RabbitMQ broker; other settlements are awaited, because their errors have to be reported.
"""

import traceback
from collections.abc import Callable, Iterable
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, Protocol

from dramatiq import Consumer, Message, MessageProxy
from dramatiq.errors import ConnectionClosed, DecodeError
from dramatiq.logging import get_logger

from fila_cluster import Delivery
from fila_cluster.errors import AlreadySettledError, BatchError, FilaError, LeaseExpiredError
from fila_proto_zmq.limits import METADATA_BYTES_MAX

if TYPE_CHECKING:
    from collections.abc import Iterator

    from fila_cluster import Client, Delivery
    from fila_cluster.dramatiq.broker import FilaBroker

ETA: Final = "eta"
"""The option with the time of a delayed message, in Unix milliseconds."""


@dataclass(frozen=True, slots=True)
class Again:
    """The next run of a delivered message."""

    message: "Message[Any]"
    data: bytes
    delay_ms: int


class DeliveredMessage(MessageProxy):
    """A message and its lease.

    ``Retries`` enqueues a message once more, and then acks it: a crash could come between the two steps. So the first is
    noted here, and the ack becomes one settlement: *retry after so long*, with the message as it is then. It keeps its id,
    its place and its attempts.
    """

    def __init__(self, message: "Message[Any]", delivery: Delivery) -> None:
        super().__init__(message)
        self.delivery = delivery
        self.again: Again | None = None

    def run_again(self, message: "Message[Any]", delay_ms: int) -> bool:
        """Note that it is to be run once more; False if one settlement can't do that."""
        if self.again is not None or self.failed or message.queue_name != self.queue_name:
            return False
        data = message.encode()
        if len(data) > METADATA_BYTES_MAX:
            return False
        self.again = Again(message, data, delay_ms)
        return True

    @property
    def actual_cost(self) -> float | None:
        """What its run really cost, if an actor has said so: its settlement charges the difference to ``fila_cost``."""
        return self.delivery.actual_cost

    @actual_cost.setter
    def actual_cost(self, cost: float | None) -> None:
        self.delivery.actual_cost = cost

    @property
    def error(self) -> str:
        """Why its last attempt failed, as dead letters and retries show it. The end of a longer text is kept."""
        if self._exception is not None:
            return "".join(traceback.format_exception(self._exception, limit=-30))
        return str(self.options.get("traceback") or "")


def delivered(delivery: Delivery) -> DeliveredMessage:
    """Return the message of a delivery, or raise :class:`DecodeError`. A retried message is in the metadata of its last
    attempt, with the options that the attempt has changed; after a redrive it begins as it was first sent."""
    message = _left_by_attempt(delivery) or Message.decode(delivery.payload)
    if isinstance(message.options.get(ETA), (int, float)):
        del message.options[ETA]  # it was due when it was delivered
    return DeliveredMessage(message, delivery)


def _left_by_attempt(delivery: Delivery) -> "Message[Any] | None":
    if not delivery.attempts or not delivery.metadata:
        return None
    try:
        return Message.decode(delivery.metadata)
    except DecodeError:  # metadata of another program
        return None


class DeliverySource(Protocol):
    """Where a consumer's deliveries come from: a :class:`fila_cluster.Consumer`, but for tests."""

    def take(self, timeout: float, /) -> "Delivery | None":
        """Return the next one; None after ``timeout`` seconds without any."""

    def close(self) -> None:
        """Give back deliveries that were not taken."""


class FilaConsumer(Consumer):
    """A worker's consumer of one queue. ``timeout_s``: how long ``__next__`` waits for a message."""

    def __init__(self, broker: "FilaBroker", client: "Client", deliveries: DeliverySource, timeout_s: float) -> None:
        self.logger = get_logger(__name__, type(self))
        self._broker = broker
        self._client = client
        self._timeout_s = timeout_s
        self._deliveries = deliveries

    def __next__(self) -> DeliveredMessage | None:
        with as_connection_errors():
            delivery = self._deliveries.take(self._timeout_s)
        if delivery is None:
            if self._client.closed:
                raise ConnectionClosed("the broker's client is closed")
            return None
        try:
            return delivered(delivery)
        except DecodeError as error:
            self.logger.warning(
                "Message %s of queue %r can't be decoded. It goes to the dead letters: %s", delivery.id, delivery.queue, error
            )
            with as_connection_errors():
                delivery.fail(f"not a message of dramatiq: {error}")
            return None

    def ack(self, message: MessageProxy) -> None:
        """Acknowledge a message, or give it back if it is to be run again."""
        self._settle(message, self._acked)

    def nack(self, message: MessageProxy) -> None:
        """Move a message to the dead letters of its queue, with its error."""
        self._settle(message, self._failed)

    def requeue(self, messages: Iterable[MessageProxy]) -> None:
        """Give messages back to their places without a counted attempt: a worker that stops has not run them."""
        deliveries = [message.delivery for message in messages if isinstance(message, DeliveredMessage)]
        if not deliveries:
            return
        try:
            with as_connection_errors():
                self._client.give_back(deliveries)
        except BatchError as error:  # leases that have ended went back by themselves
            self.logger.warning("Some messages were not given back: %s", error)

    def close(self) -> None:
        """End the subscription. Unread messages go back; those that the worker has can still be acked."""
        self._deliveries.close()

    def _acked(self, message: DeliveredMessage) -> None:
        again = message.again
        if again is None:
            self._client.ack_soon((message.delivery,))
        else:
            message.delivery.retry(again.delay_ms / 1000, message.error, metadata=again.data)

    def _failed(self, message: DeliveredMessage) -> None:
        if message.again is not None:  # it was enqueued once more before it failed
            self._broker.put(message.again.message, message.again.delay_ms)
            message.again = None
        message.delivery.fail(message.error)

    def _settle(self, message: MessageProxy, settle: Callable[[DeliveredMessage], None]) -> None:
        if not isinstance(message, DeliveredMessage):
            self.logger.warning("%r did not come from this broker: there is nothing to settle.", message)
            return
        try:
            with as_connection_errors():
                settle(message)
        except LeaseExpiredError as error:
            self.logger.warning("Message %s will be delivered again: %s", message.message_id, error)
        except AlreadySettledError:
            self.logger.debug("Message %s was settled before.", message.message_id)


@contextmanager
def as_connection_errors() -> "Iterator[None]":
    """Raise passing errors as an error after which dramatiq tries again."""
    try:
        yield
    except FilaError as error:
        if error.retryable:
            raise ConnectionClosed(error) from error
        raise
