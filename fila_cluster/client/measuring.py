"""Asking for all counters of a cluster, as monitors do. Not part of the client's everyday surface: ``docs/metrics.md`` says what they mean."""

from typing import cast

from fila_cluster.client.asynchronous import AsyncClient
from fila_cluster.client.requests import Request
from fila_proto_zmq.commands import GetMetrics, Metrics


async def ask_metrics(client: AsyncClient) -> Metrics:
    """What the router, and the workers that are up, count; raises :class:`FilaError` if the router does not answer."""
    return cast(Metrics, await client._ask(Request("", GetMetrics())))
