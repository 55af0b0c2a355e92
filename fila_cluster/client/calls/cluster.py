"""Calls about the cluster as a whole: its status, counters and runtime config, its acts and its clients."""

import time
from collections.abc import Sequence
from typing import Any, cast

from fila_cluster.client import checks
from fila_cluster.client.calls.request import COUNT_MAX, AsksLater, Paging, Request
from fila_proto_zmq import commands
from fila_proto_zmq.limits import ACTS_LISTED_MAX, CONFIG_EDITS_LISTED_MAX, CONNECTIONS_LISTED_MAX, DELAY_MS_MAX


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


def audit(limit: Any) -> Request:
    """Ask for the latest administrative acts."""
    return Request("", commands.ListActs(checks.whole_number("limit", limit, 1, ACTS_LISTED_MAX)))


def close_connection(client: Any) -> Request:
    """End a client's session."""
    return Request("", commands.CloseConnection(checks.plain_text("client", client, "a name that connections() shows")))


def undo_config(version: Any, force: Any) -> Request:
    """Set a key back to what it was before a change."""
    return Request("", commands.UndoConfig(checks.whole_number("version", version, 1, 2**63 - 1), bool(force)))


class ListingConnections(Paging[commands.ConnectionView]):
    """One ``connections``; its result is the list of clients."""

    def __init__(self, limit: Any) -> None:
        super().__init__(checks.whole_number("limit", limit, 1, COUNT_MAX))

    def _ask(self) -> Request:
        after = self.result[-1].client if self.result else ""
        return Request("", commands.ListConnections(after, self._count(CONNECTIONS_LISTED_MAX)))

    def answered(self, page: commands.ConnectionList) -> None:
        """Take in a page."""
        self._add(page.connections, more=page.more)


class ListingConfigHistory(Paging[commands.ConfigEdit]):
    """One ``config_history``; its result is the list of changes."""

    def __init__(self, key: Any, limit: Any, before: Any) -> None:
        self._key = None if key is None else checks.plain_text("key", key, "for example 'throttle:provider:rate'")
        super().__init__(checks.whole_number("limit", limit, 1, COUNT_MAX))
        self._before = 0 if before is None else checks.whole_number("before", before, 1, 2**63 - 1)

    def _ask(self) -> Request:
        before = self.result[-1].version if self.result else self._before
        return Request("", commands.ListConfigHistory(self._key, before, self._count(CONFIG_EDITS_LISTED_MAX)))

    def answered(self, page: commands.ConfigHistory) -> None:
        """Take in a page."""
        self._add(page.edits, more=page.more)
