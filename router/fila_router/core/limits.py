"""Every bound of a router in one place, each with its reason. Tests scale them down."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class RouterLimits:
    """Bounds of what clients can make a router hold."""

    sessions_max: int = 20_000
    """Sessions remembered, about 500 bytes each. Beyond, those that were silent for longest are forgotten."""
    session_silence_ms: int = 600_000
    """A session that is silent for so long is forgotten: its client greets again when it is refused. A client that holds anything at
    a worker is never silent for more than ``consumer_timeout_ms``, and at least ten times that is waited for."""


DEFAULTS = RouterLimits()
