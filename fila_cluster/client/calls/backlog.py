"""Calls about the messages that lie in a queue: browse, cancel, purge, redrive, move."""

from collections.abc import Sequence
from typing import Any, Final, NamedTuple

from fila_cluster.client import checks
from fila_cluster.client.calls.request import COUNT_MAX, AsksLater, Paging, Request
from fila_cluster.client.message import MessageView, message_view
from fila_proto_zmq import commands
from fila_proto_zmq.errors import InvalidArgumentError
from fila_proto_zmq.ids import parse_id
from fila_proto_zmq.limits import BROWSE_MESSAGES_MAX
from fila_proto_zmq.record import record_id

_LIMIT_MAX = 2**63 - 1
_STATES = ("pending", "delayed", "leased")


class Browsing(Paging[MessageView]):
    """One ``browse``; its result is the list of messages."""

    def __init__(self, queue: Any, limit: Any, after: Any, fairness_key: Any, state: Any) -> None:
        self._queue = checks.queue_name(queue)
        super().__init__(checks.whole_number("limit", limit, 1, _LIMIT_MAX))
        self._after = None if after is None else parse_id(after)
        self._fairness_key = checks.only_fairness_key(fairness_key)
        if state is not None and state not in _STATES:
            raise InvalidArgumentError(f"state={checks.shown(state)}: use one of {', '.join(_STATES)}")
        self._state = state

    def _ask(self) -> Request:
        count = self._count(BROWSE_MESSAGES_MAX)
        return Request(self._queue, commands.Browse(count, self._after, self._fairness_key, self._state))

    def answered(self, page: commands.Browsed) -> None:
        """Take in a page."""
        self._add([message_view(self._queue, view) for view in page.messages], more=page.more)
        if page.messages:
            self._after = record_id(page.messages[-1].record)


class Page(NamedTuple):
    """Messages in browsing order. ``more``: others may follow."""

    messages: list[MessageView]
    more: bool


async def browse_page(
    client: AsksLater,
    queue: str,
    limit: int,
    *,
    after: str | None = None,
    fairness_key: str | None = None,
    state: str | None = None,
) -> Page:
    """Look at up to ``limit`` messages, at most 1,000 or about 1 MiB of them. Raises as ``browse`` does.

    Not part of the client's everyday surface: it serves dashboards. ``browse`` returns any number of messages, in as many
    steps as that takes. A page is one step: as much as fits into one answer of the broker, so that a thousand messages of 16
    MiB never travel for their ids alone.
    """
    browsing = Browsing(queue, limit, after, fairness_key, state)
    request = browsing.next_request()
    assert request is not None
    answer: commands.Browsed = await client.request(request)
    browsing.answered(answer)
    return Page(browsing.result, answer.more)


IDS_MAX: Final = 1000
"""Ids in one command."""
_STEP: Final = 1000
_PORTION_S: Final = 0.1
"""The time whose messages a move with a rate takes together."""


class _Counted:
    """The :class:`Steps` of a command that works off messages, a bounded number at a time. ``result``: how many so far.

    One of all messages (``count`` 0) ends when as many are done as there were at the first step: messages that come later,
    or come back, do not keep it going.
    """

    def __init__(self, queue: Any, fairness_key: Any, count: Any = 0) -> None:
        self.result = 0
        self._queue = checks.queue_name(queue)
        self._count = checks.whole_number("count", count, 0, COUNT_MAX)
        self._fairness_key = checks.only_fairness_key(fairness_key)
        self._over = False

    def next_request(self) -> Request | None:
        """Return the next request; None when it is done."""
        return None if self._over else Request(self._queue, self._step())

    def _step(self) -> commands.Command:
        """Return the command of the next step."""
        raise NotImplementedError

    def answered(self, step: Any) -> None:
        """Count a step."""
        if not self._count:
            self._count = step.count + step.remaining
        self.result += step.count
        self._over = step.count == 0 or step.remaining == 0 or self.result >= self._count


class Purging(_Counted):
    """One ``purge_queue``; its result is how many messages were removed."""

    def _step(self) -> commands.Command:
        return commands.PurgeQueue(self._fairness_key)


class Redriving(_Counted):
    """One ``redrive``; its result is how many messages went back."""

    def __init__(self, dlq: Any, count: Any, fairness_key: Any) -> None:
        super().__init__(dlq, fairness_key, count)

    def _step(self) -> commands.Command:
        return commands.Redrive(min(self._count - self.result, _STEP) if self._count else _STEP, self._fairness_key)


class Moving(_Counted):
    """One ``move``; its result is how many messages have arrived. ``pause_s``: how long to wait before the next request."""

    def __init__(self, queue: Any, target: Any, fairness_key: Any, count: Any, rate: Any) -> None:
        super().__init__(queue, fairness_key, count)
        self.pause_s = 0.0
        self._target = checks.queue_name(target)
        self._rate = None if rate is None else checks.per_second(rate)

    def _step(self) -> commands.Command:
        most = _STEP if self._rate is None else min(_STEP, max(1, int(self._rate * _PORTION_S)))
        return commands.MoveMessages(
            self._target, min(self._count - self.result, most) if self._count else most, self._fairness_key
        )

    def answered(self, step: Any) -> None:
        """Count a step."""
        super().answered(step)
        self.pause_s = 0.0 if self._rate is None or self._over else step.count / self._rate


class PickedRedriving:
    """One ``redrive`` of picked messages, in steps; its result is how many went back."""

    def __init__(self, dlq: Any, message_ids: Sequence[Any]) -> None:
        self.result = 0
        self._queue = checks.queue_name(dlq)
        self._left = [parse_id(each) for each in dict.fromkeys(message_ids)]

    def next_request(self) -> Request | None:
        """Return the next request; None when it is done."""
        return Request(self._queue, commands.Redrive(0, None, self._left[:IDS_MAX])) if self._left else None

    def answered(self, redriven: commands.Redriven) -> None:
        """Count a step. After a step without progress the first message is skipped, so that the call ends."""
        self.result += redriven.count
        del self._left[: max(1, redriven.looked_at)]


async def redrive_selected(client: AsksLater, dlq: str, message_ids: Sequence[str]) -> int:
    """Send these dead letters back, for dashboards where people pick; return how many. Others than pending ones stay."""
    steps = PickedRedriving(dlq, message_ids)
    while (request := steps.next_request()) is not None:
        steps.answered(await client.request(request))
    return steps.result
