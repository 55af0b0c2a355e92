"""Pauses of the process, which must not count as silence of its clients."""

from typing import Final

GAP_MS: Final = 1500
"""The gap between two turns that counts as a pause: longer than the longest sleep."""


CATCH_UP_MS: Final = 500
"""How long it may take to read the waiting frames: expiry is honoured within a second, even if a load is never drained."""


class Pauses:
    """Pauses of the process (stopped, a paused machine), which must not count as silence of its clients.

    During a pause, frames wait in the socket, heartbeats and settlements among them. The worker reads a turn's worth at a
    time. So after a gap between two turns no lease and no consumer ends until all waiting frames were read. That time is
    bounded, so that a load which is never drained keeps no expired lease. A pause is forgiven once: the turn after that ends
    what has expired.
    """

    def __init__(self) -> None:
        self.forgiving = False
        """Whether frames that came during a pause may still be unread."""
        self._until_ms = 0

    def begin_turn(self, now_ms: int, gap_ms: int) -> None:
        """Begin a turn so long after the one before. Without a gap, and while nothing is forgiven, it need not be called."""
        if gap_ms > GAP_MS and not self.forgiving:
            self.forgiving = True
            self._until_ms = now_ms + CATCH_UP_MS
        elif now_ms >= self._until_ms:
            self.forgiving = False

    def drained(self) -> None:
        """Forgive nothing more: all that waited was read."""
        self.forgiving = False
