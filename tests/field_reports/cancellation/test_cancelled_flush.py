"""A flush that was cancelled, or ran out of time, leaves the next one in order.

Source: nats-io/nats.py issue 469, nats-io/nats.py pull request 853
Right: the next flush returns when everything is confirmed
"""

import asyncio

from fila_cluster import AsyncClient, Client
from tests.support.cluster.cluster import PATIENCE_S, Cluster


def test_the_next_flush_is_sound(shared_cluster: Cluster, client: Client, queue: str) -> None:
    async def main() -> None:
        async with AsyncClient(shared_cluster.endpoint, timeout=PATIENCE_S) as sender, sender.producer(queue) as producer:
            for rounds in range(20):
                futures = [await producer.send(b"x") for _ in range(10)]
                flush = asyncio.create_task(producer.flush())
                for _ in range(rounds % 4):
                    await asyncio.sleep(0)
                flush.cancel()
                await asyncio.wait([flush])
                await producer.flush()
                assert all(future.done() for future in futures)

    asyncio.run(main())
    assert client.queue_stats(queue).pending == 200
