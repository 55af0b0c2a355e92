"""Send metrics and traces where OpenTelemetry's own variables say, if the application has set up no SDK itself."""

import os
from collections.abc import Callable
from typing import Final

from opentelemetry import metrics, trace

ENDPOINTS: Final = (
    "OTEL_EXPORTER_OTLP_ENDPOINT",
    "OTEL_EXPORTER_OTLP_METRICS_ENDPOINT",
    "OTEL_EXPORTER_OTLP_TRACES_ENDPOINT",
)

FLUSH_MS_MAX: Final = 3_000
"""For each of the two, at the end of a process: a collector that does not answer must not hold up a restart."""


def set_up() -> Callable[[], None]:
    """Set up the SDK if one of the variables is set, and trace the clients of this process; return what flushes at the end."""
    if not any(os.environ.get(name) for name in ENDPOINTS):
        return lambda: None
    from opentelemetry.exporter.otlp.proto.http.metric_exporter import OTLPMetricExporter  # noqa: PLC0415  # slow to import
    from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter  # noqa: PLC0415
    from opentelemetry.sdk.metrics import MeterProvider  # noqa: PLC0415
    from opentelemetry.sdk.metrics.export import PeriodicExportingMetricReader  # noqa: PLC0415
    from opentelemetry.sdk.trace import TracerProvider  # noqa: PLC0415
    from opentelemetry.sdk.trace.export import BatchSpanProcessor  # noqa: PLC0415

    from fila_cluster.tracing import instrument  # noqa: PLC0415

    flushing: list[Callable[[int], object]] = []
    if not isinstance(metrics.get_meter_provider(), MeterProvider):
        meters = MeterProvider([PeriodicExportingMetricReader(OTLPMetricExporter())], shutdown_on_exit=False)
        metrics.set_meter_provider(meters)
        flushing.append(meters.force_flush)
    if not isinstance(trace.get_tracer_provider(), TracerProvider):
        traces = TracerProvider(shutdown_on_exit=False)
        traces.add_span_processor(BatchSpanProcessor(OTLPSpanExporter()))
        trace.set_tracer_provider(traces)
        flushing.append(traces.force_flush)
    instrument()

    def flush() -> None:
        for each in flushing:
            each(FLUSH_MS_MAX)

    return flush
