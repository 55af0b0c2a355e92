"""What those who watch a cluster ask: all counters, and what a queue is. Not part of the client's everyday surface: it serves monitors and dashboards."""

from typing import cast

from fila_cluster.client import checks
from fila_cluster.client.asynchronous import AsyncClient
from fila_cluster.client.calls.requests import Request
from fila_proto_zmq.commands import DescribeQueue, GetMetrics, Metrics, QueueDescription


async def ask_metrics(client: AsyncClient) -> Metrics:
    """What the router, and the workers that are up, count (``docs/metrics.md``); raises :class:`FilaError` if the router does not answer."""
    return cast(Metrics, await client._ask(Request("", GetMetrics())))


async def describe_queue(client: AsyncClient, name: str) -> QueueDescription:
    """A queue as its shard sees it now, times in Unix ms. Raises :class:`QueueNotFoundError`."""
    return cast(QueueDescription, await client._ask(Request(checks.queue_name(name), DescribeQueue())))
