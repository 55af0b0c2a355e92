"""Redriving dead letters that somebody picked. Not part of the client's everyday surface: it serves dashboards, where people pick."""

from collections.abc import Sequence
from typing import Any, Final

from fila_cluster.client import checks
from fila_cluster.client.asynchronous import AsyncClient
from fila_cluster.client.calls.requests import Request
from fila_proto_zmq.commands import Redrive, Redriven
from fila_proto_zmq.ids import parse_id

IDS_MAX: Final = 1000
"""Ids in one command."""


class PickedRedriving:
    """One ``redrive`` of picked messages, in steps; its result is how many went back."""

    def __init__(self, dlq: Any, message_ids: Sequence[Any]) -> None:
        self.result = 0
        self._queue = checks.queue_name(dlq)
        self._left = [parse_id(each) for each in dict.fromkeys(message_ids)]

    def next_request(self) -> Request | None:
        """What to ask next; None when it is done."""
        return Request(self._queue, Redrive(0, None, self._left[:IDS_MAX])) if self._left else None

    def answered(self, redriven: Redriven) -> None:
        """Count a step. A broker that is done with none of them is not asked about the first one again."""
        self.result += redriven.count
        del self._left[: max(1, redriven.looked_at)]


async def redrive_selected(client: AsyncClient, dlq: str, message_ids: Sequence[str]) -> int:
    """Send these dead letters back to where they came from; how many went.

    Those that are leased, or not there any more, stay out of it. The timeout counts for each thousand. Raises
    :class:`NotADeadLetterQueueError`, :class:`InvalidArgumentError` for what is no message id.
    """
    steps = PickedRedriving(dlq, message_ids)
    while (request := steps.next_request()) is not None:
        steps.answered(await client._ask(request))
    return steps.result
