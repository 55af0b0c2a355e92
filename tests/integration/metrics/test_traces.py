"""Traces through a real cluster: from producers to consumers, and on."""

import asyncio
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from itertools import pairwise

import psutil
import pytest
from opentelemetry.proto.trace.v1.trace_pb2 import Span as SentSpan
from opentelemetry.sdk.trace import ReadableSpan
from opentelemetry.sdk.trace.sampling import ALWAYS_OFF
from opentelemetry.trace import SpanContext, StatusCode

from fila_cluster import AsyncClient, Client, Message
from fila_cluster.errors import BatchError, InvalidArgumentError, LeaseExpiredError, QueueNotFoundError
from fila_cluster.tracing import processing
from tests.support.cluster.cluster import Cluster, eventually
from tests.support.external.collector import TraceCollector
from tests.support.external.tracing import Spans, instrumented, outcome, parent_id, span_id
from tests.support.programs import traced

CLOCKS_NS = 1_000_000_000
"""By how much the times of processes may differ: the broker takes the time once a turn, and a busy machine may let it wait in between."""

OWN = f"00-{0xABC:032x}-{0xDEF:016x}-01"


@pytest.fixture
def spans() -> Iterator[Spans]:
    with instrumented() as kept:
        yield kept


def context(span: ReadableSpan) -> SpanContext:
    assert span.context is not None
    return span.context


def trace_ids(spans: list[ReadableSpan]) -> set[int]:
    return {context(span).trace_id for span in spans}


# --- across processes -------------------------------------------------------------------------------------------------


def by_name(collector: TraceCollector) -> dict[str, tuple[str, SentSpan]]:
    assert len({span.name for _, span in collector.spans}) == len(collector.spans)
    return {span.name.split(" ")[0]: (service, span) for service, span in collector.spans}


def test_one_trace_from_the_producers_process_to_the_consumers(shared_cluster: Cluster, queue: str):
    with TraceCollector() as collector:
        sent = traced("producer", shared_cluster.endpoint, queue, collector.endpoint)
        assert traced("consumer", shared_cluster.endpoint, queue, collector.endpoint) == sent
    found = by_name(collector)
    assert {name: service for name, (service, _) in found.items()} == {
        "checkout": "producer",
        "enqueue": "producer",
        "dwell": "consumer",
        "deliver": "consumer",
        "print": "consumer",
        "settle": "consumer",
    }
    assert len({span.trace_id for _, span in found.values()}) == 1
    parents = {"enqueue": "checkout", "dwell": "enqueue", "deliver": "enqueue", "print": "deliver", "settle": "deliver"}
    for name, parent in parents.items():
        assert found[name][1].parent_span_id == found[parent][1].span_id, name
    enqueue, dwell, deliver, settle = (found[name][1] for name in ("enqueue", "dwell", "deliver", "settle"))
    times = [enqueue.start_time_unix_nano, dwell.start_time_unix_nano, dwell.end_time_unix_nano, settle.start_time_unix_nano]
    assert all(later - earlier > -CLOCKS_NS for earlier, later in pairwise(times))
    assert dwell.end_time_unix_nano == deliver.start_time_unix_nano
    assert settle.end_time_unix_nano == deliver.end_time_unix_nano
    said = {each.key: each.value.string_value for each in deliver.attributes}
    assert (said["messaging.message.id"], said["fila.fairness_key"], said["fila.outcome"]) == (sent, "acme", "ack")


# --- producing --------------------------------------------------------------------------------------------------------


def test_the_producers_span_is_a_child_of_what_is_current(client: Client, queue: str, spans: Spans):
    headers = {"a": "1"}
    with spans.tracer.start_as_current_span("checkout"):
        message_id = client.enqueue(queue, b"x", headers, fairness_key="acme", priority=3, throttle_keys=["api"])
    assert headers == {"a": "1"}
    enqueue, checkout = spans.one("enqueue"), spans.one("checkout")
    assert (enqueue.name, parent_id(enqueue)) == (f"enqueue {queue}", span_id(checkout))
    assert enqueue.attributes is not None
    assert enqueue.attributes["messaging.message.id"] == message_id
    (delivery,) = client.receive(queue)
    carried = f"00-{context(enqueue).trace_id:032x}-{span_id(enqueue):016x}-0"
    assert delivery.headers.pop("traceparent").startswith(carried)
    assert delivery.headers == {"a": "1"}
    delivery.ack()


def test_a_batch_is_one_span_and_a_message_may_have_a_trace_of_its_own(client: Client, queue: str, spans: Spans):
    mine = Message(b"own", {"traceparent": OWN})
    messages = [*(Message(b"x", {"n": str(number)}) for number in range(1200)), mine]
    assert len(client.enqueue_many(queue, iter(messages))) == 1201
    assert all(message.headers == {"n": str(number)} for number, message in enumerate(messages[:-1]))
    enqueue = spans.one("enqueue")
    assert enqueue.attributes is not None
    assert enqueue.attributes["messaging.batch.message_count"] == 1201
    deliveries = client.receive(queue, 1201)
    client.ack(deliveries)
    assert len(spans.ended("settle")) == len(spans.ended("dwell")) == 1201
    assert sum(parent_id(span) == span_id(enqueue) for span in spans.ended("deliver")) == 1200
    (own,) = (span for span in spans.ended("deliver") if parent_id(span) != span_id(enqueue))
    assert (context(own).trace_id, parent_id(own)) == (0xABC, 0xDEF)


