"""A program that is cancelled can still unsubscribe, flush and close in its cleanup.

Source: nats-io/nats.py issue 287
Right: each of them does its work: what was sent is stored, and what was prefetched is given back uncounted
"""

import asyncio

from fila_cluster import AsyncClient, Client, Message
from tests.support.cluster.cluster import PATIENCE_S, Cluster


def test_the_cleanup_works(shared_cluster: Cluster, client: Client, queue: str) -> None:
    client.enqueue_many(queue, [Message(b"waits")] * 5)
    cleaned = []

    async def program() -> None:
        sender = AsyncClient(shared_cluster.endpoint, timeout=PATIENCE_S)
        consumer = sender.consume(queue, prefetch=5)
        producer = sender.producer(queue)
        try:
            await (await anext(consumer)).ack()
            await asyncio.Future()
        except asyncio.CancelledError:
            await producer.send(b"in the cleanup")
            await consumer.close()
            await producer.flush()
            await producer.close()
            await sender.close()
            cleaned.append(sender.closed)
            raise

    async def main() -> None:
        task = asyncio.create_task(program())
        while not client.queue_stats(queue).acked:
            await asyncio.sleep(0.01)
        task.cancel()
        await asyncio.wait([task])
        assert task.cancelled()

    asyncio.run(main())
    assert cleaned == [True]
    assert sorted((view.payload, view.attempts, view.state) for view in client.browse(queue)) == [
        (b"in the cleanup", 0, "pending"),
        *[(b"waits", 0, "pending")] * 4,
    ]
