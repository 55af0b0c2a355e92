"""The tracer for the client, and how tracing is switched on and off."""

import time
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any
from weakref import WeakKeyDictionary

from opentelemetry import context as current
from opentelemetry.context import Context
from opentelemetry.trace import SpanKind, TracerProvider, get_tracer, use_span

from fila_cluster.client.protocol import tracer
from fila_cluster.client.protocol.delivery import Delivery
from fila_cluster.client.protocol.lease import LeaseOwner
from fila_cluster.client.protocol.session import CLIENT_VERSION
from fila_cluster.client.protocol.settling import Settlement
from fila_cluster.tracing import spans
from fila_cluster.tracing.spans import (
    ABANDONED,
    DeliverySpan,
    EnqueueSpan,
    Lost,
    Open,
    SettleSpans,
    carriers,
    context_of,
    deliver,
    is_sampled,
    settle,
)


class SpanTracer:
    """A :class:`fila_cluster.client.protocol.tracer.Tracer` of OpenTelemetry's spans. ``_open``: open spans, by client."""

    def __init__(self, provider: TracerProvider | None = None) -> None:
        self.provider = provider
        self._tracer = get_tracer("fila_cluster", CLIENT_VERSION, provider)
        self._open: WeakKeyDictionary[LeaseOwner, Open] = WeakKeyDictionary()
        self._lost: Lost = Lost()

    def enqueuing(self, queue: str) -> EnqueueSpan | None:
        """Begin a producer's span, a child of the current one; None unless it records."""
        self._end_lost()
        said = spans.of_operation(queue, spans.OPERATION, "send")
        span = self._tracer.start_span(f"{spans.OPERATION} {queue}", kind=SpanKind.PRODUCER, attributes=said)
        return EnqueueSpan(span) if span.is_recording() else None

    def handed_over(self, deliveries: Sequence[Delivery]) -> None:
        """Make the spans of the deliveries that carry a sampled trace."""
        if self._lost:
            self._end_lost()
        for delivery in carriers(deliveries):
            self._trace(delivery)

    def settling(self, deliveries: Sequence[Delivery], how: Settlement) -> SettleSpans | None:
        """Begin the spans of a settlement."""
        if self._lost:
            self._end_lost()
        return settle(self._tracer, deliveries, how)

    def closed(self, owner: LeaseOwner) -> None:
        """End the spans of deliveries that their client has given back."""
        self._end_lost()
        now_ns = time.time_ns()
        for span in list(self._open.pop(owner, ())):
            span.end(ABANDONED, now_ns)

    def close(self) -> None:
        """End the spans of all deliveries."""
        for owner in list(self._open):
            self.closed(owner)

    def _trace(self, delivery: Delivery) -> None:
        producer = context_of(delivery)
        if producer is None or not is_sampled(producer):
            return
        lease = delivery._lease
        span = deliver(self._tracer, delivery, producer, self._open.setdefault(lease.owner, {}), self._lost)
        delivery._trace = span
        if span is not None and lease.at_most_once:
            span.end("ack", time.time_ns())
        if lease.owner.closed:  # by another thread, just now
            self.closed(lease.owner)

    def _end_lost(self) -> None:
        while self._lost:
            span, at_ns = self._lost.popleft()
            span.end(ABANDONED, at_ns)


def instrument(tracer_provider: TracerProvider | None = None) -> None:
    """Trace all clients of this process from now on, open ones too. Spans go to ``tracer_provider``, else to the one that the
    application has set, before or after this. A second call may only change the provider."""
    installed = tracer.installed
    if isinstance(installed, SpanTracer) and tracer_provider in (None, installed.provider):
        return
    uninstrument()
    tracer.installed = SpanTracer(tracer_provider)


def uninstrument() -> None:
    """Stop tracing. Spans of deliveries that are not settled yet end now."""
    installed, tracer.installed = tracer.installed, None
    if isinstance(installed, SpanTracer):
        installed.close()


def processing(delivery: Delivery) -> AbstractContextManager[Any]:
    """Attribute the block, sync or async, to ``delivery``: spans and enqueued messages become children of its span.

    An exception that leaves the block is recorded there; the caller settles. Does nothing for a message without a trace, or
    when nothing is traced; the children of an unsampled message are not sampled either.
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
