"""Calls for other parts of this distribution: receiving for others (HTTP API), commands ahead of replies (Spark).

Not part of the client's everyday surface.
"""

from collections.abc import Coroutine, Sequence
from operator import attrgetter
from typing import Any

from fila_cluster.client import checks
from fila_cluster.client.asynchronous import AsyncClient
from fila_cluster.client.blocking import Client
from fila_cluster.client.calls import messages
from fila_cluster.client.calls.request import Listing, Request, as_request
from fila_cluster.client.protocol.delivery import AsyncDelivery, Delivery
from fila_cluster.client.protocol.ordering import Chunk
from fila_cluster.client.protocol.partitions.sending import QueueSender
from fila_cluster.client.protocol.settling import RELEASE
from fila_cluster.client.requests.call import Pending, PendingCall
from fila_cluster.client.views import QueueInfo, queue_infos
from fila_proto_zmq import commands
from fila_proto_zmq.commands import Command
from fila_proto_zmq.errors import PartitionedError
from fila_proto_zmq.record import FIXED_BYTES


async def receive_frame(client: AsyncClient, queue: str, max_messages: int, wait: float) -> list[AsyncDelivery]:
    """Receive as the client does, but no more than one frame carries: 1 MiB, or a single larger message."""
    return await client._receive(messages.one_queue(queue, max_messages), checks.wait_ms(wait), whole=False)


def give_back(client: AsyncClient, deliveries: Sequence[Delivery]) -> None:
    """Give deliveries back, uncounted: nobody has seen them."""
    client._io.ask(lambda _: client._session.release([each for each in deliveries if not each._settled]))


def given_back(delivery: AsyncDelivery) -> Coroutine[Any, Any, None]:
    """Give a delivery back, uncounted, and wait for the broker's answer."""
    owner: Any = delivery._lease.owner
    settled: Coroutine[Any, Any, None] = owner.settle_one(delivery, RELEASE)
    return settled


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


def partitions_of(client: Client, queue: str) -> list[str]:
    """Return the names of the partitions of a queue, once the client has asked anything of it; empty: it has none."""
    plan = client._session.plans.get(queue)
    return [] if plan is None else plan.names(queue)


def held_queues(client: Client, prefix: str = "") -> list[QueueInfo]:
    """Return the queues as shards hold them, by name: each partition of a queue has a row of its own, ``orders@3``.

    For readers that ask each partition for its messages. ``list_queues`` has one row for the whole queue.
    """
    listing: Listing[commands.QueueInfo] = Listing(
        lambda last, _: commands.ListQueues(prefix, after=last.name if last else ""), attrgetter("queues")
    )
    while (request := listing.next_request()) is not None:
        listing.answered(client.request(request))
    return queue_infos(listing.result)


class CommandsAhead:
    """Sends commands of a client, and waits for each reply later.

    Enqueues to a queue with several partitions go to those of their messages. Any other command names a partition.
    """

    def __init__(self, client: Client) -> None:
        self._client = client
        self._senders: dict[str, QueueSender] = {}
        """Those of queues with several partitions."""

    def start(self, command: Command | Request) -> Pending[Any]:
        """Send a command as :meth:`Client.request` does."""
        queue, asked = as_request(command)
        if isinstance(asked, commands.Enqueue) and partitions_of(self._client, queue):
            return self._spread(queue, asked)
        return self._client._start(queue, asked)

    def outcome(self, call: Pending[Any]) -> Any:
        """Wait for the reply to a command that :meth:`start` sent, and return it, or raise its error."""
        self._client._io.wait(call)
        refused = call if isinstance(call, PendingCall) and isinstance(call.error, PartitionedError) else None
        if refused is not None and isinstance(refused.command, commands.Enqueue):
            call = self._spread(refused.key, refused.command)
            self._client._io.wait(call)
        return call.outcome()

    def _spread(self, queue: str, command: commands.Enqueue) -> Pending[Any]:
        session = self._client._session
        sender = self._senders.get(queue)
        if sender is None:
            sender = self._senders[queue] = session.sender(queue)
        return self._client._io.ask(lambda now: session.send(sender, Chunk(command), now))
