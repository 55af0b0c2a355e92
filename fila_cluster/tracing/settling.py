"""The span of a settlement: from the call until the broker confirmed. It ends its delivery's span, unless it may be repeated."""

import time
from collections.abc import Sequence
from typing import Final, NamedTuple, TypeAlias

from opentelemetry.trace import Span, SpanKind, Tracer, set_span_in_context

from fila_cluster.client.delivery import Delivery
from fila_cluster.client.settling import Settlement, Settling
from fila_cluster.tracing import attributes
from fila_cluster.tracing.delivering import DeliverySpan
from fila_proto_zmq.commands import Verb
from fila_proto_zmq.errors import AlreadySettledError, FilaError, InvalidArgumentError, LeaseExpiredError

ABANDONED: Final = "abandoned"
EXPIRED: Final = "expired"
UNKNOWN: Final = "unknown"
"""Outcomes beside the verbs: never settled here; the lease had ended; nobody waited for the answer."""


Failure: TypeAlias = tuple[str, str]
"""Its kind and its text."""


class One(NamedTuple):
    """A traced delivery among those that one call settles."""

    position: int
    delivery: DeliverySpan
    span: Span


class SettleSpans:
    """The ``settle`` spans of one call, one for each traced delivery."""

    __slots__ = ("_how", "_ones")

    def __init__(self, ones: list[One], how: Settlement) -> None:
        self._ones = ones
        self._how = how

    def ended(self, settling: Settling) -> None:
        """Say what the broker answered."""
        now_ns = time.time_ns()
        for one in self._ones:
            if not settling.done:
                self._end(one, UNKNOWN, ("unanswered", "nobody waited for the broker's answer"), now_ns)
            elif (error := settling.errors.get(one.position)) is not None:
                self._end(one, _outcome_of(error), (error.code, error.message), now_ns)
            else:
                self._end(one, self._how.verb.name.lower(), self._failure(), now_ns)

    def _failure(self) -> Failure | None:
        """A delivery that its consumer calls failed is a failure although settling it succeeded. A plain retry is none."""
        verb, text = self._how.verb, self._how.error
        failed = verb in (Verb.NACK, Verb.FAIL) or (verb is Verb.RETRY and text)
        return (verb.name.lower(), text) if failed else None

    @staticmethod
    def _end(one: One, outcome: str | None, failure: Failure | None, at_ns: int) -> None:
        """``outcome`` None: the delivery goes on."""
        if failure is not None:
            for span in [one.span] if outcome is None else [one.span, one.delivery.span]:
                attributes.set_error(span, *failure)
        if outcome is not None:
            one.span.set_attribute(attributes.OUTCOME, outcome)
            one.delivery.end(outcome, at_ns)
        one.span.end(at_ns)


def _outcome_of(error: FilaError) -> str | None:
    """How the delivery ended that this is about; None if it did not, or by another call."""
    if isinstance(error, LeaseExpiredError):
        return EXPIRED
    if error.retryable or isinstance(error, (AlreadySettledError, InvalidArgumentError)):
        return None
    return ABANDONED


def settle(tracer: Tracer, deliveries: Sequence[Delivery], how: Settlement) -> SettleSpans | None:
    """Begin the spans of a call that settles; None if no delivery is traced."""
    traced = [position for position, delivery in enumerate(deliveries) if delivery._trace is not None]
    if not traced:
        return None
    ones, count = [], len(deliveries)
    for position in traced:
        span = deliveries[position]._trace
        if isinstance(span, DeliverySpan) and span.is_open:
            ones.append(One(position, span, _start(tracer, span, how, count)))
    return SettleSpans(ones, how)


def _start(tracer: Tracer, delivery: DeliverySpan, how: Settlement, count: int) -> Span:
    said = attributes.of_operation(delivery.queue, how.verb.name.lower(), "settle")
    said[attributes.MESSAGE_ID] = delivery.message_id
    if count > 1:
        said[attributes.BATCH_COUNT] = count
    context = set_span_in_context(delivery.span)
    return tracer.start_span(f"settle {delivery.queue}", context, SpanKind.CLIENT, said)
