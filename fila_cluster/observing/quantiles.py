"""How long things took: quantiles of histograms, and what was observed between two looks at one.

Values are in the histogram's own unit (``turn_ns`` in nanoseconds). Within a bucket they are taken to be spread evenly, as Prometheus'
``histogram_quantile`` does, so an answer is as exact as its bucket is narrow.
"""

from collections.abc import Iterable

from fila_proto_zmq.commands import Histogram


def quantile(histogram: Histogram, q: float) -> float | None:
    """The value that a part ``q`` (0 to 1) of the observations does not exceed; None: nothing was observed.

    Above the last bound nothing is known of a value but that: then the last bound is the answer.
    """
    rank = q * sum(histogram.counts)
    if not any(histogram.counts):
        return None
    below, lower = 0, 0
    for bound, count in zip(histogram.bounds, histogram.counts, strict=False):
        if count and below + count >= rank:
            return lower + (bound - lower) * max(0.0, rank - below) / count
        below, lower = below + count, bound
    return float(lower)


def mean(histogram: Histogram) -> float | None:
    """The mean of all observations; None: there is none."""
    count = sum(histogram.counts)
    return histogram.total / count if count else None


def difference(now: Histogram, before: Histogram) -> Histogram | None:
    """What was observed since ``before``; None if they don't belong together: the counting started over."""
    if now.bounds != before.bounds or any(new < old for new, old in zip(now.counts, before.counts, strict=True)):
        return None
    counts = [new - old for new, old in zip(now.counts, before.counts, strict=True)]
    return Histogram(now.bounds, counts, now.total - before.total)


def merged(histograms: Iterable[Histogram]) -> Histogram | None:
    """All observations of histograms with the same bounds; None: there are no histograms."""
    whole: Histogram | None = None
    for each in histograms:
        if whole is None:
            whole = Histogram(each.bounds, list(each.counts), each.total)
            continue
        assert each.bounds == whole.bounds
        whole.counts = [left + right for left, right in zip(whole.counts, each.counts, strict=True)]
        whole.total += each.total
    return whole
