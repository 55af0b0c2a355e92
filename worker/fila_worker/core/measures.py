"""Measurements at the cost of one addition each: histograms of sizes, and a decaying rate of deliveries."""

from bisect import bisect_left
from math import exp
from typing import Final

from fila_proto_zmq import commands
from fila_proto_zmq.ids import enqueued_ms
from fila_proto_zmq.record import unpack_fixed

SPAN_NS: Final = tuple(
    us * 1000 for us in (50, 100, 250, 500, 1000, 2500, 5000, 10_000, 25_000, 50_000, 100_000, 250_000, 1_000_000)
)
"""Bounds for turns and commits: 50 µs to 1 s."""

CONFIRM_NS: Final = tuple(
    us * 1000
    for us in (
        250,
        500,
        1000,
        2500,
        5000,
        10_000,
        25_000,
        50_000,
        100_000,
        250_000,
        1_000_000,
        2_500_000,
        5_000_000,
        10_000_000,
    )
)
"""Bounds for the time of a replicated log to confirm a commit: 250 µs to 10 s, longer than a broker's death stalls it."""

RUN_NS: Final = tuple(us * 1000 for us in (1, 2, 5, 10, 20, 50, 100, 250, 1000, 10_000))
"""Bounds for runs of a hook: 1 µs to 10 ms."""

DWELL_MS: Final = (1, 2, 5, 10, 25, 50, 100, 250, 500, 1000, 2500, 5000, 10_000, 30_000, 60_000, 300_000, 3_600_000)
"""Bounds for the times that messages wait, and are leased."""

CHANGES: Final = (1, 2, 5, 10, 20, 50, 100, 200, 500, 1000, 2000, 5000, 10_000)
"""Bounds for the sizes of batches."""


class CountedHistogram:
    """Counts by size. ``counts[i]``: of values up to ``bounds[i]`` and above the bound before; the last: of larger values."""

    __slots__ = ("bounds", "counts", "total")

    def __init__(self, bounds: tuple[int, ...]) -> None:
        self.bounds = bounds
        self.counts = [0] * (len(bounds) + 1)
        self.total = 0
        """The sum of the values."""

    def observe(self, value: int) -> None:
        """Count a value."""
        self.counts[bisect_left(self.bounds, value)] += 1
        self.total += value

    def observe_often(self, value: int, times: int) -> None:
        """Count a value that occurred ``times`` times."""
        self.counts[bisect_left(self.bounds, value)] += times
        self.total += value * times

    def wire(self) -> commands.Histogram:
        """Return it in the form of the wire."""
        return commands.Histogram(list(self.bounds), list(self.counts), self.total)


SPAN_MS: Final = 10_000
"""A delivery so long ago counts about a third (1/e) of a present one."""

KNOWN_MS_MIN: Final = 1000
"""Rates need at least this time: the first batch of a backlog does not predict the next."""

COUNT_MIN: Final = 0.01
"""If the decayed count of deliveries is lower than this, they are too old for a rate."""


class DeliveryRate:
    """A rate of deliveries. ``delivered`` is as of ``noted_ms``."""

    __slots__ = ("delivered", "noted_ms", "since_ms")

    def __init__(self) -> None:
        self.delivered = 0.0
        self.noted_ms = self.since_ms = 0

    def note(self, count: int, now_ms: int) -> None:
        """Count delivered messages."""
        left = self._left(now_ms)
        if left < COUNT_MIN:
            left, self.since_ms = 0.0, now_ms
        self.delivered, self.noted_ms = left + count, now_ms

    def per_second(self, now_ms: int) -> float:
        """Return the messages a second; 0 without recent deliveries."""
        left = self._left(now_ms)
        if left < COUNT_MIN:
            return 0.0
        known_ms = max(KNOWN_MS_MIN, now_ms - self.since_ms)
        return left * 1000 / (SPAN_MS * (1 - exp(-known_ms / SPAN_MS)))

    def _left(self, now_ms: int) -> float:
        return self.delivered * exp((self.noted_ms - now_ms) / SPAN_MS) if self.delivered else 0.0


class Meter:
    """The counters of a queue that only its metrics use."""

    __slots__ = ("dwell_ms", "redriven", "rejected", "settle_ms")

    def __init__(self) -> None:
        self.redriven = 0
        """The number of dead letters that were redriven from here."""
        self.rejected: dict[str, int] = {}
        """The number of refused messages, by the error's code."""
        self.dwell_ms: CountedHistogram | None = None
        """How long messages waited for their first delivery. The first of each delivery batch counts for the others."""
        self.settle_ms: CountedHistogram | None = None
        """How long messages were leased until they were acked."""

    def delivered(self, first: bytes, count: int, now_ms: int) -> None:
        """Count a delivered batch. ``first`` is its first record."""
        _, attempts, _, high, _ = unpack_fixed(first)
        if not attempts:
            if self.dwell_ms is None:
                self.dwell_ms = CountedHistogram(DWELL_MS)
            self.dwell_ms.observe_often(max(0, now_ms - enqueued_ms(high)), count)

    def acked(self, leased_ms: int, count: int, now_ms: int) -> None:
        """Count acked messages of one lease."""
        if self.settle_ms is None:
            self.settle_ms = CountedHistogram(DWELL_MS)
        self.settle_ms.observe_often(max(0, now_ms - leased_ms), count)

    def reject(self, code: str, count: int = 1) -> None:
        """Count refused messages."""
        self.rejected[code] = self.rejected.get(code, 0) + count
