"""Whether a child that runs also lives: its main loop writes a byte a second, and one that is silent for long hangs.

It is judged from its first byte on, because a start may take long: a log is replayed, a slow disk is read. Silence does not count while the
supervisor itself was paused and could not listen.
"""

from typing import Final

from fila_process.heartbeat import BEAT_S

HUNG_S: Final = 10.0
"""Silence after which a child hangs. Its turns take milliseconds; a slow disk may hold up a commit for seconds."""

GRACE_S: Final = 2.0
"""How long one that hangs may take to end by itself before it is killed."""

PAUSE_S: Final = 3.0
"""The supervisor turns once a second; a longer pause was its own."""


class Liveness:
    """What is known of one child's life. Times are monotonic seconds."""

    def __init__(self) -> None:
        self._heard_at: float | None = None
        self._beats = 0

    def heard(self, now: float, beats: int = 1) -> None:
        """It has written so many bytes."""
        self._heard_at = now
        self._beats += beats

    def excuse(self, now: float) -> None:
        """It may have written, and nobody listened."""
        if self._heard_at is not None:
            self._heard_at = now

    @property
    def served_s(self) -> float:
        """For how long its main loop has turned, whenever that was heard; 0 before its second byte."""
        return max(0, self._beats - 1) * BEAT_S

    def silent_s(self, now: float) -> float:
        """For how long nothing was heard of it; 0 before its first byte."""
        return 0.0 if self._heard_at is None else now - self._heard_at
