"""Views of a shard in a test's hands: opened, and read page by page."""

from typing import Any

from fila_proto_zmq.commands import BrowseView, MessageView, OpenView, ViewBrowsed, ViewOpened
from fila_proto_zmq.record import payload_of
from tests.support.shard.shard import ADMIN, ShardHarness


def open_view(
    shard: ShardHarness, view: str = "v", queues: tuple[str, ...] = ("q",), range_messages: int = 1000, idle_ms: int = 600_000
) -> ViewOpened:
    reply = shard.ask(OpenView(view, list(queues), range_messages, idle_ms), queues[0], ADMIN)
    assert isinstance(reply, ViewOpened)
    return reply


def page_of(shard: ShardHarness, view: str = "v", queue: str = "q", limit: int = 1000, **options: Any) -> ViewBrowsed:
    reply = shard.ask(BrowseView(view, limit, **options), queue, ADMIN)
    assert isinstance(reply, ViewBrowsed)
    return reply


def pages_of(
    shard: ShardHarness, view: str = "v", queue: str = "q", limit: int = 1000, start: Any = None, **options: Any
) -> list[list[MessageView]]:
    """All pages from ``start`` to the end."""
    pages = []
    while True:
        page = page_of(shard, view, queue, limit, start=start, **options)
        pages.append(page.messages)
        start = page.next
        if start is None:
            return pages


def in_view(shard: ShardHarness, view: str = "v", queue: str = "q", limit: int = 1000, **options: Any) -> list[MessageView]:
    """All messages of a queue in a view."""
    return [message for page in pages_of(shard, view, queue, limit, **options) for message in page]


def payloads(messages: list[MessageView]) -> list[bytes]:
    return [payload_of(message.record) for message in messages]
