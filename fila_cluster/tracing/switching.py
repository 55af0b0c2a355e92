"""Tracing on and off, and the delivery that an application is at work on."""

from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any

from opentelemetry import context as current
from opentelemetry.context import Context
from opentelemetry.trace import TracerProvider, use_span

from fila_cluster.client import tracer
from fila_cluster.client.delivery import Delivery
from fila_cluster.tracing.carrier import context_of
from fila_cluster.tracing.delivering import DeliverySpan
from fila_cluster.tracing.tracer import SpanTracer


def instrument(tracer_provider: TracerProvider | None = None) -> None:
    """Trace all clients of this process from now on, those that are open too.

    Spans go to ``tracer_provider``, else to the one that the application has set (``opentelemetry.trace.set_tracer_provider``,
    before or after this). Called again, it changes something only if it names another provider.
    """
    installed = tracer.installed
    if isinstance(installed, SpanTracer) and tracer_provider in (None, installed.provider):
        return
    uninstrument()
    tracer.installed = SpanTracer(tracer_provider)


def uninstrument() -> None:
    """Trace no more. Spans of deliveries that are not settled yet end now."""
    installed, tracer.installed = tracer.installed, None
    if isinstance(installed, SpanTracer):
        installed.close()


def processing(delivery: Delivery) -> AbstractContextManager[Any]:
    """Within the block, sync or async, be at work on ``delivery``: spans and enqueued messages become children of its span.

    An exception that leaves the block is recorded there; settling remains the caller's. Does nothing for a message without a
    trace, or when nothing is traced; one whose producer decided not to sample it keeps its children from being sampled.
    """
    if isinstance(delivery._trace, DeliverySpan):
        return use_span(delivery._trace.span, set_status_on_exception=False)
    producer = context_of(delivery) if tracer.installed is not None else None
    return nullcontext() if producer is None else _attached(producer)


@contextmanager
def _attached(context: Context) -> Iterator[None]:
    token = current.attach(context)
    try:
        yield
    finally:
        current.detach(token)
