"""Futures that their caller has cancelled do not stop what sends the messages.

Source: nats-io/nats.py issue 624
Right: all messages are stored, the other futures have their ids, and the producer goes on
"""

import asyncio

from fila_cluster import AsyncClient, Client
from tests.support.cluster.cluster import PATIENCE_S, Cluster


def test_asyncio(shared_cluster: Cluster, client: Client, queue: str) -> None:
    async def main() -> None:
        async with AsyncClient(shared_cluster.endpoint, timeout=PATIENCE_S) as sender, sender.producer(queue) as producer:
            futures = [await producer.send(b"x") for _ in range(100)]
            for future in futures[::2]:
                future.cancel()
            await producer.flush()
            assert len({await future for future in futures[1::2]}) == 50
            assert await (await producer.send(b"last"))

    asyncio.run(main())
    assert client.queue_stats(queue).pending == 101


def test_threads(client: Client, queue: str) -> None:
    with client.producer(queue) as producer:
        futures = [producer.send(b"x") for _ in range(100)]
        assert not any(future.cancel() for future in futures[::2])  # a message that is sent can't be called back
        producer.flush()
        assert len({future.result(PATIENCE_S) for future in futures}) == 100
    assert client.queue_stats(queue).pending == 100
