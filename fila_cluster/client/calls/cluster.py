"""Calls about the cluster as a whole: its status, counters and runtime config, its acts and its clients."""

import time
from collections.abc import Mapping, Sequence
from operator import attrgetter
from typing import Any, cast

from fila_cluster.client import checks
from fila_cluster.client.calls.request import COUNT_MAX, AsksLater, Listing, Request
from fila_proto_zmq import commands
from fila_proto_zmq.errors import InvalidArgumentError
from fila_proto_zmq.limits import CONFIG_EDITS_LISTED_MAX, CONNECTIONS_LISTED_MAX, DELAY_MS_MAX
from fila_proto_zmq.runtime_config import changes_for, throttle_entry


async def ask_metrics(client: AsksLater) -> commands.Metrics:
    """Return the counters of the router and of the workers that are up (``docs/metrics.md``), for monitors."""
    return cast(commands.Metrics, await client.request(Request("", commands.GetMetrics())))


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


def listed_connections(limit: Any) -> Listing[commands.ConnectionView]:
    """Return the steps of ``connections``."""
    most = checks.whole_number("limit", limit, 1, COUNT_MAX)
    return Listing(
        lambda last, count: commands.ListConnections(last.client if last else "", count),
        attrgetter("connections"),
        most,
        CONNECTIONS_LISTED_MAX,
    )


def throttle_changes(key: Any, limits: Mapping[str, Any]) -> list[commands.SetConfig]:
    """Return the changes that set the limits of a throttle key. A limit that is None is deleted, ``...`` stays as it is.

    All are checked before the first one is sent. Raise :class:`InvalidConfigError` for a bad key or value.
    """
    name = checks.plain_text("key", key, "a throttle key")
    changes = [
        commands.SetConfig(throttle_entry(name, limit), None if value is None else str(value))
        for limit, value in limits.items()
        if value is not ...
    ]
    if not changes:
        raise InvalidArgumentError(f"no limit to set for throttle key {checks.shown(key)}: pass {', '.join(limits)}")
    for change in changes:
        changes_for(change.key, change.value, {})
    return changes


class ListingThrottles:
    """The steps of ``list_throttles``; its result is the list."""

    def __init__(self, prefix: Any) -> None:
        self.result: list[commands.ThrottleStats] = []
        self._prefix = checks.plain_text("prefix", prefix, "the first characters of the throttle keys to list")
        self._after: str | None = ""

    def next_request(self) -> Request | None:
        """Return the request for the next page; None when it is done."""
        return None if self._after is None else Request("", commands.ListThrottles(self._prefix, self._after))

    def answered(self, page: commands.ThrottleList) -> None:
        """Take in a page."""
        self.result += page.throttles
        self._after = page.next or None


async def first_throttles(client: AsksLater, prefix: str = "") -> commands.ThrottleList:
    """Return the first page of the throttle keys that have limits, for dashboards."""
    return cast(commands.ThrottleList, await client.request(Request("", commands.ListThrottles(prefix))))


async def describe_throttle(client: AsksLater, key: str) -> commands.ThrottleList:
    """Return one throttle key, with or without limits, with its leased messages and those that wait, for dashboards."""
    return cast(commands.ThrottleList, await client.request(Request("", commands.ListThrottles(key, exact=True))))


def config_history(key: Any, limit: Any, before: Any) -> Listing[commands.ConfigEdit]:
    """Return the steps of ``config_history``."""
    of_key = None if key is None else checks.config_key(key)
    most = checks.whole_number("limit", limit, 1, COUNT_MAX)
    first = 0 if before is None else checks.whole_number("before", before, 1, 2**63 - 1)
    return Listing(
        lambda last, count: commands.ListConfigHistory(of_key, last.version if last else first, count),
        attrgetter("edits"),
        most,
        CONFIG_EDITS_LISTED_MAX,
    )
