"""Histograms of latencies, with HdrHistogram: three digits of precision from a microsecond to an hour.

A call of ``record_value`` takes some microseconds. So what is measured collects numbers in an ``array``, and they are
recorded afterwards.
"""

from array import array
from collections.abc import Iterable

from hdrh.histogram import HdrHistogram

from benchmarks.harness.report.results import Series

DIGITS = 3
GREATEST_NS = 3_600_000_000_000
SHOWN = (50.0, 90.0, 99.0, 99.9)
CURVE = (0.0, 25.0, 50.0, 75.0, 90.0, 95.0, 97.5, 99.0, 99.5, 99.75, 99.9, 99.95, 99.99)


class Histogram:
    """Latencies in ns. Percentiles are in ms."""

    def __init__(self, values_ns: Iterable[int] = ()) -> None:
        self._hdr = HdrHistogram(1, GREATEST_NS, DIGITS)
        self.add(values_ns)

    def add(self, values_ns: Iterable[int]) -> None:
        """Record latencies. A negative one (two clocks) counts as 1 ns."""
        for value in values_ns:
            self._hdr.record_value(min(max(1, value), GREATEST_NS))

    def record(self, value_ns: int, times: int) -> None:
        """Record a latency that several messages share."""
        self._hdr.record_value(min(max(1, value_ns), GREATEST_NS), times)

    def merge(self, other: str) -> None:
        """Add the latencies of a histogram that was encoded, in another process perhaps."""
        self._hdr.add(HdrHistogram.decode(other))

    @property
    def count(self) -> int:
        """How many latencies it has."""
        return int(self._hdr.get_total_count())

    def ms(self, percentile: float) -> float:
        """Return a percentile."""
        return float(self._hdr.get_value_at_percentile(percentile)) / 1e6

    @property
    def max_ms(self) -> float:
        """The greatest latency."""
        return float(self._hdr.get_max_value()) / 1e6

    def series(self, name: str) -> Series:
        """Return the line of a chart: latency by percentile, as far as there are enough values for it."""
        shown = [percentile for percentile in CURVE if round(self.count * (100 - percentile), 6) >= 100]
        return Series(name, list(shown), [self.ms(percentile) for percentile in shown])

    def encoded(self) -> str:
        """Return it as text."""
        text: bytes = self._hdr.encode()
        return text.decode()


def numbers() -> "array[int]":
    """Return an empty array for latencies in ns."""
    return array("q")
