"""Calls for other parts of this distribution: receiving for others (HTTP API), commands ahead of replies (Spark).

Not part of the client's everyday surface.
"""

from collections.abc import Sequence
from typing import Any

from fila_cluster.client import checks
from fila_cluster.client.asynchronous import AsyncClient
from fila_cluster.client.blocking import Client
from fila_cluster.client.calls import messages
from fila_cluster.client.calls.request import Request, as_request
from fila_cluster.client.protocol.delivery import AsyncDelivery, Delivery
from fila_cluster.client.requests.call import PendingCall
from fila_proto_zmq.commands import Command
from fila_proto_zmq.record import FIXED_BYTES


async def receive_frame(client: AsyncClient, queue: str, max_messages: int, wait: float) -> list[AsyncDelivery]:
    """Receive as the client does, but no more than one frame carries: 1 MiB, or a single larger message."""
    return await client._receive(messages.one_queue(queue, max_messages), checks.wait_ms(wait), whole=False)


def give_back(client: AsyncClient, deliveries: Sequence[Delivery]) -> None:
    """Give deliveries back, uncounted: nobody has seen them."""
    client._io.ask(lambda _: client._session.release([each for each in deliveries if not each._settled]))


def settled_by_itself(delivery: Delivery) -> bool:
    """Return whether there is nothing to settle, because its queue delivers at most once."""
    return delivery._lease.at_most_once


def drop_content(delivery: Delivery) -> None:
    """Drop all of a delivery but its id, its queue and its times, if it is only kept to be settled."""
    delivery._packed = delivery._packed[:FIXED_BYTES]
    delivery._payload = delivery._headers = delivery._extension = None


def let_lapse(delivery: Delivery) -> None:
    """Keep a delivery no longer. Its lease ends at its time."""
    if not delivery._settled:
        delivery._settled = True
        owner: Any = delivery._lease.owner
        owner.forgotten(delivery._lease)


class CommandsAhead:
    """Sends commands of a client, and waits for each reply later."""

    def __init__(self, client: Client) -> None:
        self._client = client

    def start(self, command: Command | Request) -> PendingCall:
        """Send a command as :meth:`Client.request` does."""
        return self._client._start(*as_request(command))

    def outcome(self, call: PendingCall) -> Any:
        """Wait for the reply to a command that :meth:`start` sent, and return it, or raise its error."""
        self._client._io.wait(call)
        return call.outcome()
