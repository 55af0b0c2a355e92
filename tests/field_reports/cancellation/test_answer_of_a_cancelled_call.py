"""The answer to a call that was cancelled is not taken for the answer to the next one.

Source: redis/redis-py issue 2624, redis/redis-py issue 2665
Right: each call returns its own answer, at whatever moment the one before was cancelled
"""

import asyncio
from contextlib import suppress

from fila_cluster import AsyncClient
from tests.support.cluster.cluster import PATIENCE_S, Cluster


def test_each_call_has_its_own_answer(shared_cluster: Cluster, queue: str) -> None:
    async def main() -> None:
        async with AsyncClient(shared_cluster.endpoint, timeout=PATIENCE_S) as client:
            for name in ("foo", "bar"):
                await client.set_config(f"{queue}:{name}", name)
            for rounds in range(40):
                cancelled = asyncio.create_task(client.get_config(f"{queue}:foo"))
                for _ in range(rounds % 8):
                    await asyncio.sleep(0.0002)
                cancelled.cancel()
                with suppress(asyncio.CancelledError):
                    assert await cancelled == "foo"
                answers = tuple(await asyncio.gather(client.get_config(f"{queue}:bar"), client.get_config(f"{queue}:none")))
                assert answers == ("bar", None)
                assert (await client.queue_stats(queue)).name == queue

    asyncio.run(main())
