"""Counting observations by size, where the observations are made: one addition each, read now and then by whoever exports them."""

from bisect import bisect_left
from typing import Final

from fila_proto_zmq import commands

SPAN_NS: Final = tuple(
    us * 1000 for us in (50, 100, 250, 500, 1000, 2500, 5000, 10_000, 25_000, 50_000, 100_000, 250_000, 1_000_000)
)
"""Bounds for turns and commits: 50 µs to 1 s."""

RUN_NS: Final = tuple(us * 1000 for us in (1, 2, 5, 10, 20, 50, 100, 250, 1000, 10_000))
"""Bounds for runs of a hook: 1 µs to 10 ms."""

DWELL_MS: Final = (1, 2, 5, 10, 25, 50, 100, 250, 500, 1000, 2500, 5000, 10_000, 30_000, 60_000, 300_000, 3_600_000)
"""Bounds for the time that messages wait, and are worked on."""

CHANGES: Final = (1, 2, 5, 10, 20, 50, 100, 200, 500, 1000, 2000, 5000, 10_000)
"""Bounds for the sizes of batches."""


class Histogram:
    """Counts by size. ``counts[i]``: of values up to ``bounds[i]`` and above the bound before; one more for those above all."""

    __slots__ = ("bounds", "counts", "total")

    def __init__(self, bounds: tuple[int, ...]) -> None:
        self.bounds = bounds
        self.counts = [0] * (len(bounds) + 1)
        self.total = 0
        """Sum of the values."""

    def observe(self, value: int, times: int = 1) -> None:
        """The same value was seen so many times."""
        self.counts[bisect_left(self.bounds, value)] += times
        self.total += value * times

    def wire(self) -> commands.Histogram:
        """As it travels."""
        return commands.Histogram(list(self.bounds), list(self.counts), self.total)
