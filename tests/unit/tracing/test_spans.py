"""Spans of deliveries and calls, without a broker: what they say, when they end, and that each ends once."""

import gc
import time

import pytest
from opentelemetry import trace
from opentelemetry.sdk.trace.sampling import ALWAYS_OFF
from opentelemetry.semconv._incubating.attributes import messaging_attributes
from opentelemetry.semconv.attributes.error_attributes import ERROR_TYPE
from opentelemetry.trace import SpanKind, StatusCode

from fila_cluster.client.protocol import tracer
from fila_cluster.client.protocol.delivery import Delivery
from fila_cluster.client.protocol.lease import ClientLease
from fila_cluster.client.protocol.settling import ACK, Settlement, Settling
from fila_cluster.errors import (
    AlreadySettledError,
    BatchError,
    LeaseExpiredError,
    QueueNotFoundError,
    RequestTimeoutError,
)
from fila_cluster.tracing import instrument, processing, uninstrument
from fila_cluster.tracing import spans as own
from fila_proto_zmq.commands import LeaseBatch, Verb
from fila_proto_zmq.ids import high_half, low_half
from fila_proto_zmq.record import Extension, Record, pack_record, seal_envelope
from tests.support.external.tracing import instrumented, outcome, parent_id, span_id
from tests.unit.client.peer import BORN_MS, Owner

PRODUCER = 0xB
SAMPLED = {"traceparent": f"00-{0xA:032x}-{PRODUCER:016x}-01"}
UNSAMPLED = {"traceparent": f"00-{0xA:032x}-{PRODUCER:016x}-00"}
LEASED_MS = BORN_MS + 1000


@pytest.fixture
def spans():
    with instrumented() as kept:
        yield kept


@pytest.fixture
def owner():
    return Owner()


def delivered(owner, headers=None, *, attempts=0, priority=0, lease=7, throttle_keys=(), leased_ms=LEASED_MS, **extension):
    """A delivery, handed to its caller."""
    envelope = seal_envelope(b"x", SAMPLED if headers is None else headers)
    packed = pack_record(Record(attempts, priority, high_half(BORN_MS, 3), low_half(5), Extension(**extension), envelope))
    batch = LeaseBatch(lease, leased_ms, leased_ms + 30_000, "acme", 1, [packed], list(throttle_keys))
    delivery = Delivery(ClientLease("orders", batch, owner, renewed=False), 0, packed)
    if tracer.installed is not None:
        tracer.installed.handed_over([delivery])
    return delivery


def settled(deliveries, how=ACK, errors=(), *, answered=True):
    """What a client does around a settlement."""
    assert tracer.installed is not None
    spans = tracer.installed.settling(deliveries, how)
    settling = Settling(deliveries)
    settling.errors.update(errors)
    for position, delivery in enumerate(deliveries):
        error = settling.errors.get(position)
        delivery._settled = error is None or not error.retryable
    if answered:
        settling.finish()
    if spans is not None:
        spans.ended(settling)


def ns(unix_ms):
    return unix_ms * 1_000_000


def test_names_are_those_of_the_conventions():
    """Those of the installed SDK. What they have no name for begins with ``fila``."""
    known = {each for name, each in vars(messaging_attributes).items() if name.startswith("MESSAGING_")} | {ERROR_TYPE}
    said = {each for name, each in vars(own).items() if name.isupper() and isinstance(each, str) and "." in each}
    assert {each for each in said if not each.startswith("fila.")} <= known
    assert {"send", "process", "settle"} <= {each.value for each in messaging_attributes.MessagingOperationTypeValues}


# --- a delivery -------------------------------------------------------------------------------------------------------


