"""Calls about the cluster as a whole."""

from typing import cast

from fila_cluster.client.calls.request import AsksLater, Request
from fila_proto_zmq import commands


def cluster_status() -> Request:
    """Ask for the cluster's status."""
    return Request("", commands.GetClusterStatus())


async def ask_metrics(client: AsksLater) -> commands.Metrics:
    """What the router, and the workers that are up, count (``docs/metrics.md``); raises :class:`FilaError` if the router does not answer.

    Not part of the client's everyday surface: it serves monitors.
    """
    return cast(commands.Metrics, await client.request(Request("", commands.GetMetrics())))
