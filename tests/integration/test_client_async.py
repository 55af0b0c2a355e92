"""The asyncio client against a real cluster."""

import asyncio
import contextlib
from collections.abc import Awaitable, Callable

import pytest
import uvloop

from fila_cluster import AsyncClient, Client, Message
from fila_cluster.errors import AlreadySettledError, BatchError, LeaseExpiredError, QueueNotFoundError
from tests.support.cluster import PATIENCE_S, Cluster

Main = Callable[[AsyncClient], Awaitable[None]]


@pytest.fixture(params=["asyncio", "uvloop"])
def run(request: pytest.FixtureRequest, shared_cluster: Cluster) -> Callable[[Main], None]:
    """Run a coroutine function with a client, on either loop."""

    async def with_client(main: Main) -> None:
        async with AsyncClient(shared_cluster.endpoint, timeout=PATIENCE_S) as client:
            await asyncio.wait_for(main(client), PATIENCE_S)

    def run_on(main: Main) -> None:
        factory = uvloop.new_event_loop if request.param == "uvloop" else None
        with asyncio.Runner(loop_factory=factory) as runner:
            runner.run(with_client(main))

    return run_on


def test_a_message_s_way(run, queue: str):
    async def main(client: AsyncClient):
        message_id = await client.enqueue(queue, b'{"a": 1}', {"h": "v"}, fairness_key="k")
        (got,) = await client.receive(queue)
        assert (got.id, got.json(), got.headers, got.fairness_key) == (message_id, {"a": 1}, {"h": "v"}, "k")
        await got.nack("why", metadata=b"m")
        (again,) = await client.receive(queue, wait=PATIENCE_S)
        assert (again.attempts, again.error, again.metadata) == (1, "why", b"m")
        await again.extend(60)
        await again.fail()
        with pytest.raises(AlreadySettledError):
            await again.ack()
        assert await client.redrive(f"{queue}.dlq") == 1
        stats = await client.queue_stats(queue)
        assert (stats.pending, stats.nacked) == (1, 2)
        assert [row.name for row in await client.list_queues(queue)] == [queue, f"{queue}.dlq"]
        assert len((await client.cluster_status()).workers) == 2

    run(main)


def test_thousands_at_once(run, queue: str):
    async def main(client: AsyncClient):
        ids = await asyncio.gather(*(client.enqueue(queue, str(number).encode()) for number in range(3000)))
        assert len(set(ids)) == 3000
        more = await client.enqueue_many(queue, [Message(b"x")] * 3000)
        deliveries = await client.receive(queue, 6000)
        assert [delivery.id for delivery in deliveries] == [*ids, *more]
        await asyncio.gather(*(delivery.ack() for delivery in deliveries[:3000]))
        await client.ack(deliveries[3000:])
        assert (await client.queue_stats(queue)).depth == 0

    run(main)


def test_a_consumer_with_workers(run, queue: str):
    async def main(client: AsyncClient):
        await client.enqueue_many(queue, [Message(str(number).encode()) for number in range(1000)])
        seen: list[int] = []

        async with client.consume(queue, prefetch=50) as consumer:

            async def work():
                async for delivery in consumer:
                    await asyncio.sleep(0)
                    await delivery.ack()
                    seen.append(int(delivery.text()))
                    if len(seen) == 1000:
                        await consumer.close()

            await asyncio.gather(*(work() for _ in range(10)))
        assert sorted(seen) == list(range(1000))

    run(main)


def test_leaving_gives_back(run, queue: str, client: Client):
    async def main(mine: AsyncClient):
        await mine.enqueue_many(queue, [Message(b"x")] * 10)
        async for delivery in mine.consume(queue):
            await delivery.ack()
            break
        while (await mine.queue_stats(queue)).in_flight:
            await asyncio.sleep(0.01)
        async with mine.consume(queue) as consumer:
            held = await anext(consumer)
        deliveries = client.receive(queue, 20)
        assert [delivery.attempts for delivery in deliveries] == [0] * 8
        client.ack(deliveries)
        await held.ack()

    run(main)


