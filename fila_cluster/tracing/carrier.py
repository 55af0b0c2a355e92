"""The headers that carry a trace: ``traceparent`` and ``tracestate`` of W3C Trace Context.

Most deliveries carry none, so finding out must cost next to nothing: headers that are too short for one are recognized
by their length, others are searched as they are packed (0.1 to 0.2 µs). Only found headers are decoded, and only sampled
traces count.
"""

from collections.abc import Mapping, Sequence
from typing import Any, Final

from opentelemetry.context import Context
from opentelemetry.trace import Span, get_current_span, set_span_in_context
from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

from fila_cluster.client.protocol.delivery import Delivery
from fila_proto_zmq.errors import FilaError
from fila_proto_zmq.limits import HEADERS_BYTES_MAX
from fila_proto_zmq.record import FIXED_BYTES

TRACEPARENT: Final = "traceparent"
FIELDS_BYTES_MAX: Final = 1024
"""More than the size of ``traceparent`` (55 characters) and ``tracestate`` (512)."""

PACKED_NAME: Final = b"\xab" + TRACEPARENT.encode()
"""The header's name as msgpack has it."""
BYTES_MIN: Final = 1 + len(PACKED_NAME) + 2 + 55
"""The size of a map with only a ``traceparent``."""
FLAGS_AT: Final = 1
LENGTH_AT: Final = FIXED_BYTES
HEADERS_AT: Final = FIXED_BYTES + 4
"""The place of the flags, the headers' length (four bytes) and the headers in a plain record."""
_NOWHERE: Final = Context()
_propagator: Final = TraceContextTextMapPropagator()


def fields_of(span: Span) -> dict[str, str]:
    """Return the headers that make a message part of this span's trace; none unless it is sampled."""
    fields: dict[str, str] = {}
    if span.get_span_context().trace_flags.sampled:
        _propagator.inject(fields, set_span_in_context(span, _NOWHERE))
    return fields


def with_fields(headers: Any, fields: Mapping[str, str]) -> Any:
    """Return new headers with ``fields``; the given ones if they have a trace of their own, are malformed, or have no room
    left."""
    if headers is None:
        return fields
    if not isinstance(headers, Mapping) or TRACEPARENT in headers or not _have_room(headers):
        return headers
    return {**headers, **fields}


def _have_room(headers: Mapping[Any, Any]) -> bool:
    """Return whether the fields fit beside the headers.

    Four bytes a character and ten around a pair are enough in any case.
    """
    size = sum(len(key) + len(value) for key, value in headers.items() if isinstance(key, str) and isinstance(value, str))
    return 4 * size + 10 * len(headers) + FIELDS_BYTES_MAX <= HEADERS_BYTES_MAX


def carriers(deliveries: Sequence[Delivery]) -> list[Delivery]:
    """Return the deliveries that may carry a trace: the others carry none, and only these have their headers decoded.

    Only plain records with less than 256 bytes of headers, the usual ones, are searched; where an extension stands in front,
    or headers are long, decoding them costs little more than the search. One loop without a call in it: half the cost.
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
    """Return the producer's context, sampled or not; None if the message carries none, or a malformed one."""
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
