"""The wording of reasons: numbers and durations for people; the details have the same numbers for programs."""

from typing import Any

from fila_proto_zmq.commands import Reason
from fila_proto_zmq.reasons import ReasonCode
from fila_worker.core.model.leases import Holder, Reservation


def reason(code: ReasonCode, text: str, until_ms: int = 0, /, **details: Any) -> Reason:
    """Return a reason. ``until_ms`` is when it ends, 0 if that is not known."""
    return Reason(code.value, text, until_ms, details)


def span(milliseconds: float) -> str:
    """Return a duration for people; never below 0."""
    seconds = max(0.0, milliseconds / 1000)
    for unit, length_s in (("days", 86_400), ("h", 3600), ("min", 60)):
        if seconds >= 2 * length_s:
            return f"{seconds / length_s:.1f} {unit}"
    return f"{seconds:.1f} s"


def counted(count: int, noun: str) -> str:
    """Return a count with its noun in the right number."""
    return f"{count:,} {noun}" if count == 1 else f"{count:,} {noun}s"


def holder(who: "Holder") -> str:
    """Return the holder of a lease in words."""
    return f"reservation {who.shown!r}" if isinstance(who, Reservation) else f"client {who.shown}"
