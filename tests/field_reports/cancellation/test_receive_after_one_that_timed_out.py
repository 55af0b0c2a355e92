"""A receive that ran out of time leaves no request behind that swallows the next message.

Source: nats-io/nats.py issue 933
Right: the next receive gets the message at once, on its first attempt, however the ones before ended
"""

import asyncio

from fila_cluster import AsyncClient
from tests.support.cluster.cluster import PATIENCE_S, Cluster


def test_no_orphan_takes_the_message(shared_cluster: Cluster, queue: str) -> None:
    async def main() -> None:
        async with AsyncClient(shared_cluster.endpoint, timeout=PATIENCE_S) as client:
            for rounds in range(20):
                if rounds % 2:
                    assert await client.receive(queue, 10, wait=0.005) == []
                else:
                    try:
                        async with asyncio.timeout(0.005):
                            assert await client.receive(queue, 10, wait=PATIENCE_S) == []
                    except TimeoutError:
                        pass
                await client.enqueue(queue, b"x")
                (delivery,) = await client.receive(queue, 10, wait=PATIENCE_S)
                assert delivery.attempts == 0
                await delivery.ack()
            assert (await client.queue_stats(queue)).delivered == 20

    asyncio.run(main())
