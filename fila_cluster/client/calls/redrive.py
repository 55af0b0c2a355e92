"""Calls that send dead letters back to where they came from: so many of them, or those that somebody picked."""

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
        """Return what to ask next; None when it is done."""
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
        """Return what to ask next; None when it is done."""
        return Request(self._queue, commands.Redrive(0, None, self._left[:IDS_MAX])) if self._left else None

    def answered(self, redriven: commands.Redriven) -> None:
        """Count a step. A broker that is done with none of them is not asked about the first one again."""
        self.result += redriven.count
        del self._left[: max(1, redriven.looked_at)]


async def redrive_selected(client: AsksLater, dlq: str, message_ids: Sequence[str]) -> int:
    """Send these dead letters back to where they came from; how many went.

    Not part of the client's everyday surface: it serves dashboards, where people pick.

    Those that are leased, or not there any more, stay out of it. The timeout counts for each thousand. Raises
    :class:`NotADeadLetterQueueError`, :class:`InvalidArgumentError` for what is no message id.
    """
    steps = PickedRedriving(dlq, message_ids)
    while (request := steps.next_request()) is not None:
        steps.answered(await client.request(request))
    return steps.result
