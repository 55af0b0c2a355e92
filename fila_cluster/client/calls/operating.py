"""Calls of operators: who did what, who is connected, and how the runtime config came to be."""

from typing import Any

from fila_cluster.client import checks
from fila_cluster.client.calls.request import COUNT_MAX, Paging, Request
from fila_proto_zmq import commands
from fila_proto_zmq.limits import ACTS_LISTED_MAX, CONFIG_EDITS_LISTED_MAX, CONNECTIONS_LISTED_MAX


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