def test_a_delivery_and_its_settlement(spans, owner):
    got = delivered(owner, attempts=2, priority=-3, throttle_keys=[["api"]])
    assert spans.names() == ["dwell orders"]
    settled([got])
    assert sorted(spans.names()) == ["deliver orders", "dwell orders", "settle orders"]
    dwell, deliver, settle = (spans.one(word) for word in ("dwell", "deliver", "settle"))
    assert {span.context.trace_id for span in spans.ended()} == {0xA}
    assert [parent_id(span) for span in (dwell, deliver, settle)] == [PRODUCER, PRODUCER, span_id(deliver)]
    assert [span.kind for span in (dwell, deliver, settle)] == [SpanKind.INTERNAL, SpanKind.CONSUMER, SpanKind.CLIENT]
    assert (dwell.start_time, dwell.end_time, deliver.start_time) == (ns(BORN_MS), ns(LEASED_MS), ns(LEASED_MS))
    assert deliver.end_time == settle.end_time
    said = {
        "messaging.system": "fila",
        "messaging.destination.name": "orders",
        "messaging.message.id": got.id,
        "fila.fairness_key": "acme",
        "fila.attempts": 2,
        "fila.priority": -3,
        "fila.throttle_keys": ("api",),
    }
    assert dict(dwell.attributes) == said | {"messaging.operation.name": "dwell"}
    processed = {"messaging.operation.name": "deliver", "messaging.operation.type": "process", "fila.outcome": "ack"}
    assert dict(deliver.attributes) == said | processed
    assert dict(settle.attributes) == {
        "messaging.system": "fila",
        "messaging.destination.name": "orders",
        "messaging.operation.name": "ack",
        "messaging.operation.type": "settle",
        "messaging.message.id": got.id,
        "fila.outcome": "ack",
    }
    assert not any(span.status.status_code is StatusCode.ERROR for span in spans.ended())


@pytest.mark.parametrize(
    ("how", "name", "failed"),
    [
        (Settlement(Verb.NACK, "boom"), "nack", "boom"),
        (Settlement(Verb.NACK), "nack", "nack"),
        (Settlement(Verb.FAIL, "bad"), "fail", "bad"),
        (Settlement(Verb.RETRY, "busy", after_ms=5), "retry", "busy"),
        (Settlement(Verb.RETRY), "retry", None),
        (Settlement(Verb.DEFER, after_ms=5), "defer", None),
    ],
)
def test_what_the_consumer_calls_failed_is_an_error(spans, owner, how, name, failed):
    settled([delivered(owner)], how)
    for span in (spans.one("deliver"), spans.one("settle")):
        assert outcome(span) == name
        assert span.status.description == failed
        assert span.attributes.get("error.type") == (name if failed else None)


def test_a_lease_that_had_ended(spans, owner):
    settled([delivered(owner)], errors={0: LeaseExpiredError("too late")})
    for span in (spans.one("deliver"), spans.one("settle")):
        assert (outcome(span), span.attributes["error.type"]) == ("expired", "LEASE_EXPIRED")
        assert span.status.description == "too late"


def test_what_may_be_repeated_goes_on(spans, owner):
    got = delivered(owner)
    settled([got], errors={0: RequestTimeoutError("slow")})
    assert spans.names() == ["dwell orders", "settle orders"]
    assert spans.one("settle").attributes["error.type"] == "REQUEST_TIMEOUT"
    settled([got])
    deliver = spans.one("deliver")
    assert (outcome(deliver), deliver.status.status_code) == ("ack", StatusCode.UNSET)
    assert [outcome(span) for span in spans.ended("settle")] == [None, "ack"]


def test_another_thread_that_settles_it_too_ends_nothing(spans, owner):
    got = delivered(owner)
    settled([got], errors={0: AlreadySettledError("twice")})
    assert not spans.ended("deliver")
    settled([got])
    assert outcome(spans.one("deliver")) == "ack"
    settled([got])
    assert len(spans.ended("settle")) == 2


def test_a_lasting_refusal_ends_it(spans, owner):
    settled([delivered(owner)], errors={0: QueueNotFoundError("gone")})
    assert outcome(spans.one("deliver")) == "abandoned"


def test_a_caller_who_does_not_wait_for_the_answer(spans, owner):
    settled([delivered(owner)], answered=False)
    assert outcome(spans.one("deliver")) == "unknown"
    assert spans.one("settle").attributes["error.type"] == "unanswered"


