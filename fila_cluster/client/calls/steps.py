"""Calls that go in bounded steps, so that none keeps a shard busy, or fills a frame, without end.

Each gives out its next request, takes in the answer, and has its ``result`` when there is no next one. Both shells walk them
alike.
"""

from typing import Any, Protocol, TypeVar

from fila_cluster.client import checks
from fila_cluster.client.calls.requests import COUNT_MAX, Request
from fila_cluster.client.message import MessageView, message_view
from fila_proto_zmq import commands
from fila_proto_zmq.errors import InvalidArgumentError
from fila_proto_zmq.ids import parse_id
from fila_proto_zmq.limits import BROWSE_MESSAGES_MAX
from fila_proto_zmq.record import record_id

_REDRIVE_STEP = 1000
_LIMIT_MAX = 2**63 - 1
_STATES = ("pending", "delayed", "leased")

R_co = TypeVar("R_co", covariant=True)


class Steps(Protocol[R_co]):
    """A call in steps."""

    @property
    def result(self) -> R_co:
        """What came of it so far."""

    def next_request(self) -> Request | None:
        """What to ask next; None when it is done."""

    def answered(self, reply: Any) -> None:
        """Take in the answer to it."""


class Redriving:
    """One ``redrive``; its result is how many messages went back.

    Of all (``count`` 0) it is over when as many went as there were at the first step: what comes back because its queue is gone, or
    dies again meanwhile, does not keep it going.
    """

    def __init__(self, dlq: Any, count: Any, fairness_key: Any) -> None:
        self.result = 0
        self._queue = checks.queue_name(dlq)
        self._count = checks.whole_number("count", count, 0, COUNT_MAX)
        self._fairness_key = checks.only_fairness_key(fairness_key)
        self._over = False

    def next_request(self) -> Request | None:
        """What to ask next; None when it is done."""
        if self._over:
            return None
        step = min(self._count - self.result, _REDRIVE_STEP) if self._count else _REDRIVE_STEP
        return Request(self._queue, commands.Redrive(step, self._fairness_key))

    def answered(self, redriven: commands.Redriven) -> None:
        """Count a step."""
        if not self._count:
            self._count = redriven.count + redriven.remaining
        self.result += redriven.count
        self._over = redriven.count == 0 or redriven.remaining == 0 or self.result >= self._count


class Purging:
    """One ``purge_queue``; its result is how many messages were removed.

    It ends when it has removed as many as there were at the first step: who enqueues meanwhile does not keep it going.
    """

    def __init__(self, queue: Any, fairness_key: Any) -> None:
        self.result = 0
        self._request = Request(checks.queue_name(queue), commands.PurgeQueue(checks.only_fairness_key(fairness_key)))
        self._total: int | None = None
        self._over = False

    def next_request(self) -> Request | None:
        """What to ask next; None when it is done."""
        return None if self._over else self._request

    def answered(self, purged: commands.Purged) -> None:
        """Count a step."""
        if self._total is None:
            self._total = purged.count + purged.remaining
        self.result += purged.count
        self._over = purged.count == 0 or purged.remaining == 0 or self.result >= self._total


class Listing:
    """One ``list_queues``; its result are the queues."""

    def __init__(self, prefix: Any, *, active: bool = False) -> None:
        self.result: list[commands.QueueInfo] = []
        self._prefix = checks.plain_text("prefix", prefix, "the first characters of the names to list")
        self._active = active
        self._over = False

    def next_request(self) -> Request | None:
        """What to ask next; None when it is done."""
        after = self.result[-1].name if self.result else ""
        return None if self._over else Request("", commands.ListQueues(self._prefix, self._active, after))

    def answered(self, page: commands.QueueList) -> None:
        """Take in a page."""
        self.result += page.queues
        self._over = not page.more or not page.queues


class Counting:
    """One ``queue_stats``; its result is the first page with the keys of all. A key that comes twice is as it was the second time."""

    result: commands.QueueStats

    def __init__(self, name: Any) -> None:
        self._queue = checks.queue_name(name)
        self._start: int | None = 0
        self._keys: dict[str, commands.KeyStats] = {}
        self._throttles: dict[str, commands.ThrottleStats] = {}

    def next_request(self) -> Request | None:
        """What to ask next; None when it is done."""
        return None if self._start is None else Request(self._queue, commands.GetQueueStats(self._start))

    def answered(self, page: commands.QueueStats) -> None:
        """Take in a page."""
        if self._start == 0:
            self.result = page
        self.result.oldest_pending_ms = max(self.result.oldest_pending_ms, page.oldest_pending_ms)
        self._keys.update((key.fairness_key, key) for key in page.keys)
        self._throttles.update((throttle.key, throttle) for throttle in page.throttles)
        self._start = page.next or None
        if self._start is None:
            self.result.keys = list(self._keys.values())
            self.result.throttles = [self._throttles[key] for key in sorted(self._throttles)]


class Browsing:
    """One ``browse``; its result are the messages."""

    def __init__(self, queue: Any, limit: Any, after: Any, fairness_key: Any, state: Any) -> None:
        self.result: list[MessageView] = []
        self._queue = checks.queue_name(queue)
        self._limit = checks.whole_number("limit", limit, 1, _LIMIT_MAX)
        self._after = None if after is None else parse_id(after)
        self._fairness_key = checks.only_fairness_key(fairness_key)
        if state is not None and state not in _STATES:
            raise InvalidArgumentError(f"state={state!r}: use one of {', '.join(_STATES)}")
        self._state = state
        self._over = False

    def next_request(self) -> Request | None:
        """What to ask next; None when it is done."""
        if self._over:
            return None
        count = min(self._limit - len(self.result), BROWSE_MESSAGES_MAX)
        return Request(self._queue, commands.Browse(count, self._after, self._fairness_key, self._state))

    def answered(self, page: commands.Browsed) -> None:
        """Take in a page."""
        self.result += [message_view(self._queue, view) for view in page.messages]
        self._over = not page.more or not page.messages or len(self.result) >= self._limit
        if page.messages:
            self._after = record_id(page.messages[-1].record)
