"""Traces of producers and of batches: a span for each message, ended with its result, and one for each settlement."""

import pytest
from opentelemetry.trace import SpanKind, StatusCode

from fila_cluster.errors import OverloadedError
from fila_proto_zmq.codec import to_fault
from fila_proto_zmq.commands import Enqueue, Enqueued, Subscribe
from fila_proto_zmq.ids import high_half, low_half
from tests.support.cluster.cluster import PATIENCE_S, eventually
from tests.support.cluster.shells import SHELLS, shell
from tests.support.external.tracing import instrumented, outcome
from tests.unit.client.peer import BORN_MS, answering, batch, broker


@pytest.fixture
def spans():
    with instrumented() as kept:
        yield kept


@pytest.mark.parametrize("kind", SHELLS)
def test_each_message_of_a_producer_has_a_span_that_ends_with_its_result(kind, spans):
    def answer(sent):
        fault = (1, to_fault(OverloadedError("full")))
        return Enqueued(high_half(BORN_MS, 3), low_half(7), 1, [fault])

    with broker(answering(Enqueue=answer)) as peer, shell(kind) as connect, connect(peer.endpoint) as client:
        with client.producer("orders", batch=2, linger=60) as producer:
            good, bad = producer.send(b"1", fairness_key="acme"), producer.send(b"2")
            eventually(bad.done, "the answer")
        message_id = good.result(PATIENCE_S)
        assert bad.exception(PATIENCE_S)
        (sent,) = peer.seen_of(Enqueue)
    assert all(b"traceparent" in envelope for envelope in sent.command.envelopes)
    first, second = (each for each in spans.ended() if each.kind is SpanKind.PRODUCER)
    assert first.attributes["messaging.message.id"] == message_id
    assert first.attributes["fila.fairness_key"] == "acme"
    assert second.status.status_code is StatusCode.ERROR
    assert second.attributes["error.type"] == "OVERLOADED"


@pytest.mark.parametrize("kind", SHELLS)
def test_a_message_that_is_not_taken_in_ends_its_span(kind, spans):
    with shell(kind) as connect:
        client = connect("tcp://127.0.0.1:1")
        producer = client.producer("orders")
        client.close()
        with pytest.raises(Exception, match="closed"):
            producer.send(b"1")
        producer.close()
    (span,) = spans.ended()
    assert span.status.status_code is StatusCode.ERROR


@pytest.mark.parametrize("kind", SHELLS)
def test_a_batch_is_traced_as_deliveries_and_its_settlement(kind, spans):
    sealed = batch(1, 2)
    with broker() as peer, shell(kind) as connect, connect(peer.endpoint) as client:
        with client.producer("q", batch=2) as producer:
            futures = [producer.send(b"1"), producer.send(b"2")]
        assert all(future.result(PATIENCE_S) for future in futures)
        envelopes = [each for seen in peer.seen_of(Enqueue) for each in seen.command.envelopes]  # a slow machine sends two
        sealed.records = [record[:26] + envelope for record, envelope in zip(sealed.records, envelopes, strict=True)]
        with client.consume_batches("q", max_messages=2) as batches:
            eventually(lambda: peer.seen_of(Subscribe), "a subscription")
            peer.push("q", 1, sealed)
            next(batches).ack()
    assert [outcome(span) for span in spans.ended("deliver")] == ["ack", "ack"]
