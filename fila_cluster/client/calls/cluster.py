"""Calls about the cluster as a whole: its status, its counters, its runtime config."""

from typing import Any, cast

from fila_cluster.client import checks
from fila_cluster.client.calls.request import AsksLater, Request
from fila_proto_zmq import commands


def cluster_status() -> Request:
    """Ask for the cluster's status."""
    return Request("", commands.GetClusterStatus())


async def ask_metrics(client: AsksLater) -> commands.Metrics:
    """Return the counters of the router and of the workers that are up (``docs/metrics.md``).

    Raises :class:`FilaError` if the router does not answer.

    Not part of the client's everyday surface: it serves monitors.
    """
    return cast(commands.Metrics, await client.request(Request("", commands.GetMetrics())))


def set_config(key: Any, value: Any) -> Request:
    """Set a key of the runtime config."""
    return Request("", commands.SetConfig(_config_key(key), checks.plain_text("value", value, "for example str(value)")))


def delete_config(key: Any) -> Request:
    """Delete a key of the runtime config."""
    return Request("", commands.SetConfig(_config_key(key), None))


def get_config(key: Any) -> Request:
    """Ask for a key of the runtime config."""
    return Request("", commands.GetConfig(_config_key(key)))


def list_config(prefix: Any) -> Request:
    """Ask for the keys of the runtime config that start with ``prefix``."""
    return Request("", commands.ListConfig(checks.plain_text("prefix", prefix, "the first characters of the keys to list")))


def _config_key(key: Any) -> str:
    return checks.plain_text("key", key, "for example 'throttle:provider:rate'")