def test_a_batch_of_which_some_are_traced(spans, owner):
    batch = [delivered(owner), delivered(owner, {}), delivered(owner)]
    settled(batch, errors={2: LeaseExpiredError("late")})
    assert [outcome(span) for span in spans.ended("deliver")] == ["ack", "expired"]
    assert [span.attributes["messaging.batch.message_count"] for span in spans.ended("settle")] == [3, 3]


@pytest.mark.parametrize("headers", [{}, UNSAMPLED, {"traceparent": "garbage"}, {"traceparent": f"00-{0:032x}-{0:016x}-01"}])
def test_what_carries_no_sampled_trace(spans, owner, headers):
    settled([delivered(owner, headers)])
    assert spans.ended() == []


def test_headers_that_are_garbage(spans, owner):
    packed = pack_record(Record(0, 0, 1, 2, Extension(), b"\x00\x00\x00\x0d\xc1\xabtraceparent"))
    batch = LeaseBatch(7, LEASED_MS, LEASED_MS + 1, "k", 1, [packed], [])
    got = Delivery(ClientLease("orders", batch, owner, renewed=False), 0, packed)
    tracer.installed.handed_over([got])
    settled([got])
    assert spans.ended() == []


def test_a_consumers_clock_that_is_behind(spans, owner):
    ahead_ms = round(time.time() * 1000) + 3_600_000
    settled([delivered(owner, leased_ms=ahead_ms)])
    deliver = spans.one("deliver")
    assert deliver.start_time == deliver.end_time == ns(ahead_ms)


def test_a_dead_letter_dwells_since_it_is_dead(spans, owner):
    got = delivered(owner, reason="failed", source_queue="orders", dead_lettered_ms=BORN_MS + 400)
    dwell = spans.one("dwell")
    assert dwell.start_time == ns(BORN_MS + 400)
    assert (dwell.attributes["fila.reason"], dwell.attributes["fila.source_queue"]) == ("failed", "orders")
    settled([got])


def test_at_most_once_ends_when_it_is_handed_over(spans, owner):
    got = delivered(owner, lease=0)
    assert outcome(spans.one("deliver")) == "ack"
    settled([got], errors={0: AlreadySettledError("gone")})
    assert not spans.ended("settle")


# --- never settled ----------------------------------------------------------------------------------------------------


def test_a_closed_client_ends_what_it_gave_back(spans, owner):
    kept, other = [delivered(owner), delivered(owner)], delivered(Owner())
    owner.closed = True
    tracer.installed.closed(owner)
    tracer.installed.closed(owner)
    assert [outcome(span) for span in spans.ended("deliver")] == ["abandoned", "abandoned"]
    settled([*kept, other])
    assert outcome(spans.ended("deliver")[-1]) == "ack"
    assert len(spans.ended("deliver")) == 3


def test_a_client_that_is_closed_while_it_hands_over(spans, owner):
    owner.closed = True
    got = delivered(owner)
    assert outcome(spans.one("deliver")) == "abandoned"
    assert not got._settled


def test_a_forgotten_delivery_is_ended_by_the_next_call(spans, owner):
    got = delivered(owner)
    with pytest.warns(ResourceWarning, match="never settled"):
        del got
    assert not spans.ended("deliver")  # not in the finalizer
    tracer.installed.handed_over([])
    assert outcome(spans.one("deliver")) == "abandoned"
    assert spans.one("deliver").end_time <= time.time_ns()


def test_no_client_is_kept_alive(spans):
    owner = Owner()
    settled([delivered(owner)])
    gc.collect()
    assert len(tracer.installed._open) == 1
    del owner
    gc.collect()
    assert len(tracer.installed._open) == 0


# --- on and off -------------------------------------------------------------------------------------------------------


def test_instrumenting_twice_changes_nothing(spans, owner):
    before, got = tracer.installed, delivered(owner)
    instrument(spans.provider)
    instrument()
    assert tracer.installed is before
    settled([got])
    assert outcome(spans.one("deliver")) == "ack"


