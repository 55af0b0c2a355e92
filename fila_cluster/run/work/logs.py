"""Logs and telemetry of a process of handlers, where the application has not set them up itself: logs with the fields of the
broker's and the message's id, metrics and traces by OpenTelemetry's own variables."""

import logging
import os
import sys
from collections.abc import Callable
from io import TextIOWrapper
from typing import Any, Final, TextIO

import structlog
from opentelemetry import metrics, trace
from structlog.typing import EventDict, Processor

FIRST: Final = ("timestamp", "level", "event", "process", "pid", "message_id", "queue", "handler")


def write_whole_lines() -> None:
    """Write each line of the standard streams by one call: processes share them. With ``PYTHONUNBUFFERED``, Python writes a
    line's end by a second call, and another process's line can come between."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, TextIOWrapper):
            stream.reconfigure(line_buffering=True, write_through=False)


def set_up_logs(process: str, *, for_people: bool, pid: int, stream: TextIO | None = None) -> None:
    """Log to ``stream`` (standard error): lines for people, or JSON; the application's own configuration stays. Within a
    handler each line has ``message_id``, ``queue`` and ``handler``, of structlog and of ``logging`` alike."""

    def who(logger: Any, method: str, event: EventDict) -> EventDict:
        event.setdefault("process", process)
        event.setdefault("pid", pid)
        return event

    first: list[Processor] = [
        structlog.contextvars.merge_contextvars,
        structlog.processors.TimeStamper(fmt="iso", utc=True),
        structlog.stdlib.add_log_level,
        who,
    ]
    if not structlog.is_configured():
        structlog.configure(
            processors=[
                *first,
                structlog.stdlib.PositionalArgumentsFormatter(),
                structlog.stdlib.ProcessorFormatter.wrap_for_formatter,
            ],
            logger_factory=structlog.stdlib.LoggerFactory(),
            wrapper_class=structlog.stdlib.BoundLogger,
            cache_logger_on_first_use=True,
        )
    root = logging.getLogger()
    if root.handlers:
        return
    handler = logging.StreamHandler(sys.stderr if stream is None else stream)
    handler.setFormatter(
        structlog.stdlib.ProcessorFormatter(
            foreign_pre_chain=first,
            processors=[structlog.stdlib.ProcessorFormatter.remove_processors_meta, *_last(for_people=for_people)],
        )
    )
    root.addHandler(handler)
    root.setLevel(logging.INFO)


def _last(*, for_people: bool) -> list[Processor]:
    if for_people:  # a plain traceback: the other kind shows local variables, and payloads among them
        return [structlog.dev.ConsoleRenderer(colors=True, exception_formatter=structlog.dev.plain_traceback)]
    return [structlog.processors.format_exc_info, _in_order, structlog.processors.JSONRenderer(default=str)]


def _in_order(logger: Any, method: str, event: EventDict) -> EventDict:
    """Put the fields that all lines have first, as in the broker's logs."""
    return {name: event[name] for name in FIRST if name in event} | dict(event)


ENDPOINTS: Final = (
    "OTEL_EXPORTER_OTLP_ENDPOINT",
    "OTEL_EXPORTER_OTLP_METRICS_ENDPOINT",
    "OTEL_EXPORTER_OTLP_TRACES_ENDPOINT",
)

FLUSH_MS_MAX: Final = 3_000
"""For each of the two, at the end of a process: a collector that does not answer must not delay a restart."""


def set_up_telemetry() -> Callable[[], None]:
    """Set up the SDK if one of the variables is set, and trace this process's clients; return a function that flushes."""
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
