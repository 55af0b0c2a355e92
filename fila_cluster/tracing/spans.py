"""The spans of a trace, with OpenTelemetry's messaging attributes, and the headers that carry it (W3C Trace Context).

Most deliveries carry no trace, so the check for one costs 0.1 to 0.2 µs: headers that are too short are recognized by their
length, others are searched as they are packed. Only found headers are decoded, and only sampled traces count.
"""

import time
from collections import deque
from collections.abc import Iterable, Iterator, Mapping, Sequence
from copy import copy
from datetime import datetime
from typing import Any, Final, NamedTuple, TypeAlias

from opentelemetry.context import Context
from opentelemetry.trace import Span, SpanKind, Status, StatusCode, Tracer, get_current_span, set_span_in_context
from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

from fila_cluster.client.message import Message
from fila_cluster.client.protocol.delivery import Delivery
from fila_cluster.client.protocol.settling import Settlement, Settling
from fila_proto_zmq.commands import Verb
from fila_proto_zmq.errors import AlreadySettledError, BatchError, FilaError, InvalidArgumentError, LeaseExpiredError
from fila_proto_zmq.limits import HEADERS_BYTES_MAX
from fila_proto_zmq.record import FIXED_BYTES

TRACEPARENT: Final = "traceparent"
FIELDS_BYTES_MAX: Final = 1024
"""More than the size of ``traceparent`` (55 characters) and ``tracestate`` (512)."""

PACKED_NAME: Final = b"\xab" + TRACEPARENT.encode()
"""The header's name in msgpack."""
BYTES_MIN: Final = 1 + len(PACKED_NAME) + 2 + 55
"""The size of a map with only a ``traceparent``."""
FLAGS_AT: Final = 1
LENGTH_AT: Final = FIXED_BYTES
HEADERS_AT: Final = FIXED_BYTES + 4
"""The place of the flags, the headers' length (four bytes) and the headers in a plain record."""
_NOWHERE: Final = Context()
_propagator: Final = TraceContextTextMapPropagator()


def fields_of(span: Span) -> dict[str, str]:
    """Return the headers that make a message part of this span's trace; empty unless it is sampled."""
    fields: dict[str, str] = {}
    if span.get_span_context().trace_flags.sampled:
        _propagator.inject(fields, set_span_in_context(span, _NOWHERE))
    return fields


def with_fields(headers: Any, fields: Mapping[str, str]) -> Any:
    """Return new headers with ``fields``; the given ones if they have a trace, are malformed, or have no room left."""
    if headers is None:
        return fields
    if not isinstance(headers, Mapping) or TRACEPARENT in headers or not _have_room(headers):
        return headers
    return {**headers, **fields}


def _have_room(headers: Mapping[Any, Any]) -> bool:
    """Return whether the fields fit beside the headers, at four bytes a character and ten around a pair."""
    size = sum(len(key) + len(value) for key, value in headers.items() if isinstance(key, str) and isinstance(value, str))
    return 4 * size + 10 * len(headers) + FIELDS_BYTES_MAX <= HEADERS_BYTES_MAX


def carriers(deliveries: Sequence[Delivery]) -> list[Delivery]:
    """Return the deliveries that may have a trace: only their headers are decoded.

    Only plain records with less than 256 bytes of headers, the usual ones, are searched; after an extension, or with long
    headers, decoding costs little more than the search. One loop without a call in it: half the cost.
    """
    found: list[Delivery] = []
    for delivery in deliveries:
        packed = delivery._packed
        if len(packed) < HEADERS_AT:  # malformed
            continue
        if (
            packed[FLAGS_AT]
            or packed[LENGTH_AT + 2]
            or packed[LENGTH_AT + 1]
            or (
                packed[LENGTH_AT + 3] >= BYTES_MIN
                and packed.find(PACKED_NAME, HEADERS_AT, HEADERS_AT + packed[LENGTH_AT + 3]) >= 0
            )
        ):
            found.append(delivery)
    return found


def context_of(delivery: Delivery) -> Context | None:
    """Return the producer's context, sampled or not; None if it is missing or malformed."""
    try:
        headers = delivery.headers
    except FilaError:
        return None
    if TRACEPARENT not in headers:
        return None
    context = _propagator.extract(headers, _NOWHERE)
    return context if get_current_span(context).get_span_context().is_valid else None