def test_another_provider_counts(spans, owner):
    got = delivered(owner)
    with instrumented() as others:
        assert outcome(spans.one("deliver")) == "abandoned"
        settled([got, delivered(owner)])
        assert len(others.ended("deliver")) == 1
    assert len(spans.ended("deliver")) == 1


def test_uninstrumented(spans, owner):
    first = delivered(owner)
    uninstrument()
    uninstrument()
    assert tracer.installed is None
    assert outcome(spans.one("deliver")) == "abandoned"
    second = delivered(owner)
    with processing(second):
        assert not trace.get_current_span().get_span_context().is_valid
    first._settled = second._settled = True
    assert len(spans.ended()) == 2


def test_without_an_sdk_nothing_is_made(owner):
    instrument(trace.NoOpTracerProvider())
    try:
        assert tracer.installed.enqueuing("orders") is None
        got = delivered(owner)
        assert got._trace is None
        got._settled = True
    finally:
        uninstrument()


# --- the delivery at work ---------------------------------------------------------------------------------------------


def test_own_spans_hang_below_the_delivery(spans, owner):
    got = delivered(owner)
    with processing(got), spans.tracer.start_as_current_span("charge"):
        pass
    assert not trace.get_current_span().get_span_context().is_valid
    settled([got])
    assert parent_id(spans.one("charge")) == span_id(spans.one("deliver"))


def test_an_exception_that_leaves_is_recorded_and_the_verb_decides(spans, owner):
    got = delivered(owner)
    with pytest.raises(ValueError, match="no paper"), processing(got):
        raise ValueError("no paper")
    settled([got])
    deliver = spans.one("deliver")
    assert [event.attributes["exception.message"] for event in deliver.events] == ["no paper"]
    assert deliver.status.status_code is StatusCode.UNSET


def test_settled_within(spans, owner):
    got = delivered(owner)
    with processing(got):
        settled([got])
        with spans.tracer.start_as_current_span("after"):
            pass
    assert parent_id(spans.one("after")) == span_id(spans.one("deliver"))


def test_an_unsampled_message_keeps_what_follows_unsampled(spans, owner):
    got = delivered(owner, UNSAMPLED)
    with processing(got), spans.tracer.start_as_current_span("charge"):
        assert trace.get_current_span().get_span_context().trace_id == 0xA
    assert not trace.get_current_span().get_span_context().is_valid
    settled([got])


def test_a_message_without_a_trace_leaves_the_context_alone(spans, owner):
    got = delivered(owner, {"a": "1"})
    with spans.tracer.start_as_current_span("mine") as mine, processing(got):
        assert trace.get_current_span() is mine
    settled([got])


# --- enqueuing --------------------------------------------------------------------------------------------------------


def test_a_refused_batch_says_how_many(spans):
    results = ["id", QueueNotFoundError("gone"), "id"]
    tracer.installed.enqueuing("orders").failed(BatchError("1 of 3", results))
    span = spans.one("enqueue")
    assert (span.attributes["messaging.batch.message_count"], span.attributes["fila.failed_count"]) == (3, 1)
    assert (span.attributes["error.type"], span.status.description) == ("BATCH", "1 of 3")


def test_an_unsampled_call_is_not_traced():
    with instrumented(ALWAYS_OFF) as spans:
        assert tracer.installed.enqueuing("orders") is None
    assert spans.ended() == []


def test_options_are_recorded_once_they_are_valid(spans):
    tracer.installed.enqueuing("orders").accepted("0190", ("acme", 2, iter(["gone"]), 0, 1, 0.0, None, None, None, None))
    tracer.installed.enqueuing("orders").accepted("0191", (None, None, ("api",), 5, 1, 0.0, None, None, None, None))
    first, second = spans.ended()
    common = {
        "messaging.system": "fila",
        "messaging.destination.name": "orders",
        "messaging.operation.name": "enqueue",
        "messaging.operation.type": "send",
    }
    assert dict(first.attributes) == common | {"messaging.message.id": "0190", "fila.fairness_key": "acme"}
    told = {"messaging.message.id": "0191", "fila.throttle_keys": ("api",), "fila.priority": 5}
    assert dict(second.attributes) == common | told
