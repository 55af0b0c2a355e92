"""Samples for OpenTelemetry collectors: OTLP over HTTP, cumulative. The SDK's instruments would count a second time, with
only their own histograms, so its data types are filled directly, and only its exporter is used."""

import asyncio
import logging
import time
from collections.abc import Callable, Sequence
from typing import Final

from opentelemetry.exporter.otlp.proto.http.metric_exporter import OTLPMetricExporter
from opentelemetry.sdk.metrics.export import (
    AggregationTemporality,
    Gauge,
    HistogramDataPoint,
    Metric,
    MetricExportResult,
    MetricsData,
    NumberDataPoint,
    ResourceMetrics,
    ScopeMetrics,
    Sum,
)
from opentelemetry.sdk.metrics.export import Histogram as HistogramData
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.util.instrumentation import InstrumentationScope

from fila_cluster.ops.analysis.watch import Watch
from fila_cluster.ops.observer.catalogue import COUNTER, HISTOGRAM, Family, MetricSample, families
from fila_cluster.ops.observer.prometheus import scaled
from fila_cluster.ops.observer.settings import without_password
from fila_process.journal import Journal
from fila_proto_zmq.commands import Histogram
from fila_proto_zmq.events import ExportFailing, ExportRecovered
from fila_proto_zmq.version import VERSION

METRICS_PATH: Final = "/v1/metrics"

EXPORT_S_MAX: Final = 5.0
"""How long one export may take, repetitions included; the next one has newer numbers anyway."""

_UNITS: Final = {"seconds": "s", "bytes": "By", "us": "us", "ratio": "1"}


class OtlpExport:
    """Exports the last answer of a watch, at intervals."""

    def __init__(
        self,
        watch: Watch,
        endpoint: str,
        service_name: str,
        interval_ms: int,
        journal: Journal,
        own: Callable[[], Sequence[Family]] = tuple,
    ) -> None:
        """``own``: gives the observer's own numbers."""
        self._watch = watch
        self._own = own
        self._resource = Resource.create({"service.name": service_name})
        self._interval_s = interval_ms / 1000
        self._shown = without_password(endpoint)
        self._journal = journal
        logging.getLogger("opentelemetry").setLevel(logging.CRITICAL)  # failures are logged below, once
        self._exporter = OTLPMetricExporter(endpoint=metrics_endpoint(endpoint), timeout=EXPORT_S_MAX)
        self._failing = False

    async def run(self) -> None:
        """Export until cancelled."""
        try:
            while True:
                await asyncio.sleep(self._interval_s)
                await asyncio.to_thread(self.export)
        finally:
            self._exporter.shutdown()

    def export(self) -> None:
        """Export once. A collector that is away is logged once, until it is back."""
        own = [] if self._watch.latest is None else self._own()
        data = metrics_data([*families(self._watch.latest), *own], self._resource, time.time_ns())
        failed = self._exporter.export(data, timeout_millis=EXPORT_S_MAX * 1000) is not MetricExportResult.SUCCESS
        if failed != self._failing:
            self._failing = failed
            self._journal.tell([(ExportFailing if failed else ExportRecovered)(self._shown)])


def metrics_endpoint(endpoint: str) -> str:
    """Return the address for metrics: the endpoint names the collector, or the full path."""
    return endpoint if endpoint.endswith(METRICS_PATH) else endpoint.rstrip("/") + METRICS_PATH


def metrics_data(known: Sequence[Family], resource: Resource, now_ns: int) -> MetricsData:
    """Return all samples in the SDK's types."""
    scope = InstrumentationScope("fila_cluster", VERSION)
    metrics = [_metric(family, now_ns) for family in known]
    return MetricsData([ResourceMetrics(resource, [ScopeMetrics(scope, metrics, "")], "")])


def _metric(family: Family, now_ns: int) -> Metric:
    metric = family.metric
    unit = _UNITS.get(metric.name.replace(".", "_").rsplit("_", 1)[-1], "")
    data: Sum | Gauge | HistogramData
    if metric.kind == HISTOGRAM:
        data = HistogramData([_histogram(family, each, now_ns) for each in family.samples], AggregationTemporality.CUMULATIVE)
    else:
        points = [_point(family, each, now_ns) for each in family.samples]
        counter = metric.kind == COUNTER
        data = Sum(points, AggregationTemporality.CUMULATIVE, is_monotonic=True) if counter else Gauge(points)
    return Metric(metric.name, metric.meaning, unit, data)


def _point(family: Family, sample: MetricSample, now_ns: int) -> NumberDataPoint:
    assert not isinstance(sample.number, Histogram)
    number = sample.number * family.metric.scale
    return NumberDataPoint(_attributes(family, sample), sample.since_ms * 1_000_000, now_ns, number)


def _histogram(family: Family, sample: MetricSample, now_ns: int) -> HistogramDataPoint:
    counted, scale = sample.number, family.metric.scale
    assert isinstance(counted, Histogram)
    bounds = [scaled(bound, scale) for bound in counted.bounds]
    return HistogramDataPoint(
        attributes=_attributes(family, sample),
        start_time_unix_nano=sample.since_ms * 1_000_000,
        time_unix_nano=now_ns,
        count=sum(counted.counts),
        sum=counted.total * scale,
        bucket_counts=counted.counts,
        explicit_bounds=bounds,
        min=None,  # type: ignore[arg-type]  # not known; the protocol may leave them out
        max=None,  # type: ignore[arg-type]
    )


def _attributes(family: Family, sample: MetricSample) -> dict[str, str]:
    return dict(zip(family.labels, sample.labels, strict=False))  # a queue without partitions has one label less