def test_producer_and_consumer_at_once(run, queue: str):
    async def main(client: AsyncClient):
        async def produce():
            for start in range(0, 5000, 100):
                await asyncio.gather(*(client.enqueue(queue, str(start + offset).encode()) for offset in range(100)))

        async def consume():
            seen = set()
            async with client.consume(queue, prefetch=200) as consumer:
                batch = []
                async for delivery in consumer:
                    batch.append(delivery)
                    seen.add(delivery.payload)
                    if len(batch) == 50:
                        await client.ack(batch)
                        batch.clear()
                    if len(seen) == 5000:
                        return
            await client.ack(batch)

        await asyncio.gather(produce(), consume())

    run(main)


def test_errors(run, queue: str):
    async def main(client: AsyncClient):
        with pytest.raises(QueueNotFoundError):
            await client.enqueue("nowhere", b"x")
        with pytest.raises(QueueNotFoundError):
            async for _ in client.consume("nowhere"):
                pass
        await client.update_queue(queue, visibility_timeout=0.1)
        await client.enqueue(queue, b"x")
        (late,) = await client.receive(queue)
        await client.update_queue(queue, visibility_timeout=600)  # for the next lease
        (again,) = await client.receive(queue, wait=PATIENCE_S)
        with pytest.raises(LeaseExpiredError):
            await late.ack()
        with pytest.raises(BatchError) as caught:
            await client.ack([again, late])
        assert [result and type(result) for result in caught.value.results] == [None, AlreadySettledError]

    run(main)


def test_a_cancelled_receive_loses_nothing(run, queue: str):
    async def main(client: AsyncClient):
        waiting = asyncio.create_task(client.receive(queue, wait=60))
        await client.list_queues()
        waiting.cancel()
        with pytest.raises(asyncio.CancelledError):
            await waiting
        message_id = await client.enqueue(queue, b"x")
        (delivery,) = await client.receive(queue, wait=PATIENCE_S)
        assert (delivery.id, delivery.attempts) == (message_id, 0)
        await delivery.ack()

    run(main)


def test_policy(run, queue: str):
    """The asyncio client's ways to the same calls."""

    async def main(client: AsyncClient):
        await client.create_queue(f"{queue}-ordered", max_in_flight_per_key=1, default_ttl=3600)
        await client.update_queue(f"{queue}-ordered", default_ttl=None)
        first = await client.enqueue(queue, b"x", throttle_keys=["t"], cost=2, ttl=60, dedup_id="d")
        assert await client.enqueue(queue, b"x", dedup_id="d") == first
        (view,) = await client.browse(queue)
        assert (view.id, view.throttle_keys, view.cost) == (first, ["t"], 2)
        (got,) = await client.receive_any({queue: 1, f"{queue}-ordered": 1}, wait=PATIENCE_S)
        assert not await client.cancel(queue, first)
        await got.defer(0.05)
        (again,) = await client.receive_any({f"{queue}-ordered": 1, queue: 1}, wait=PATIENCE_S)
        assert (again.id, again.attempts) == (first, 0)
        await again.retry(3600)
        assert [info.name for info in await client.active_queues(queue)] == [queue]
        await client.pause(queue)
        await client.resume(queue)
        assert await client.purge_queue(queue) == 1
        await client.set_config(f"app:{queue}", "v")
        assert await client.get_config(f"app:{queue}") == "v"
        assert await client.list_config(f"app:{queue}") == {f"app:{queue}": "v"}
        assert await client.delete_config(f"app:{queue}")

    run(main)


def test_a_cancelled_receive_from_several_queues_loses_nothing(run, queue: str):
    async def main(client: AsyncClient):
        await client.create_queue(f"{queue}-other")
        queues = {queue: 1, f"{queue}-other": 1}
        for _ in range(20):
            waiting = asyncio.create_task(client.receive_any(queues, wait=10))
            await asyncio.sleep(0)
            enqueued = asyncio.create_task(client.enqueue(queue, b"x"))
            await asyncio.sleep(0.001)
            waiting.cancel()
            await enqueued
            with contextlib.suppress(asyncio.CancelledError):
                await client.ack(await waiting)
        while (stats := await client.queue_stats(queue)).in_flight:
            await asyncio.sleep(0.01)
        assert stats.pending + stats.acked == 20

    run(main)
