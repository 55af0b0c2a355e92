"""Counts of a handler, for the progress line, and OpenTelemetry's metrics and spans of its calls. Only its API is used:
without an SDK of the application the instruments cost a call each and go nowhere."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import lru_cache
from typing import TYPE_CHECKING, Any, NamedTuple

from opentelemetry import metrics, trace

from fila_cluster.client.protocol import tracer
from fila_cluster.client.protocol.session import CLIENT_VERSION
from fila_cluster.tracing import processing

if TYPE_CHECKING:
    from fila_cluster.app.handlers import Handler
    from fila_cluster.client.protocol.delivery import Delivery

NAME = "fila_cluster.app"


@dataclass(slots=True)
class Tally:
    """The outcomes of a handler's messages in this process so far, and its messages in hand."""

    ack: int = 0
    nack: int = 0
    retry: int = 0
    fail: int = 0
    defer: int = 0
    own: int = 0
    """Settled by the handler itself."""
    lost: int = 0
    """The lease had ended, or the broker refused the settlement: the message comes again, or is gone."""
    given_back: int = 0
    """In hand when the process had to end."""
    in_hand: int = 0
    overdue: int = 0
    """Calls that still run after their time limit."""


class Instruments(NamedTuple):
    """The metrics of all handlers."""

    messages: Any
    seconds: Any
    in_hand: Any
    overdue: Any


@lru_cache(maxsize=1)
def instruments() -> Instruments:
    """Return the instruments, made at their first use. The application's SDK takes them over if it is set later."""
    return instruments_of(metrics.get_meter(NAME, CLIENT_VERSION))


def instruments_of(meter: metrics.Meter) -> Instruments:
    """Return the instruments of a meter."""
    return Instruments(
        meter.create_counter("fila.handler.messages", "{message}", "Deliveries that a handler has ended, by outcome"),
        meter.create_histogram("fila.handler.duration", "s", "How long a handler took for a delivery"),
        meter.create_up_down_counter("fila.handler.in_hand", "{message}", "Deliveries that a handler works on"),
        meter.create_up_down_counter("fila.handler.overdue", "{call}", "Calls that go on after their time limit"),
    )


@contextmanager
def span_of(handler: "Handler", delivery: "Delivery") -> Iterator[None]:
    """Enter a span of the handler's call within the producer's trace, if this process is instrumented."""
    if tracer.installed is None:
        yield
        return
    said = {"messaging.destination.name": handler.queue, "messaging.message.id": delivery.id, "fila.handler": handler.name}
    with processing(delivery):
        own = _tracer_of(getattr(tracer.installed, "provider", None))
        with own.start_as_current_span(f"handle {handler.queue}", attributes=said, set_status_on_exception=True):
            yield


@lru_cache(maxsize=1)
def _tracer_of(provider: trace.TracerProvider | None) -> trace.Tracer:
    return trace.get_tracer(NAME, CLIENT_VERSION, provider)
