"""How long to wait before a restart: doubling while a child keeps dying, forgotten once it has lived for a while."""

FIRST_S = 0.1
LONGEST_S = 5.0
HEALTHY_S = 30.0
"""A child that lived this long was well; what killed it is news."""


class Backoff:
    """The delays of one child's restarts."""

    def __init__(self) -> None:
        self._next_s = FIRST_S

    def delay_s(self, lived_s: float) -> float:
        """Seconds to wait after a child died that had lived for ``lived_s``."""
        if lived_s >= HEALTHY_S:
            self._next_s = FIRST_S
        delay_s = self._next_s
        self._next_s = min(LONGEST_S, 2 * delay_s)
        return delay_s
