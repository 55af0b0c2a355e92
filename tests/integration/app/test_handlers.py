"""Handlers on a real cluster: what becomes of messages, with both clients, and whose trace a handler is in."""

import asyncio
import threading
from collections.abc import Callable

import pytest

from fila_cluster import Client, Delivery
from fila_cluster.app import App, Defer, Fail, RetryAfter, Stop, backoff
from fila_cluster.errors import QueueNotFoundError
from tests.support.cluster.cluster import PATIENCE_S, Cluster
from tests.support.external.tracing import instrumented, parent_id, span_id


async def until(condition: Callable[[], bool]) -> None:
    while not condition():
        await asyncio.sleep(0.01)


def work_until(app: App, condition: Callable[[], bool]) -> None:
    """Work until a condition holds, then drain."""

    async def working() -> None:
        stop = Stop()
        task = asyncio.create_task(app.work(stop=stop))
        waiting = asyncio.create_task(until(condition))
        await asyncio.wait({task, waiting}, timeout=PATIENCE_S, return_when=asyncio.FIRST_COMPLETED)
        assert waiting.done(), "never happened"
        waiting.result()
        stop.ask()
        await task

    asyncio.run(working())


def test_what_handlers_raise_is_what_the_broker_does(client: Client, queue: str, shared_cluster: Cluster) -> None:
    app, seen = App(shared_cluster.endpoint), []

    @app.handler(queue, concurrency=4, retry=backoff(first=0, attempts=2))
    async def handle(text: str, delivery: Delivery) -> None:
        seen.append(text)
        if text == "fail":
            raise Fail("unknown customer")
        if text == "error":
            raise KeyError("total")
        if text == "later" and delivery.attempts == 0:
            raise RetryAfter(0.01, "busy")
        if text == "deferred" and seen.count("deferred") == 1:
            raise Defer(0.01)

    for payload in (b"good", b"fail", b"error", b"later", b"deferred", b"\xff"):
        client.enqueue(queue, payload)
    work_until(app, lambda: client.queue_stats(queue).depth == 0)
    assert sorted(seen) == ["deferred", "deferred", "error", "error", "fail", "good", "later", "later"]
    dead = {letter.payload: (letter.error, letter.attempts) for letter in client.browse(f"{queue}.dlq")}
    assert dead == {
        b"fail": ("unknown customer", 1),
        b"error": ("KeyError: 'total'", 2),
        b"\xff": ("the payload is not UTF-8: byte 0 of 1 is wrong", 1),
    }


def test_functions_in_threads_use_their_delivery(client: Client, queue: str, shared_cluster: Cluster) -> None:
    app, threads = App(shared_cluster.endpoint), set()

    @app.handler(queue, concurrency=2)
    def handle(payload: bytes, delivery: Delivery) -> None:
        threads.add(threading.current_thread())
        delivery.extend(60)
        if payload == b"mine":
            delivery.fail("by hand")

    client.enqueue(queue, b"mine")
    client.enqueue(queue, b"theirs")
    work_until(app, lambda: client.queue_stats(queue).depth == 0)
    assert [(letter.payload, letter.error) for letter in client.browse(f"{queue}.dlq")] == [(b"mine", "by hand")]
    assert threading.main_thread() not in threads


def test_until_idle_with_a_blocking_client(client: Client, queue: str) -> None:
    app = App()

    @app.handler(queue)
    def handle(number: int) -> None:
        if number > 0:
            client.enqueue(queue, b"%d" % (number - 1))

    client.enqueue(queue, b"5")
    assert app.run_until_idle(client) == 6
    assert client.queue_stats(queue).depth == 0


def test_what_is_in_hand_after_the_grace_time_goes_back_uncounted(
    client: Client, queue: str, shared_cluster: Cluster
) -> None:
    app, began = App(shared_cluster.endpoint), threading.Event()

    @app.handler(queue)
    async def handle(payload: bytes) -> None:
        began.set()
        await asyncio.sleep(1000)

    client.enqueue(queue, b"a")
    client.enqueue(queue, b"b")

    async def working() -> None:
        stop = Stop()
        task = asyncio.create_task(app.work(stop=stop, grace=0))
        await until(began.is_set)
        stop.ask()
        await task

    asyncio.run(working())
    again = client.receive(queue, 10, wait=PATIENCE_S)
    assert [(delivery.payload, delivery.attempts) for delivery in again] == [(b"a", 0), (b"b", 0)]
    client.ack(again)


def test_a_handler_is_in_its_producers_trace(client: Client, queue: str, shared_cluster: Cluster) -> None:
    app = App(shared_cluster.endpoint)

    @app.handler(queue)
    async def awaited(payload: bytes) -> None:
        pass

    with instrumented() as spans:
        client.enqueue(queue, b"x")
        work_until(app, lambda: app.handlers[0].tally.ack == 1)
        handle, deliver, enqueue = map(spans.one, ("handle", "deliver", "enqueue"))
    assert parent_id(handle) == span_id(deliver)
    assert handle.context is not None
    assert enqueue.context is not None
    assert handle.context.trace_id == enqueue.context.trace_id
    assert handle.attributes is not None
    assert str(handle.attributes["fila.handler"]).endswith("awaited")


def test_a_queue_that_does_not_exist_is_told_at_the_start(queue: str, shared_cluster: Cluster) -> None:
    app = App(shared_cluster.endpoint)
    app.handler(f"{queue}-missing")(lambda payload: None)
    with pytest.raises(QueueNotFoundError, match=f"{queue}-missing"):
        asyncio.run(app.work())


def test_a_broker_that_is_killed_meanwhile_gets_the_ack_when_it_is_back(cluster: Cluster) -> None:
    app, seen, began, may_end = App(cluster.endpoint, timeout=1.0), [], threading.Event(), threading.Event()

    @app.handler("orders", concurrency=2)
    async def handle(payload: bytes) -> None:
        seen.append(payload)
        began.set()
        await until(may_end.is_set)

    async def killed_meanwhile(client: Client) -> None:
        stop = Stop()
        task = asyncio.create_task(app.work(stop=stop))
        await until(began.is_set)
        for child in cluster.children():
            child.kill()
        may_end.set()
        await asyncio.to_thread(client.enqueue, "orders", b"after", dedup_id="after")
        while (await asyncio.to_thread(client.queue_stats, "orders")).depth > 0:
            await asyncio.sleep(0.05)
        stop.ask()
        await task

    with cluster.client() as client:
        client.create_queue("orders")
        client.enqueue("orders", b"before")
        asyncio.run(asyncio.wait_for(killed_meanwhile(client), 2 * PATIENCE_S))
    assert seen == [b"before", b"after"]


def test_leases_are_renewed_during_a_drain(client: Client, shared_cluster: Cluster) -> None:
    app, began, queue = App(shared_cluster.endpoint), threading.Event(), "short-leases-during-a-drain"
    client.create_queue(queue, visibility_timeout=0.5)

    @app.handler(queue)
    async def handle(payload: bytes) -> None:
        began.set()
        await until(lambda: client.queue_stats(queue).consumers == 0)
        await asyncio.sleep(2)  # several leases, which is what this is about

    client.enqueue(queue, b"a")

    async def working() -> None:
        stop = Stop()
        task = asyncio.create_task(app.work(stop=stop))
        await until(began.is_set)
        stop.ask()
        await task

    asyncio.run(working())
    stats = client.queue_stats(queue)
    assert (stats.acked, stats.expired, stats.depth) == (1, 0, 0)
