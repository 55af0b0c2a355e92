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

    closing: list[Callable[[], object]] = []
    if not isinstance(metrics.get_meter_provider(), MeterProvider):
        meters = MeterProvider([PeriodicExportingMetricReader(OTLPMetricExporter())])
        metrics.set_meter_provider(meters)
        closing.append(meters.shutdown)
    if not isinstance(trace.get_tracer_provider(), TracerProvider):
        traces = TracerProvider()
        traces.add_span_processor(BatchSpanProcessor(OTLPSpanExporter()))
        trace.set_tracer_provider(traces)
        closing.append(traces.shutdown)
    instrument()

    def close() -> None:
        for shut_down in closing:
            shut_down()

    return close
