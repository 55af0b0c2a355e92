"""Durations in microseconds, counted to three digits: exact percentiles of these, in memory with a bound.

The standard library's Counter does it: HdrHistogram's Python package takes 3 µs a value, as much as a third of what
receiving a message costs, and there is none for Linux on ARM.
"""

from collections import Counter
from collections.abc import Iterable, Mapping
from typing import Final

_DISTINCT_MAX: Final = 20_000
"""Then values are rounded to three digits: an hour then has fewer than 10,000 of them."""
_STEPS: Final = (1, 2, 5)
PERCENTILES: Final = {"p50": 50.0, "p90": 90.0, "p99": 99.0, "p999": 99.9}


class Latencies:
    """Counts of durations. ``add`` takes microseconds."""

    def __init__(self, counts: Mapping[int, int] | None = None) -> None:
        self._counts = Counter(counts or {})

    def add(self, values_us: Iterable[int]) -> None:
        """Count several."""
        self._counts.update(values_us)
        if len(self._counts) > _DISTINCT_MAX:
            self._counts = Counter(self.counts())

    def counts(self) -> dict[int, int]:
        """Return how often each duration came, in microseconds, of which three digits are kept."""
        rounded: Counter[int] = Counter()
        for value, count in self._counts.items():
            rounded[round(value, 3 - len(str(value)))] += count
        return dict(rounded)

    def merge(self, counts: Mapping[int, int]) -> None:
        """Add the counts of another one."""
        self._counts.update(counts)

    def figures_s(self) -> dict[str, float]:
        """Return mean, percentiles and maximum, in seconds; empty if nothing was counted."""
        ordered = sorted(self._counts.items())
        total = sum(count for _, count in ordered)
        if not total:
            return {}
        mean = sum(value * count for value, count in ordered) / total
        percentiles = {name: _at(ordered, total, percent) for name, percent in PERCENTILES.items()}
        return {name: value / 1e6 for name, value in ({"mean": mean} | percentiles | {"max": ordered[-1][0]}).items()}

    def histogram(self) -> list[tuple[int, int, int]]:
        """Return bins (from, to, count) in microseconds, with bounds 1, 2, 5, 10, …, from the first value's to the last's."""
        bins: Counter[int] = Counter()
        bounds = [0, *(step * 10**power for power in range(11) for step in _STEPS)]
        place = 0
        for value, count in sorted(self._counts.items()):
            while place + 1 < len(bounds) and bounds[place + 1] <= value:
                place += 1
            bins[place] += count
        if not bins:
            return []
        shown = range(min(bins), max(bins) + 1)
        return [(bounds[each], bounds[min(each + 1, len(bounds) - 1)], bins[each]) for each in shown]


def _at(ordered: list[tuple[int, int]], total: int, percent: float) -> int:
    """Return the least value that this part of all values does not exceed."""
    needed = total * percent / 100
    below = 0
    for value, count in ordered:
        below += count
        if below >= needed:
            return value
    return ordered[-1][0]


class Seen:
    """The numbers that came from one producer. Takes an eighth of the highest number in bytes."""

    def __init__(self) -> None:
        self._bits = bytearray()

    def add(self, number: int) -> bool:
        """Note a number; return whether it is new."""
        place, bit = number >> 3, 1 << (number & 7)
        if place >= len(self._bits):
            self._bits.extend(bytes(max(place + 1, 2 * len(self._bits)) - len(self._bits)))
        if self._bits[place] & bit:
            return False
        self._bits[place] |= bit
        return True

    def to_bytes(self) -> bytes:
        """Return the bitmap, lowest bit first."""
        return bytes(self._bits)


def joined(bitmaps: Iterable[bytes]) -> int:
    """Return the numbers that any bitmap has, as the bits of one integer."""
    union = 0
    for bitmap in bitmaps:
        union |= int.from_bytes(bitmap, "little")
    return union


def missing(union: int, sent: int) -> int:
    """Return how many of the numbers below ``sent`` are not in a union."""
    return sent - (union & ((1 << sent) - 1)).bit_count()


def surplus(union: int, sent: int) -> int:
    """Return how many numbers of a union are not below ``sent``."""
    return (union >> sent).bit_count()
