"""The consumer's spans: how long a message dwelt in its queue, and how long its delivery took.

Both are children of the producer's span and made when the delivery is handed to its caller, in the caller's thread, with the
broker's times for what lies behind. A consumer whose clock is behind the broker's has spans of no length rather than of a
negative one.
"""

import time
from collections import deque
from datetime import datetime

from opentelemetry.context import Context
from opentelemetry.trace import Span, SpanKind, Tracer

from fila_cluster.client.delivery import Delivery
from fila_cluster.tracing import attributes

Open = dict["DeliverySpan", None]
Lost = deque[tuple["DeliverySpan", int]]


class DeliverySpan:
    """A ``deliver`` span. It is in ``among`` as long as it is open; who takes it out ends it, so that it ends once."""

    __slots__ = ("_among", "_lost", "_started_ns", "message_id", "queue", "span")

    def __init__(self, delivery: Delivery, span: Span, among: Open, lost: Lost) -> None:
        self.queue = delivery.queue
        self.message_id = delivery.id
        self.span = span
        self._started_ns = unix_ns(delivery.leased_at)
        self._among = among
        self._lost = lost
        among[self] = None

    @property
    def is_open(self) -> bool:
        """Whether the delivery is not settled yet, as far as this client knows."""
        return self in self._among

    def end(self, outcome: str, at_ns: int) -> None:
        """Say how the delivery ended, and when (Unix time); only the first end counts."""
        if self._among.pop(self, self) is None:
            self.span.set_attribute(attributes.OUTCOME, outcome)
            self.span.end(max(at_ns, self._started_ns))

    def abandoned(self) -> None:
        """It was garbage-collected unsettled. Only noted: a collector may run while the exporter holds its own locks."""
        self._lost.append((self, time.time_ns()))


def deliver(tracer: Tracer, delivery: Delivery, producer: Context, among: Open, lost: Lost) -> DeliverySpan | None:
    """Make the ``dwell`` and begin the ``deliver`` span; None if nobody records it."""
    queue, said = delivery.queue, attributes.of_delivery(delivery)
    since_ns = unix_ns(delivery.dead_lettered_at or delivery.enqueued_at)
    leased_ns = unix_ns(delivery.leased_at)
    dwell = tracer.start_span(
        f"dwell {queue}", producer, attributes=attributes.of_operation(queue, "dwell") | said, start_time=since_ns
    )
    dwell.end(max(since_ns, leased_ns))
    span = tracer.start_span(
        f"deliver {queue}",
        producer,
        SpanKind.CONSUMER,
        attributes.of_operation(queue, "deliver", "process") | said,
        start_time=leased_ns,
    )
    return DeliverySpan(delivery, span, among, lost) if span.is_recording() else None


def unix_ns(moment: datetime) -> int:
    """A time of the broker, which counts milliseconds."""
    return round(moment.timestamp() * 1000) * 1_000_000
