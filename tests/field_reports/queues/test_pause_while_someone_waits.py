"""A message that comes after a pause is not given to a receive that has waited since before.

Source: OptimalBits/bull issue 447
Right: the receive waits on, and gets the message when the queue is resumed
"""

import asyncio

from fila_cluster import AsyncClient
from tests.support.cluster.cluster import PATIENCE_S, Cluster


def test_a_waiting_receive_obeys_the_pause(shared_cluster: Cluster, queue: str) -> None:
    async def main() -> None:
        async with AsyncClient(shared_cluster.endpoint, timeout=PATIENCE_S) as client:
            waiting = asyncio.create_task(client.receive(queue, wait=PATIENCE_S))
            await client.queue_stats(queue)  # sent after the receive, and answered
            await client.pause(queue)
            await client.enqueue(queue, b"later")
            for _ in range(3):
                stats = await client.queue_stats(queue)
                assert (stats.pending, stats.in_flight) == (1, 0)
            assert not waiting.done()
            await client.resume(queue)
            (delivery,) = await waiting
            await delivery.ack()

    asyncio.run(main())
