"""What carries a trace in a message, and how it is found."""

from types import MappingProxyType

from hypothesis import given
from hypothesis import strategies as st
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.sampling import ALWAYS_OFF
from opentelemetry.trace import NonRecordingSpan, SpanContext, TraceFlags, TraceState

from fila_cluster.client.protocol.delivery import Delivery
from fila_cluster.client.protocol.encoding import seal
from fila_cluster.client.protocol.lease import ClientLease
from fila_cluster.tracing.spans import FIELDS_BYTES_MAX, carriers, fields_of, with_fields
from fila_proto_zmq.commands import LeaseBatch
from fila_proto_zmq.record import Extension, Record, pack_record, seal_envelope
from tests.unit.client.peer import Owner, record

TRACEPARENT = f"00-{'a' * 32}-{'b' * 16}-01"
FIELDS = {"traceparent": TRACEPARENT}

names = st.text(max_size=40) | st.sampled_from(["traceparent", "tracestate", "xtraceparent", "Traceparent"])
extensions = st.builds(Extension, error=st.text(max_size=300), source_queue=st.none() | st.text(max_size=40))


def packed(headers, payload=b"", extension=None):
    return pack_record(Record(0, 0, 1, 2, extension or Extension(), seal_envelope(payload, headers)))


def may_carry(record_of_it):
    batch = LeaseBatch(0, 0, 1, "k", 1, [record_of_it], [])  # with nothing to settle
    return bool(carriers([Delivery(ClientLease("q", batch, Owner(), renewed=False), 0, record_of_it)]))


@given(st.dictionaries(names, st.text(max_size=120), max_size=6), st.binary(max_size=300), extensions)
def test_no_message_with_a_trace_is_missed(headers, payload, extension):
    assert may_carry(packed(headers | FIELDS, payload, extension))


@given(st.integers(0, 400), st.integers(0, 3))
def test_it_is_found_wherever_it_stands(length, before):
    others = {f"{number}": "x" * length for number in range(before)}
    assert may_carry(packed(others | FIELDS))


def test_messages_without_headers_or_with_short_ones_are_not_decoded():
    assert not may_carry(packed({}))
    assert not may_carry(packed({"content-type": "text/plain", "x-tenant": "acme"}, b"x" * 1000))
    assert not may_carry(packed({"x": "y" * 240}))
    assert not may_carry(packed({"x": "y" * 40}, TRACEPARENT.encode()))
    assert not may_carry(packed({}, b"x" * 300 + TRACEPARENT.encode()))


def test_garbage_is_not_searched():
    assert not may_carry(record()[:26])


def test_the_callers_headers_stay_as_they_were():
    mine = {"a": "1"}
    assert with_fields(mine, FIELDS) == {"a": "1", "traceparent": TRACEPARENT}
    assert mine == {"a": "1"}
    assert with_fields(MappingProxyType(mine), FIELDS) == {"a": "1", "traceparent": TRACEPARENT}
    assert with_fields(None, FIELDS) == FIELDS


def test_a_trace_of_its_own_stays():
    mine = {"traceparent": "00-own", "tracestate": "k=v"}
    assert with_fields(mine, FIELDS | {"tracestate": "other=1"}) is mine


def test_what_are_no_headers_is_left_to_be_refused():
    for bad in (7, "text", [("a", "b")]):
        assert with_fields(bad, FIELDS) is bad
    assert with_fields({"a": 1, 2: "b"}, FIELDS) == {"a": 1, 2: "b"} | FIELDS


@given(st.text(min_size=1), st.integers(0, 70_000))
def test_no_good_message_becomes_too_large(letters, length):
    mine = {"a": (letters * length)[:length].encode("utf-8", "ignore")[: 64 * 1024 - 20].decode("utf-8", "ignore")}
    seal(b"", mine)  # is good
    full = {"traceparent": TRACEPARENT, "tracestate": "x" * 512}
    assert sum(len(name) + len(value) for name, value in full.items()) < FIELDS_BYTES_MAX
    seal(b"", with_fields(mine, full))


def test_only_a_sampled_span_leaves_fields():
    span = TracerProvider().get_tracer("t").start_span("s")
    context = span.get_span_context()
    assert fields_of(span)["traceparent"].startswith(f"00-{context.trace_id:032x}-{context.span_id:016x}-0")
    span.end()
    unsampled = TracerProvider(sampler=ALWAYS_OFF).get_tracer("t").start_span("s")
    assert fields_of(unsampled) == {}


def test_the_trace_state_travels_too():
    context = SpanContext(1, 2, is_remote=False, trace_flags=TraceFlags(1), trace_state=TraceState([("k", "v")]))
    assert fields_of(NonRecordingSpan(context)) == {"traceparent": f"00-{1:032x}-{2:016x}-01", "tracestate": "k=v"}