def is_sampled(context: Context) -> bool:
    """Return whether the producer's span was sampled."""
    return get_current_span(context).get_span_context().trace_flags.sampled


SYSTEM: Final = "messaging.system"
DESTINATION: Final = "messaging.destination.name"
OPERATION_NAME: Final = "messaging.operation.name"
OPERATION_TYPE: Final = "messaging.operation.type"
MESSAGE_ID: Final = "messaging.message.id"
BATCH_COUNT: Final = "messaging.batch.message_count"
ERROR_TYPE: Final = "error.type"

FAIRNESS_KEY: Final = "fila.fairness_key"
THROTTLE_KEYS: Final = "fila.throttle_keys"
PRIORITY: Final = "fila.priority"
ATTEMPTS: Final = "fila.attempts"
REASON: Final = "fila.reason"
SOURCE_QUEUE: Final = "fila.source_queue"
OUTCOME: Final = "fila.outcome"
FAILED_COUNT: Final = "fila.failed_count"

Attributes = dict[str, str | int | list[str]]


def of_operation(queue: str, name: str, kind: str = "") -> Attributes:
    """Return the attributes of every span. ``kind`` is the conventions' operation type, where they have one."""
    attributes: Attributes = {SYSTEM: "fila", DESTINATION: queue, OPERATION_NAME: name}
    return attributes | {OPERATION_TYPE: kind} if kind else attributes


def of_delivery(delivery: Delivery) -> Attributes:
    """Return the attributes of a delivered message, without its headers and payload."""
    optional: dict[str, str | int | list[str] | None] = {
        THROTTLE_KEYS: delivery.throttle_keys,
        PRIORITY: delivery.priority,
        REASON: delivery.reason,
        SOURCE_QUEUE: delivery.source_queue,
    }
    said = {name: value for name, value in optional.items() if value}
    return {MESSAGE_ID: delivery.id, FAIRNESS_KEY: delivery.fairness_key, ATTEMPTS: delivery.attempts, **said}


def set_error(span: Span, kind: str, text: str) -> None:
    """Mark a span's operation as failed."""
    span.set_attribute(ERROR_TYPE, kind)
    span.set_status(Status(StatusCode.ERROR, text or kind))


def set_exception(span: Span, error: BaseException) -> None:
    """Record an exception: the code of fila-cluster's errors, the class of others."""
    set_error(span, error.code if isinstance(error, FilaError) else type(error).__qualname__, str(error))


_FAIRNESS_KEY, _THROTTLE_KEYS, _PRIORITY = 0, 2, 3
"""The places of these among the options of ``enqueue``."""

OPERATION: Final = "enqueue"


class EnqueueSpan:
    """A recording span, from before the messages are sealed until the broker has confirmed or refused them."""

    __slots__ = ("_fields", "_span")

    def __init__(self, span: Span) -> None:
        self._span = span
        self._fields = fields_of(span)

    def carried(self, headers: Any) -> Any:
        """Return the headers of a message with the span's context."""
        return with_fields(headers, self._fields) if self._fields else headers

    def carrying(self, messages: Iterable[Any]) -> Iterable[Any]:
        """Return the messages, copied, with the span's context."""
        return map(self._message, messages) if self._fields else messages

    def accepted(self, message_id: str, options: tuple[Any, ...]) -> None:
        """Record the accepted message, and end."""
        self._span.set_attribute(MESSAGE_ID, message_id)
        for name, value in _given(options):
            self._span.set_attribute(name, value)
        self._span.end()

    def all_accepted(self, count: int) -> None:
        """Record the number of accepted messages, and end."""
        self._span.set_attribute(BATCH_COUNT, count)
        self._span.end()

    def failed(self, error: BaseException) -> None:
        """Record the error, and its part of a batch, and end."""
        set_exception(self._span, error)
        if isinstance(error, BatchError):
            self._span.set_attribute(BATCH_COUNT, len(error.results))
            self._span.set_attribute(FAILED_COUNT, sum(not isinstance(result, str) for result in error.results))
        self._span.end()

    def _message(self, message: Any) -> Any:
        """Return a message of a batch with the context; a wrong object is refused later."""
        if not isinstance(message, Message):
            return message
        carrying = copy(message)
        carrying.headers = with_fields(message.headers, self._fields)
        return carrying


