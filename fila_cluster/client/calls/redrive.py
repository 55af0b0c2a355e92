"""Calls that send dead letters back to the queues they came from: a number of them, or picked ones."""

from collections.abc import Sequence
from typing import Any, Final

from fila_cluster.client import checks
from fila_cluster.client.calls.request import COUNT_MAX, AsksLater, Request
from fila_proto_zmq import commands
from fila_proto_zmq.ids import parse_id

IDS_MAX: Final = 1000
"""Ids in one command."""
_STEP: Final = 1000


class Redriving:
    """One ``redrive``; its result is how many messages went back.

    One of all messages (``count`` 0) ends when as many went as there were at the first step: messages that come back because
    their queue is gone, or fail again meanwhile, do not keep it going.
    """

    def __init__(self, dlq: Any, count: Any, fairness_key: Any) -> None:
        self.result = 0
        self._queue = checks.queue_name(dlq)
        self._count = checks.whole_number("count", count, 0, COUNT_MAX)
        self._fairness_key = checks.only_fairness_key(fairness_key)
        self._over = False

    def next_request(self) -> Request | None:
        """Return the next request; None when it is done."""
        if self._over:
            return None
        step = min(self._count - self.result, _STEP) if self._count else _STEP
        return Request(self._queue, commands.Redrive(step, self._fairness_key))

    def answered(self, redriven: commands.Redriven) -> None:
        """Count a step."""
        if not self._count:
            self._count = redriven.count + redriven.remaining
        self.result += redriven.count
        self._over = redriven.count == 0 or redriven.remaining == 0 or self.result >= self._count


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
    """Send these dead letters back to the queues they came from; return how many.

    Not part of the client's everyday surface: it serves dashboards, where people pick.

    Those that are leased, or not there any more, are skipped. The timeout counts for each thousand. Raises
    :class:`NotADeadLetterQueueError`, and :class:`InvalidArgumentError` for a bad message id.
    """
    steps = PickedRedriving(dlq, message_ids)
    while (request := steps.next_request()) is not None:
        steps.answered(await client.request(request))
    return steps.result