def test_failures_to_enqueue_are_on_the_span(client: Client, queue: str, spans: Spans):
    with pytest.raises(QueueNotFoundError):
        client.enqueue("nowhere", b"x")
    with pytest.raises(BatchError):
        client.enqueue_many(queue, [Message(b"x"), Message("text")])  # type: ignore[arg-type]
    with pytest.raises(InvalidArgumentError):
        client.enqueue(queue, b"x", cost=-1)
    kinds = [span.attributes["error.type"] for span in spans.ended("enqueue") if span.attributes]
    assert kinds == ["QUEUE_NOT_FOUND", "BATCH", "INVALID_ARGUMENT"]
    assert {span.status.status_code for span in spans.ended()} == {StatusCode.ERROR}
    client.purge_queue(queue)


def test_what_is_not_sampled_leaves_no_span_and_no_header(client: Client, queue: str):
    with instrumented(ALWAYS_OFF) as spans:
        client.enqueue(queue, b"x")
        client.enqueue_many(queue, [Message(b"y", {"a": "1"})])
        deliveries = client.receive(queue, 2)
        client.ack(deliveries)
        assert [delivery.headers for delivery in deliveries] == [{}, {"a": "1"}]
        assert spans.ended() == []


def test_not_instrumented(client: Client, queue: str):
    with instrumented() as spans:
        pass
    with spans.tracer.start_as_current_span("checkout"):
        client.enqueue(queue, b"x")
    (delivery,) = client.receive(queue)
    with processing(delivery):
        delivery.ack()
    assert delivery.headers == {}
    assert spans.names() == []


# --- consuming --------------------------------------------------------------------------------------------------------


def test_each_attempt_has_a_delivery_in_the_same_trace(client: Client, queue: str, spans: Spans):
    client.enqueue(queue, b"x")
    client.receive(queue)[0].nack("boom")
    client.receive(queue)[0].retry(after=0.01)
    client.receive(queue, wait=60)[0].defer(0.01)
    client.receive(queue, wait=60)[0].ack()
    enqueue = spans.one("enqueue")
    assert trace_ids(spans.ended()) == {context(enqueue).trace_id}
    deliveries, dwells = spans.ended("deliver"), spans.ended("dwell")
    assert [outcome(span) for span in deliveries] == ["nack", "retry", "defer", "ack"]
    assert [span.attributes["fila.attempts"] for span in dwells if span.attributes] == [0, 1, 2, 2]
    assert {span.start_time for span in dwells} == {dwells[0].start_time}
    assert [parent_id(span) for span in spans.ended("settle")] == [span_id(span) for span in deliveries]
    assert [span.status.status_code is StatusCode.ERROR for span in deliveries] == [True, False, False, False]


def test_a_dead_letter_and_what_is_redriven_go_on_in_their_trace(client: Client, queue: str, spans: Spans):
    dlq = f"{queue}.dlq"
    client.enqueue(queue, b"x")
    client.receive(queue)[0].fail("no paper")
    (dead,) = client.receive(dlq, wait=60)
    dead.nack()
    assert client.redrive(dlq) == 1
    client.receive(queue, wait=60)[0].ack()
    assert len(trace_ids(spans.ended())) == 1
    assert [span.name for span in spans.ended("deliver")] == [f"deliver {name}" for name in (queue, dlq, queue)]
    reasons = [span.attributes.get("fila.reason") for span in spans.ended("dwell") if span.attributes]
    assert reasons == [None, "failed", None]


def test_a_lease_that_was_lost(client: Client, queue: str, spans: Spans):
    client.update_queue(queue, visibility_timeout=0.05)
    client.enqueue(queue, b"x")
    (first,) = client.receive(queue)
    client.update_queue(queue, visibility_timeout=600)
    (second,) = client.receive(queue, wait=60)
    with pytest.raises(LeaseExpiredError):
        first.ack()
    second.ack()
    assert [outcome(span) for span in spans.ended("deliver")] == ["expired", "ack"]
    settle, _ = spans.ended("settle")
    assert settle.attributes is not None
    assert settle.attributes["error.type"] == "LEASE_EXPIRED"


def test_what_is_never_settled(shared_cluster: Cluster, client: Client, queue: str, spans: Spans):
    client.enqueue_many(queue, [Message(b"x")] * 3)
    with shared_cluster.client() as other:
        kept = other.receive(queue, 2)
        with pytest.warns(ResourceWarning, match="never settled"):
            del kept[0]
        assert not spans.ended("deliver")
        other.receive(queue)[0].ack()
        assert [outcome(span) for span in spans.ended("deliver")] == ["abandoned", "ack"]
    assert [outcome(span) for span in spans.ended("deliver")] == ["abandoned", "ack", "abandoned"]
    again = client.receive(queue, 2, wait=60)
    client.ack(again)
    assert kept


