"""Reservations (messages leased to a name, not to a client) and views (snapshots of queues), for readers in batches.

Not part of the client's everyday surface: it serves readers such as Spark's, whose driver reserves or opens a view, and whose
executors fetch. ``docs/protocol.md`` has the broker's promises for each step. All of them may be repeated, so the client
repeats them itself while its timeout lasts.
"""

from collections import deque
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from fila_cluster.client.calls.request import AsksAhead, Request
from fila_cluster.client.requests.call import Pending
from fila_proto_zmq import commands
from fila_proto_zmq.errors import QueueNotFoundError
from fila_proto_zmq.limits import BROWSE_MESSAGES_MAX, DELIVERY_MESSAGES_MAX

CALLS_MAX = 64
"""Calls in flight at a time, when many queues are asked the same."""

PARTS_AHEAD = 2
"""Parts that are on their way while the caller reads one."""


class WantedPart(NamedTuple):
    """A part to reserve: its queue, its number, the most messages in it."""

    queue: str
    part: int
    messages: int


class Reservations:
    """Operations on reservations, over a client's connection. Durations are seconds."""

    def __init__(self, client: AsksAhead) -> None:
        self._client = client

    def reserve(self, name: str, wanted: Sequence[WantedPart], timeout_s: float, *, wait_s: float = 0.0) -> list[int]:
        """Take parts; return how many messages each has, 0 of a deleted queue. ``wait_s``: for the first message of each."""
        timeout_ms, wait_ms = _ms(timeout_s), _ms(wait_s)
        calls = [
            (part.queue, commands.Reserve(name, part.part, min(part.messages, DELIVERY_MESSAGES_MAX), timeout_ms, wait_ms))
            for part in wanted
        ]
        replies: list[commands.Reserved | None] = self._ask_all(calls)
        return [sum(count for _, count in reply.parts) if reply else 0 for reply in replies]

    def fetch(self, name: str, queue: str, parts: Iterable[int]) -> Iterable[commands.LeaseBatch]:
        """Yield the messages of some parts, in order; the next two parts are on their way while the caller reads one.

        Raises :class:`LeaseExpiredError` if the reservation is over.
        """
        under_way: deque[Pending[Any]] = deque()
        for part in parts:
            under_way.append(self._client.start(Request(queue, commands.FetchReserved(name, part))))
            if len(under_way) > PARTS_AHEAD:
                yield from self._client.outcome(under_way.popleft()).batches
        while under_way:
            yield from self._client.outcome(under_way.popleft()).batches

    def renew(self, name: str, queues: Iterable[str], timeout_s: float) -> Mapping[str, list[tuple[int, int]]]:
        """Renew a reservation's leases; return ``(part, messages)`` of those that it still holds, by queue."""
        names = list(queues)
        command = commands.RenewReservation(name, _ms(timeout_s))
        replies: list[commands.Reserved | None] = self._ask_all([(queue, command) for queue in names])
        return {queue: reply.parts for queue, reply in zip(names, replies, strict=True) if reply and reply.parts}

    def ack(self, name: str, queues: Iterable[str]) -> int:
        """Ack all messages of a reservation; return how many. 0: it was over."""
        return self._end(name, queues, commands.Verb.ACK)

    def give_back(self, name: str, queues: Iterable[str]) -> int:
        """Put a reservation's messages in line again, without a failed attempt; return how many."""
        return self._end(name, queues, commands.Verb.RELEASE)

    def _end(self, name: str, queues: Iterable[str], verb: commands.Verb) -> int:
        replies: list[commands.ReservationEnded | None] = self._ask_all(
            [(queue, commands.EndReservation(name, verb)) for queue in queues]
        )
        return sum(reply.count for reply in replies if reply)

    def _ask_all(self, calls: Sequence[tuple[str, commands.Command]]) -> list[Any]:
        """Return the answers in order; None for a queue that is gone, with its reserved messages."""
        answers: list[Any] = []
        for start in range(0, len(calls), CALLS_MAX):
            started = [self._client.start(Request(queue, command)) for queue, command in calls[start : start + CALLS_MAX]]
            answers += [self._answer_unless_gone(call) for call in started]
        return answers

    def _answer_unless_gone(self, call: Pending[Any]) -> Any:
        try:
            return self._client.outcome(call)
        except QueueNotFoundError:
            return None


def _ms(seconds: float) -> int:
    return round(seconds * 1000)


class KeyRange(NamedTuple):
    """A part of a queue: fairness keys from ``from_key`` up to, not including, ``to_key`` (None: to the last)."""

    queue: str
    from_key: str = ""
    to_key: str | None = None


class ShardViews:
    """Operations on views, over a client's connection."""

    def __init__(self, client: AsksAhead) -> None:
        self._client = client

    def open(self, view: str, queues: Sequence[str], range_messages: int, idle_s: float) -> list[commands.ViewedQueue]:
        """Take a snapshot of queues that share a shard, under a new name; return those that exist. It closes by itself."""
        command = commands.OpenView(view, list(queues), range_messages, round(idle_s * 1000))
        opened: commands.ViewOpened = self._client.outcome(self._client.start(Request(queues[0], command)))
        return opened.queues

    def pages(
        self, view: str, stretch: KeyRange, *, fairness_keys: Sequence[str] | None = None, states: Sequence[str] | None = None
    ) -> Iterator[list[commands.MessageView]]:
        """Yield a part of a queue as it was, page by page; the next page is on its way while the caller reads one."""
        command = commands.BrowseView(
            view,
            BROWSE_MESSAGES_MAX,
            None,
            stretch.from_key,
            stretch.to_key,
            None if fairness_keys is None else list(fairness_keys),
            None if states is None else list(states),
        )
        under_way: Pending[Any] | None = self._client.start(Request(stretch.queue, command))
        while under_way is not None:
            page: commands.ViewBrowsed = self._client.outcome(under_way)
            under_way = None
            if page.next is not None:
                command.start = page.next
                under_way = self._client.start(Request(stretch.queue, command))
            if page.messages:
                yield page.messages
