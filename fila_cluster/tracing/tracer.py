"""What the client calls when it is instrumented: calls and deliveries to spans.

A call that is not sampled costs what the sampler costs (about 4 µs a call or batch), a delivery without a trace a search of
its first bytes. Finalizers only leave a note; the next call, whichever it is, ends those spans.
"""

import time
from collections.abc import Sequence
from weakref import WeakKeyDictionary

from opentelemetry.trace import SpanKind, TracerProvider, get_tracer

from fila_cluster.client.delivery import Delivery
from fila_cluster.client.lease import Owner
from fila_cluster.client.options import CLIENT_VERSION
from fila_cluster.client.settling import Settlement
from fila_cluster.tracing import attributes, sending
from fila_cluster.tracing.carrier import carriers, context_of, is_sampled
from fila_cluster.tracing.delivering import Lost, Open, deliver
from fila_cluster.tracing.sending import EnqueueSpan
from fila_cluster.tracing.settling import ABANDONED, SettleSpans, settle


class SpanTracer:
    """A :class:`fila_cluster.client.tracer.Tracer` that makes OpenTelemetry's spans. ``_open``: deliveries, by their client."""

    def __init__(self, provider: TracerProvider | None = None) -> None:
        self.provider = provider
        self._tracer = get_tracer("fila_cluster", CLIENT_VERSION, provider)
        self._open: WeakKeyDictionary[Owner, Open] = WeakKeyDictionary()
        self._lost: Lost = Lost()

    def enqueuing(self, queue: str) -> EnqueueSpan | None:
        """Begin a producer's span, a child of what is current; None unless it records."""
        self._end_lost()
        said = attributes.of_operation(queue, sending.OPERATION, "send")
        span = self._tracer.start_span(f"{sending.OPERATION} {queue}", kind=SpanKind.PRODUCER, attributes=said)
        return EnqueueSpan(span) if span.is_recording() else None

    def handed_over(self, deliveries: Sequence[Delivery]) -> None:
        """Make the spans of those deliveries that carry a sampled trace."""
        if self._lost:
            self._end_lost()
        for delivery in carriers(deliveries):
            self._trace(delivery)

    def settling(self, deliveries: Sequence[Delivery], how: Settlement) -> SettleSpans | None:
        """Begin the spans of a settlement."""
        if self._lost:
            self._end_lost()
        return settle(self._tracer, deliveries, how)

    def closed(self, owner: Owner) -> None:
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
