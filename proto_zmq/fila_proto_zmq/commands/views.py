"""Frozen looks at queues, for reading all of them."""

from typing import ClassVar

from fila_proto_zmq.commands.backlog import MessageView
from fila_proto_zmq.commands.structs import Command, Reply, Struct


class ViewedQueue(Struct):
    """A queue in a view, and where to divide its fairness keys, in the order of their names, into ranges of about the same size.

    ``bounds`` are the first keys of the second range and of those behind it.
    """

    name: str
    messages: int
    bounds: list[str]


class ViewOpened(Reply):
    """The queues that are in a view; those that do not exist are not."""

    queues: list[ViewedQueue]


class OpenView(Command):
    """Freeze how some queues of one shard lie there now, under a name, to be read page by page with :class:`BrowseView`.

    All are named in ``queues`` and live on the shard of the routing key, which is one of them. A view that is open is
    answered for as it is. One that nobody reads for ``idle_ms`` is closed.
    """

    opcode: ClassVar[int] = 51
    reply: ClassVar[type[Reply]] = ViewOpened
    view: str
    queues: list[str]
    range_messages: int
    """About how many messages a range of keys should have."""
    idle_ms: int


class ViewBrowsed(Reply):
    """A page of a view, perhaps an empty one. ``next`` is where to go on, nil at the end."""

    messages: list[MessageView]
    next: tuple[str, bytes] | None


class BrowseView(Command):
    """A page of the routing key's queue as it was when the view was opened.

    Key by key; of each key the messages with the same throttle keys together, in line order, and then the delayed ones likewise.
    """

    opcode: ClassVar[int] = 52
    reply: ClassVar[type[Reply]] = ViewBrowsed
    view: str
    limit: int
    start: tuple[str, bytes] | None = None
    """``next`` of the page before."""
    from_key: str = ""
    to_key: str | None = None
    """Fairness keys from ``from_key`` up to, not including, ``to_key``; nil: to the last."""
    fairness_keys: list[str] | None = None
    """Only these keys."""
    states: list[str] | None = None
    """Only messages in these states."""
