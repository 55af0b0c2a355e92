"""How fast a queue delivers lately: a count that decays, looked at when somebody asks.

It is noted once for each time a queue is served, not for each message. A moving average over :data:`SPAN_MS` follows a change within
seconds and does not jump with every batch. Left out: rates by fairness key, which follow from the weights.
"""

from math import exp
from typing import Final

SPAN_MS: Final = 10_000
"""What was delivered so long ago counts a third (1/e) of what is delivered now."""

KNOWN_MS_MIN: Final = 1000
"""Over a shorter time than this nothing is taken for a rate: the first batch of a backlog says little of the next."""

COUNT_MIN: Final = 0.01
"""Less than this is left of what was delivered: it is too long ago to say anything."""


class Pace:
    """A rate of deliveries. ``delivered`` is as of ``noted_ms``."""

    __slots__ = ("delivered", "noted_ms", "since_ms")

    def __init__(self) -> None:
        self.delivered = 0.0
        self.noted_ms = self.since_ms = 0

    def note(self, count: int, now_ms: int) -> None:
        """So many messages were delivered."""
        left = self._left(now_ms)
        if left < COUNT_MIN:
            left, self.since_ms = 0.0, now_ms
        self.delivered, self.noted_ms = left + count, now_ms

    def per_second(self, now_ms: int) -> float:
        """Messages a second; 0 if none were delivered lately."""
        left = self._left(now_ms)
        if left < COUNT_MIN:
            return 0.0
        known_ms = max(KNOWN_MS_MIN, now_ms - self.since_ms)
        return left * 1000 / (SPAN_MS * (1 - exp(-known_ms / SPAN_MS)))

    def _left(self, now_ms: int) -> float:
        return self.delivered * exp((self.noted_ms - now_ms) / SPAN_MS) if self.delivered else 0.0
