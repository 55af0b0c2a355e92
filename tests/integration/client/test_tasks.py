"""The asyncio client against a real cluster, used by many tasks at once."""

import asyncio
import contextlib
from collections.abc import Awaitable, Callable

import pytest
import uvloop

from fila_cluster import AsyncClient, Message
from tests.support.cluster.cluster import PATIENCE_S, Cluster

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
