"""Requests: a command for the cluster or for a queue, and calls that take several of them."""

import sys
from collections.abc import Callable, Sequence
from typing import Any, Generic, NamedTuple, Protocol, TypeVar

from fila_cluster.client import checks
from fila_cluster.client.requests.call import Pending
from fila_proto_zmq import commands
from fila_proto_zmq.errors import InvalidArgumentError
from fila_proto_zmq.names import check_routing_key

COUNT_MAX = 2**31 - 1


class Request(NamedTuple):
    """A command of the protocol, and the queue that it is for ("" for the whole cluster)."""

    queue: str
    command: commands.Command


def as_request(command: Any) -> Request:
    """Return the request that a caller passed, checked."""
    if isinstance(command, commands.Command):
        return Request("", command)
    if isinstance(command, Request) and isinstance(command.command, commands.Command):
        return command if command.queue == "" else Request(_routing_key(command.queue), command.command)
    raise InvalidArgumentError(
        f"command={checks.shown(command)}: pass a command of fila_proto_zmq.commands, or Request(queue, command) for a queue"
    )


def _routing_key(name: Any) -> str:
    return check_routing_key(name) if isinstance(name, str) else checks.queue_name(name)


class AsksLater(Protocol):
    """The part of an asyncio client that calls outside its methods need."""

    async def request(self, command: Request) -> Any:
        """Send a command and return its reply."""


class AsksAhead(Protocol):
    """The part of a blocking client that readers with several commands under way need."""

    def start(self, command: Request) -> Pending[Any]:
        """Send a command."""

    def outcome(self, call: Pending[Any]) -> Any:
        """Return the reply, once it is there."""


Entry = TypeVar("Entry")
R_co = TypeVar("R_co", covariant=True)


class Steps(Protocol[R_co]):
    """A call in bounded steps: no step keeps a shard busy, or fills a frame, without end.

    It gives its next request, takes in the answer, and has its ``result`` when there is no next one.
    """

    @property
    def result(self) -> R_co:
        """The result so far."""

    def next_request(self) -> Request | None:
        """Return the next request; None when it is done."""

    def answered(self, reply: Any) -> None:
        """Take in the answer."""


class Paging(Generic[Entry]):
    """The :class:`Steps` of a list that the broker gives out in pages. Its ``result`` has the entries so far.

    A subclass makes the request for the next page in ``_ask``, and passes the entries of each page to ``_add``.
    """

    def __init__(self, limit: int = sys.maxsize) -> None:
        self.result: list[Entry] = []
        self._limit = limit
        self._over = False

    def next_request(self) -> Request | None:
        """Return the request for the next page; None when there is nothing more to ask."""
        return None if self._over else self._ask()

    def _ask(self) -> Request:
        """Return the request for the page that follows the result so far."""
        raise NotImplementedError

    def _count(self, page_max: int) -> int:
        """Return how many entries to ask for, if a page has at most ``page_max``."""
        return min(self._limit - len(self.result), page_max)

    def _add(self, entries: Sequence[Entry], *, more: bool) -> None:
        """Take in the entries of a page. ``more``: others may follow. An empty page is the last, so that the call ends."""
        self.result += entries
        self._over = not more or not entries or len(self.result) >= self._limit


class Listing(Paging[Entry]):
    """A list whose next page is asked for by the last entry so far.

    ``ask``: returns the command for the page after an entry, None at first, of at most so many entries. ``entries``: returns
    those of an answer.
    """

    def __init__(
        self,
        ask: Callable[[Entry | None, int], commands.Command],
        entries: Callable[[Any], list[Entry]],
        limit: int = sys.maxsize,
        page_max: int = 0,
    ) -> None:
        super().__init__(limit)
        self._ask_after, self._entries, self._page_max = ask, entries, page_max

    def _ask(self) -> Request:
        return Request("", self._ask_after(self.result[-1] if self.result else None, self._count(self._page_max)))

    def answered(self, page: Any) -> None:
        """Take in a page."""
        self._add(self._entries(page), more=page.more)
