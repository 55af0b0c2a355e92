"""The iterator that ``consume()`` returns; it is a context manager.

Taking a prefetched delivery is one ``popleft``. Only an empty buffer costs a lock or a future, and so does an at-most-once
delivery, which is acked when it is handed over. Leaving the iterator, for any reason, gives back the deliveries that were
not taken; those that the caller holds stay leased.
"""

from typing import TYPE_CHECKING, Self

from fila_cluster.client import checks
from fila_cluster.client.protocol import tracer
from fila_cluster.client.protocol.delivery import AsyncDelivery
from fila_cluster.client.protocol.subscription import ClientSubscription
from fila_proto_zmq.limits import WAIT_MS_MAX

if TYPE_CHECKING:
    from fila_cluster.client.asynchronous.consuming import AsyncConsuming


class AsyncConsumer:
    """Deliveries of one queue as they come, until it is closed. Several tasks may take from the same one."""

    def __init__(self, client: "AsyncConsuming", subscription: ClientSubscription) -> None:
        self._client = client
        self._subscription = subscription
        self._ready = subscription.ready

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> AsyncDelivery:
        while (delivery := self._pop()) is None:
            if self._subscription.ended:
                self._stop()
            await self._client._wait_for_delivery(self._subscription)
        return delivery

    async def take(self, timeout: float = 0.0) -> AsyncDelivery | None:
        """Return the next delivery; None if there is none in time, and once the iterator is closed.

        Args:
            timeout: How long to wait, in seconds; at most a day.

        Raises:
            QueueNotFoundError: There is no such queue.
        """
        timeout_s = checks.milliseconds("timeout", timeout, WAIT_MS_MAX) / 1000
        if not self._ready and timeout_s > 0:
            await self._client._gather(self._subscription, 1, 0.0, timeout_s)
        delivery = self._pop()
        if delivery is None and self._subscription.error is not None:
            raise self._subscription.failure()
        return delivery

    def _pop(self) -> AsyncDelivery | None:
        """Hand over the next delivery, if one is ready."""
        try:
            delivery: AsyncDelivery = self._ready.popleft()
        except IndexError:
            return None
        if delivery._lease.at_most_once:
            self._client._hand_over(delivery)
        if (installed := tracer.installed) is not None:
            installed.handed_over((delivery,))
        return delivery

    def _stop(self) -> None:
        if self._subscription.error is not None:
            raise self._subscription.failure()
        raise StopAsyncIteration

    async def close(self) -> None:
        """Give back at once the prefetched deliveries that were not taken; the broker confirms, if it answers."""
        await self._client._unsubscribe(self._subscription)

    aclose = close

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    def __del__(self) -> None:
        if not self._subscription.ended:
            self._client._abandon(self._subscription)
