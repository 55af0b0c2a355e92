"""What a worker's thread reads from: one queue, pushed within the worker's prefetch.

Dramatiq's worker calls ``__next__`` in one thread, and ``ack`` and ``nack`` in those that run the actors. An ack is sent at
once and not waited for, as with its RabbitMQ broker; other settlements are waited for, because something may have to be said.
"""

from collections.abc import Callable, Iterable
from contextlib import contextmanager
from typing import TYPE_CHECKING, Protocol

from dramatiq import Consumer, MessageProxy
from dramatiq.errors import ConnectionClosed, DecodeError
from dramatiq.logging import get_logger

from fila_cluster.dramatiq.messages import DeliveredMessage, delivered
from fila_cluster.errors import AlreadySettledError, BatchError, FilaError, LeaseExpiredError

if TYPE_CHECKING:
    from collections.abc import Iterator

    from fila_cluster import Client, Delivery
    from fila_cluster.dramatiq.broker import FilaBroker


class Deliveries(Protocol):
    """Where a consumer's deliveries come from: a :class:`fila_cluster.Consumer`, but for tests."""

    def take(self, timeout: float, /) -> "Delivery | None":
        """Return the next one; None if there is none within ``timeout`` seconds."""

    def close(self) -> None:
        """Give back what was not taken."""


class FilaConsumer(Consumer):
    """What a worker has of one queue. ``timeout_s``: how long ``__next__`` waits for a message."""

    def __init__(self, broker: "FilaBroker", client: "Client", deliveries: Deliveries, timeout_s: float) -> None:
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
                delivery.fail(f"no message of dramatiq: {error}")
            return None

    def ack(self, message: MessageProxy) -> None:
        """Acknowledge, or give back what is to be run again."""
        self._settle(message, self._acked)

    def nack(self, message: MessageProxy) -> None:
        """Move a message to the dead letters of its queue, with its error."""
        self._settle(message, self._failed)

    def requeue(self, messages: Iterable[MessageProxy]) -> None:
        """Give messages back, unharmed and in their places: a worker that stops has not run them."""
        deliveries = [message.delivery for message in messages if isinstance(message, DeliveredMessage)]
        if not deliveries:
            return
        try:
            with as_connection_errors():
                self._client.give_back(deliveries)
        except BatchError as error:  # leases that have ended went back by themselves
            self.logger.warning("Some messages were not given back: %s", error)

    def close(self) -> None:
        """End the subscription. What was pushed and not read goes back; what the worker has can still be acked."""
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
    """Raise what may pass as an error after which dramatiq tries again."""
    try:
        yield
    except FilaError as error:
        if error.retryable:
            raise ConnectionClosed(error) from error
        raise
