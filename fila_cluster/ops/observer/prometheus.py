"""Samples for Prometheus (text format 0.0.4)."""

from collections.abc import Iterable, Iterator, Sequence
from itertools import accumulate
from typing import Final

from prometheus_client import CONTENT_TYPE_PLAIN_0_0_4, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily
from prometheus_client.metrics_core import Metric as TextFamily
from prometheus_client.registry import Collector

from fila_cluster.ops.observer.catalogue import COUNTER, HISTOGRAM, Family
from fila_proto_zmq.commands import Histogram

CONTENT_TYPE: Final = CONTENT_TYPE_PLAIN_0_0_4


class _Collected(Collector):
    """Families for the library's interface."""

    def __init__(self, families: Iterable[Family]) -> None:
        self._families = families

    def collect(self) -> Iterator[TextFamily]:
        return map(_family, self._families)


def exposition(families: Sequence[Family]) -> bytes:
    """Return the page for ``/metrics``."""
    return generate_latest(_Collected(families))


def _family(family: Family) -> TextFamily:
    metric, names = family.metric, family.labels
    name = metric.prometheus_name.removesuffix("_total")
    if metric.kind == HISTOGRAM:
        histograms = HistogramMetricFamily(name, metric.meaning, labels=names)
        for sample in family.samples:
            assert isinstance(sample.number, Histogram)
            histograms.add_metric(sample.labels, *_buckets(sample.number, metric.scale))
        return histograms
    numbers = (CounterMetricFamily if metric.kind == COUNTER else GaugeMetricFamily)(name, metric.meaning, labels=names)
    for sample in family.samples:
        assert not isinstance(sample.number, Histogram)
        numbers.add_metric(sample.labels, sample.number * metric.scale)
    return numbers


def _buckets(histogram: Histogram, scale: float) -> tuple[list[tuple[str, float]], float]:
    """Return the upper bounds with the number of observations up to each, and the sum."""
    bounds = [str(scaled(bound, scale)) for bound in histogram.bounds]
    return list(zip([*bounds, "+Inf"], accumulate(histogram.counts), strict=True)), histogram.total * scale


def scaled(bound: int, scale: float) -> float:
    """Return a bound in the metric's unit, without the noise of binary fractions."""
    return float(f"{bound * scale:.12g}")