def _given(options: tuple[Any, ...]) -> Iterator[tuple[str, str | int | list[str]]]:
    """Yield the options that were given. Throttle keys in an iterator are used up by now."""
    fairness_key, throttle_keys, priority = options[_FAIRNESS_KEY], options[_THROTTLE_KEYS], options[_PRIORITY]
    if fairness_key is not None:
        yield FAIRNESS_KEY, fairness_key
    if throttle_keys and not isinstance(throttle_keys, Iterator):
        yield THROTTLE_KEYS, list(throttle_keys)
    if priority:
        yield PRIORITY, priority


Open = dict["DeliverySpan", None]
Lost = deque[tuple["DeliverySpan", int]]


class DeliverySpan:
    """A ``deliver`` span, in ``among`` as long as it is open. The call that takes it out ends it, so that it ends once."""

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
        """Whether this client has not settled the delivery yet."""
        return self in self._among

    def end(self, outcome: str, at_ns: int) -> None:
        """Record how the delivery ended, and when (Unix time); only the first end counts."""
        if self._among.pop(self, self) is None:
            self.span.set_attribute(OUTCOME, outcome)
            self.span.end(max(at_ns, self._started_ns))

    def abandoned(self) -> None:
        """Note that it was garbage-collected unsettled. No more: the exporter may hold its own locks now."""
        self._lost.append((self, time.time_ns()))


def deliver(tracer: Tracer, delivery: Delivery, producer: Context, among: Open, lost: Lost) -> DeliverySpan | None:
    """Make the ``dwell`` and begin the ``deliver`` span; None if it is not recorded."""
    queue, said = delivery.queue, of_delivery(delivery)
    since_ns = unix_ns(delivery.dead_lettered_at or delivery.enqueued_at)
    leased_ns = unix_ns(delivery.leased_at)
    dwell = tracer.start_span(f"dwell {queue}", producer, attributes=of_operation(queue, "dwell") | said, start_time=since_ns)
    dwell.end(max(since_ns, leased_ns))
    span = tracer.start_span(
        f"deliver {queue}",
        producer,
        SpanKind.CONSUMER,
        of_operation(queue, "deliver", "process") | said,
        start_time=leased_ns,
    )
    return DeliverySpan(delivery, span, among, lost) if span.is_recording() else None


def unix_ns(moment: datetime) -> int:
    """Return a time of the broker, which counts milliseconds."""
    return round(moment.timestamp() * 1000) * 1_000_000


ABANDONED: Final = "abandoned"
EXPIRED: Final = "expired"
UNKNOWN: Final = "unknown"
"""Outcomes beside the verbs: never settled here; the lease had ended; the caller did not wait for the answer."""


Failure: TypeAlias = tuple[str, str]
"""The failure's kind and text."""


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
        """Record the broker's answer."""
        now_ns = time.time_ns()
        for one in self._ones:
            if not settling.done:
                self._end(one, UNKNOWN, ("unanswered", "the caller did not wait for the broker's answer"), now_ns)
            elif (error := settling.errors.get(one.position)) is not None:
                self._end(one, _outcome_of(error), (error.code, error.message), now_ns)
            else:
                self._end(one, self._how.verb.name.lower(), self._failure(), now_ns)

    def _failure(self) -> Failure | None:
        """Return the failure of a nack or fail whose settlement succeeded. A plain retry is not a failure."""
        verb, text = self._how.verb, self._how.error
        failed = verb in (Verb.NACK, Verb.FAIL) or (verb is Verb.RETRY and text)
        return (verb.name.lower(), text) if failed else None

    @staticmethod
    def _end(one: One, outcome: str | None, failure: Failure | None, at_ns: int) -> None:
        """End one span; ``outcome`` None: the delivery is still open."""
        if failure is not None:
            for span in [one.span] if outcome is None else [one.span, one.delivery.span]:
                set_error(span, *failure)
        if outcome is not None:
            one.span.set_attribute(OUTCOME, outcome)
            one.delivery.end(outcome, at_ns)
        one.span.end(at_ns)


def _outcome_of(error: FilaError) -> str | None:
    """Return how the delivery of this error ended; None if it did not, or another call ended it."""
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
    said = of_operation(delivery.queue, how.verb.name.lower(), "settle")
    said[MESSAGE_ID] = delivery.message_id
    if count > 1:
        said[BATCH_COUNT] = count
    context = set_span_in_context(delivery.span)
    return tracer.start_span(f"settle {delivery.queue}", context, SpanKind.CLIENT, said)
