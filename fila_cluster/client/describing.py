"""Asking what a queue is: its options, who reads it, how its hooks fare. Not part of the client's everyday surface: it serves dashboards."""

from typing import cast

from fila_cluster.client import checks
from fila_cluster.client.asynchronous import AsyncClient
from fila_cluster.client.requests import Request
from fila_proto_zmq.commands import DescribeQueue, QueueDescription


async def describe_queue(client: AsyncClient, name: str) -> QueueDescription:
    """A queue as its shard sees it now, times in Unix ms. Raises :class:`QueueNotFoundError`."""
    return cast(QueueDescription, await client._ask(Request(checks.queue_name(name), DescribeQueue())))
