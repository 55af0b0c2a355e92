"""Views, for readers of whole queues: snapshots of a shard's queues, read page by page by any client that knows their name.

Not part of the client's everyday surface: it serves readers such as Spark's, whose driver opens views and whose executors
read them. ``docs/protocol.md`` has the broker's promises. Both steps may be repeated, so the client repeats them itself while
its timeout lasts.
"""

from collections.abc import Iterator, Sequence
from typing import NamedTuple

from fila_cluster.client.calls.request import AsksAhead, Request
from fila_cluster.client.requests.call import PendingCall
from fila_proto_zmq.commands import BrowseView, MessageView, OpenView, ViewBrowsed, ViewedQueue, ViewOpened
from fila_proto_zmq.limits import BROWSE_MESSAGES_MAX


class KeyRange(NamedTuple):
    """A part of a queue: fairness keys from ``from_key`` up to, not including, ``to_key`` (None: to the last)."""

    queue: str
    from_key: str = ""
    to_key: str | None = None


class ShardViews:
    """Operations on views, over a client's connection."""

    def __init__(self, client: AsksAhead) -> None:
        self._client = client

    def open(self, view: str, queues: Sequence[str], range_messages: int, idle_s: float) -> list[ViewedQueue]:
        """Take a snapshot of queues that share a shard, under a new name; return those of them that exist.

        It closes by itself.
        """
        command = OpenView(view, list(queues), range_messages, round(idle_s * 1000))
        opened: ViewOpened = self._client.outcome(self._client.start(Request(queues[0], command)))
        return opened.queues

    def pages(
        self,
        view: str,
        stretch: KeyRange,
        *,
        fairness_keys: Sequence[str] | None = None,
        states: Sequence[str] | None = None,
    ) -> Iterator[list[MessageView]]:
        """Yield a part of a queue as it was, page by page; the next page is on its way while the caller reads one."""
        command = BrowseView(
            view,
            BROWSE_MESSAGES_MAX,
            None,
            stretch.from_key,
            stretch.to_key,
            None if fairness_keys is None else list(fairness_keys),
            None if states is None else list(states),
        )
        under_way: PendingCall | None = self._client.start(Request(stretch.queue, command))
        while under_way is not None:
            page: ViewBrowsed = self._client.outcome(under_way)
            under_way = None
            if page.next is not None:
                command.start = page.next
                under_way = self._client.start(Request(stretch.queue, command))
            if page.messages:
                yield page.messages
