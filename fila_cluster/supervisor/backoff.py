"""How long to wait before a restart: not at all at first, then doubling while a child keeps dying without having served for a while.

What a restart costs is about a second of a processor, so only a child that dies at once could keep a machine busy. For one that serves in
between, a pause would be nothing but a longer outage of its queues.
"""

FIRST_S = 0.1
"""The first pause that is one."""
LONGEST_S = 5.0
HEALTHY_S = 2.0
"""A child that served this long was well; what ended it is news."""


class Backoff:
    """The delays of one child's restarts."""

    def __init__(self) -> None:
        self._next_s = 0.0

    def delay_s(self, served_s: float) -> float:
        """Seconds to wait after a child died that had served for ``served_s``; its start does not count."""
        delay_s = 0.0 if served_s >= HEALTHY_S else self._next_s
        self._next_s = min(LONGEST_S, max(FIRST_S, 2 * delay_s))
        return delay_s
