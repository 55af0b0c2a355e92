"""Calls about the cluster as a whole: its status, its counters, its runtime config."""

import time
from collections.abc import Sequence
from typing import Any, cast

from fila_cluster.client import checks
from fila_cluster.client.calls.request import AsksLater, Request
from fila_proto_zmq import commands
from fila_proto_zmq.limits import DELAY_MS_MAX


def cluster_status() -> Request:
    """Ask for the cluster's status."""
    return Request("", commands.GetClusterStatus())


def hosts() -> Request:
    """Ask which host leads and follows which shard."""
    return Request("", commands.GetHosts())


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


def create_key(name: str, allow: Sequence[str], expires: float | None) -> Request:
    """Make an API key. ``expires``: seconds from now; None: never."""
    expires_ms = (
        0 if expires is None else time.time_ns() // 1_000_000 + checks.positive_milliseconds("expires", expires, DELAY_MS_MAX)
    )
    return Request("", commands.CreateKey(name, list(allow), expires_ms))


def list_keys(name: str | None = None, after: str = "") -> Request:
    """Ask for the API keys that the asking one may manage: the one named, or a page of all."""
    return Request("", commands.ListKeys(name, after))


def revoke_key(name: str) -> Request:
    """End an API key."""
    return Request("", commands.RevokeKey(name))


async def ask_own_key(client: AsksLater) -> commands.KeyView | None:
    """Return who the client's API key is, and what it may do; None if the cluster has no authentication."""
    return cast(commands.OwnKey, await client.request(Request("", commands.GetOwnKey()))).key


def grant_key(name: str, allow: Sequence[str]) -> Request:
    """Add permissions to an API key."""
    return Request("", commands.GrantKey(name, list(allow)))


def _config_key(key: Any) -> str:
    return checks.plain_text("key", key, "for example 'throttle:provider:rate'")
