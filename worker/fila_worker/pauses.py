"""A process that was away (stopped, a paused machine) must not hold its own silence against those who talked meanwhile.

Frames that came while it was away wait in its socket, heartbeats and settlements among them; it reads a turn's worth at a time. So after
a gap between two turns no lease is ended, and no consumer given up, until all that waited was read. That takes a moment; it
is bounded, so that a load which is never drained keeps no expired lease alive.
"""

from typing import Final

GAP_MS: Final = 1500
"""From one turn to the next: longer than the longest sleep, so it was no sleep."""

CATCH_UP_MS: Final = 500
"""How long it may take to read what waited: expiry is honoured within a second, also under a load that is never drained."""


class Pauses:
    """Notices that the process was away. A pause is forgiven once; the turn after that ends what has expired, whatever waits."""

    def __init__(self) -> None:
        self.forgiving = False
        """Whether older frames than a turn's time tells may still be unread."""
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
