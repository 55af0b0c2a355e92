"""Medians and spreads. Values of one machine scatter, so a figure is a median with its least and greatest value."""

import statistics
from collections.abc import Sequence
from math import comb
from typing import NamedTuple

CONFIDENCE = 0.95


class Spread(NamedTuple):
    """A median, and the ends of what is around it."""

    median: float
    low: float
    high: float


def spread(values: Sequence[float]) -> Spread:
    """Return the median, the least and the greatest value."""
    return Spread(statistics.median(values), min(values), max(values))


def interval(values: Sequence[float]) -> Spread:
    """Return the median with its interval of 95 % confidence.

    It is made of order statistics: the closest pair of values that has the median between them often enough. It assumes
    nothing about the distribution. With fewer than six values the pair is the least and the greatest value, and the
    confidence is lower.
    """
    ordered, total = sorted(values), len(values)
    outside, cut = 0.0, 0
    while cut < total // 2 and outside + 2 * comb(total, cut) / 2**total <= 1 - CONFIDENCE:
        outside += 2 * comb(total, cut) / 2**total
        cut += 1
    return Spread(statistics.median(ordered), ordered[max(0, cut - 1)], ordered[total - max(1, cut)])


def ratios(values: Sequence[float], others: Sequence[float]) -> list[float]:
    """Return value / other, round by round, so that what slows down one round is in both."""
    return [value / other for value, other in zip(values, others, strict=True)]
