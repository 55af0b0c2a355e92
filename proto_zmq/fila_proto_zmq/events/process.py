"""What any part of a cluster tells of itself."""

from typing import Self

from fila_proto_zmq.errors import FilaError
from fila_proto_zmq.events.event import Event, where


class ProcessStopping(Event):
    """A part was told to stop."""

    event = "process.stopping"


class ProcessStopped(Event):
    """A part is done: all is committed and flushed."""

    event = "process.stopped"
    lived_ms: int


class ProcessFailed(Event):
    """A part that served can't go on, and ends."""

    event = "process.failed"
    level = "critical"
    error: str
    reason: str
    trace: list[str]

    @classmethod
    def of(cls, error: Exception) -> Self:
        """What ended a process. Only texts that are the project's or the system's own are told: others may quote a message."""
        reason = str(error) if isinstance(error, (FilaError, OSError, AssertionError)) else ""
        return cls(error.code if isinstance(error, FilaError) else type(error).__name__, reason, where(error))


class LinesLost(Event):
    """Nobody read standard error for a while, so lines were dropped rather than the broker held up."""

    event = "log.lines_lost"
    level = "warning"
    lines: int
