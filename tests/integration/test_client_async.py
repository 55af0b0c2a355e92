"""The asyncio client against a real cluster."""

import asyncio
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
        async with AsyncClient(shared_cluster.endpoint, timeout=10) as client:
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
        (again,) = await client.receive(queue, wait=5)
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
        for _ in range(100):
            stats = await mine.queue_stats(queue)
            if not stats.in_flight:
                break
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
        await client.enqueue(queue, b"x", lease=0.1)
        (late,) = await client.receive(queue)
        (again,) = await client.receive(queue, wait=5)
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
        (delivery,) = await client.receive(queue, wait=5)
        assert (delivery.id, delivery.attempts) == (message_id, 0)
        await delivery.ack()

    run(main)
