"""The client as its deliveries use it: their verbs, and their finalizers, end here."""

from typing import TYPE_CHECKING, Any

from fila_cluster.client.calls import messages
from fila_cluster.client.protocol.delivery import Delivery
from fila_cluster.client.protocol.lease import ClientLease
from fila_cluster.client.protocol.settling import Settlement

if TYPE_CHECKING:
    from fila_cluster.client.asynchronous.client import AsyncClient


class AsyncDeliveryOwner:
    """The :class:`LeaseOwner` of a client. It keeps the client alive."""

    def __init__(self, client: "AsyncClient") -> None:
        self._client = client

    @property
    def closed(self) -> bool:
        """Whether the client is closed: then its leases were given back."""
        return self._client.closed

    def settle_one(self, delivery: Delivery, how: Settlement) -> Any:
        """Settle one delivery. Its own method returns the result of this."""
        return self._client._settle((delivery,), how, messages.failure_of_one)

    async def extend_one(self, delivery: Delivery, duration_ms: int) -> None:
        """Renew the lease of one delivery for this many milliseconds."""
        client = self._client
        call = client._io.ask(lambda now: client._session.extend(delivery, duration_ms, now))
        await client._io.wait(call)
        call.outcome()

    def forgotten(self, lease: ClientLease) -> None:
        """Note that a delivery was garbage-collected unsettled. Called at any time, in any thread."""
        self._client._session.forgotten.append(lease)