def test_consume(client: Client, queue: str, spans: Spans):
    client.enqueue_many(queue, [Message(b"x")] * 5)
    with client.consume(queue) as deliveries:
        for _ in range(3):
            next(deliveries).ack()
        eventually(lambda: client.queue_stats(queue).in_flight == 2, "the others are prefetched")
    assert len(spans.ended("dwell")) == len(spans.ended("deliver")) == 3  # nobody saw the others
    client.ack([client.receive(queue, wait=60)[0] for _ in range(2)])
    assert len(trace_ids(spans.ended())) == 1


def test_at_most_once(client: Client, queue: str, spans: Spans):
    client.update_queue(queue, delivery="at_most_once")
    client.enqueue_many(queue, [Message(b"x")] * 2)
    (received,) = client.receive(queue)
    with client.consume(queue) as deliveries:
        consumed = next(deliveries)
    for delivery in (received, consumed):
        delivery.ack()
    assert [outcome(span) for span in spans.ended("deliver")] == ["ack", "ack"]
    assert not spans.ended("settle")


def test_a_chain_of_queues_is_one_trace(client: Client, queue: str, spans: Spans):
    client.create_queue(f"{queue}-next")
    client.enqueue(queue, b"order")
    (order,) = client.receive(queue)
    with processing(order):
        client.enqueue(f"{queue}-next", b"invoice")
    order.ack()
    client.receive(f"{queue}-next")[0].ack()
    first, second = spans.ended("enqueue")
    order_span, invoice_span = spans.ended("deliver")
    assert len(trace_ids(spans.ended())) == 1
    assert [parent_id(span) for span in (order_span, second, invoice_span)] == list(map(span_id, (first, order_span, second)))


def test_threads_that_share_a_client(client: Client, queue: str, spans: Spans):
    client.enqueue_many(queue, [Message(b"x")] * 200)
    with client.consume(queue) as deliveries, ThreadPoolExecutor(4) as threads:

        def work(_: int) -> str:
            delivery = next(deliveries)
            with processing(delivery), spans.tracer.start_as_current_span("work"):
                delivery.ack()
            return delivery.id

        assert len(set(threads.map(work, range(200)))) == 200
    assert spans.counting.open == 0
    of_id = {span.attributes["messaging.message.id"]: span_id(span) for span in spans.ended("deliver") if span.attributes}
    assert len(of_id) == 200
    settles = spans.ended("settle")
    assert {span.attributes["messaging.message.id"]: parent_id(span) for span in settles if span.attributes} == of_id
    assert {parent_id(span) for span in spans.ended("work")} == set(of_id.values())


# --- asyncio ----------------------------------------------------------------------------------------------------------


async def run_async(cluster: Cluster, queue: str, spans: Spans) -> None:
    async with AsyncClient(cluster.endpoint, timeout=10) as client:
        with spans.tracer.start_as_current_span("checkout"):
            await client.enqueue(queue, b"1")
            await client.enqueue_many(queue, [Message(b"2"), Message(b"3")])
        (first,) = await client.receive(queue)

        async def work(name: str) -> None:
            with processing(first), spans.tracer.start_as_current_span(name):
                await asyncio.sleep(0)

        await asyncio.gather(work("a"), work("b"))
        await first.nack("boom")
        async with client.consume(queue) as deliveries:
            got = [await anext(deliveries) for _ in range(3)]
            await client.ack(got[:2])
            with pytest.raises(BatchError):
                await client.ack([got[0], got[2]])
        await client.enqueue(queue, b"4")
        kept = await client.receive(queue, wait=60)
    assert len(kept) == 1


def test_the_asynchronous_client(shared_cluster: Cluster, queue: str, spans: Spans):
    asyncio.run(run_async(shared_cluster, queue, spans))
    checkout = spans.one("checkout")
    ours = [span for span in spans.ended() if context(span).trace_id == context(checkout).trace_id]
    assert [span.name.split(" ")[0] for span in ours].count("deliver") == 4
    first = next(span for span in spans.ended("deliver") if outcome(span) == "nack")
    assert [parent_id(spans.one(name)) for name in ("a", "b")] == [span_id(first)] * 2
    assert [outcome(span) for span in spans.ended("deliver")] == ["nack", "ack", "ack", "ack", "abandoned"]
    assert len(spans.ended("settle")) == 4


def test_a_cancelled_settlement(cluster: Cluster, spans: Spans):
    router = psutil.Process(cluster.router_pid())

    async def run() -> None:
        async with AsyncClient(cluster.endpoint, timeout=10, direct=False) as client:
            await client.create_queue("orders")
            await client.enqueue("orders", b"x")
            (delivery,) = await client.receive("orders")
            router.suspend()  # no answer comes
            eventually(lambda: router.status() == psutil.STATUS_STOPPED, "it stands still")
            with pytest.raises(TimeoutError):
                await asyncio.wait_for(delivery.ack(), 0.05)
            router.resume()

    asyncio.run(run())
    assert outcome(spans.one("deliver")) == "unknown"
    assert spans.one("settle").status.status_code is StatusCode.ERROR
