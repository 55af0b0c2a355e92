"""Why something waits: the answer to ``why``, for programs and, as text, for people."""

from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any, Final

from fila_cluster.client.message import moment_or_none
from fila_proto_zmq import commands
from fila_proto_zmq.names import PARTITION_MARK, whole_queue

_NAMES: Final = frozenset({"queue", "source_queue", "dead_letter_queue"})
"""The details of reasons that name queues."""


@dataclass(frozen=True, slots=True)
class Reason:
    """One reason why messages wait. ``docs/why.md`` lists the codes and their ``details``.

    ``until`` is when it ends, None where that is not known.
    """

    code: str
    text: str
    until: datetime | None
    details: dict[str, Any]

    def __str__(self) -> str:
        until = "" if self.until is None else f" (until {_clock(self.until)})"
        return f"{self.code}: {self.text}{until}"


@dataclass(frozen=True, slots=True)
class Explanation:
    """Why a message, a fairness key or a queue waits; ``str()`` of it is for people.

    ``state`` is ``pending``, ``delayed``, ``leased`` or ``dead_lettered``; ``empty`` of a key or a queue without messages,
    ``unknown`` while its shard is down. The first of the ``reasons`` has to end first for a delivery to happen now.
    ``position`` is how many messages of its key go before a pending one (0: next), ``estimated_delivery_at`` follows from
    current rates; None: not known.
    """

    state: str
    reasons: list[Reason]
    position: int | None
    estimated_delivery_at: datetime | None

    def __str__(self) -> str:
        return "\n".join([self.headline, *(f"  {reason}" for reason in self.reasons)])

    @property
    def headline(self) -> str:
        """Everything but the reasons, in one line."""
        place = "" if self.position is None else f", {_place(self.position)}"
        at = self.estimated_delivery_at
        estimate = "" if at is None else f", delivery expected at {_clock(at)}, {_from_now(at)}"
        return f"{self.state}{place}{estimate}"


def explanation(reply: commands.Explained) -> Explanation:
    """Return the broker's explanation."""
    reasons = [
        Reason(each.code, each.text, moment_or_none(each.until_ms), each.details) for each in map(_whole, reply.reasons)
    ]
    return Explanation(reply.state, reasons, reply.position, moment_or_none(reply.estimated_ms))


def _whole(reason: commands.Reason) -> commands.Reason:
    """Return a reason with the names of queues in place of those of their partitions."""
    for key in _NAMES & reason.details.keys():
        name = reason.details[key]
        if isinstance(name, str) and PARTITION_MARK in name:
            reason.details[key] = whole_queue(name)
            reason.text = reason.text.replace(name, whole_queue(name))
    return reason


def _place(position: int) -> str:
    return f"behind {position:,} of its key" if position else "next of its key"


def _clock(moment: datetime) -> str:
    """Return a time of the day, with its date if it is not today."""
    day = "" if abs(moment - datetime.now(UTC)) < timedelta(hours=12) else f"{moment:%Y-%m-%d} "
    return f"{day}{moment:%H:%M:%S} UTC"


def _from_now(moment: datetime) -> str:
    seconds = (moment - datetime.now(UTC)).total_seconds()
    return f"in {seconds:,.1f} s" if seconds > 0 else "any moment"
