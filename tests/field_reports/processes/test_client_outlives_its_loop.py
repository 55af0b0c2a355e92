"""An asyncio client whose event loop was closed first can be closed, and collected, without an error.

Source: aio-libs-abandoned/aioredis-py issue 1103, aio-libs-abandoned/aioredis-py issue 1115, nats-io/nats.py issue 203
Right: close works in any loop then, descriptors are closed, and nothing is said but that it was not closed in time
Result: mended
"""

import asyncio
import gc
import warnings

import pytest

from fila_cluster import AsyncClient
from tests.support.cluster.cluster import PATIENCE_S, Cluster
from tests.support.descriptors import all_closed_again


async def used(endpoint: str, queue: str) -> tuple[AsyncClient, list[object]]:
    client = AsyncClient(endpoint, timeout=PATIENCE_S)
    producer = client.producer(queue)
    left = [asyncio.ensure_future(anext(client.consume(queue))), producer, await producer.send(b"x")]
    await client.list_queues(queue)
    return client, left


@pytest.mark.filterwarnings("ignore:.*was not closed:ResourceWarning")
def test_it_is_closed_in_another_loop(shared_cluster: Cluster, queue: str) -> None:
    with all_closed_again():
        loop = asyncio.new_event_loop()
        client, left = loop.run_until_complete(used(shared_cluster.endpoint, queue))
        for task in asyncio.all_tasks(loop):
            task.cancel()
        loop.run_until_complete(asyncio.sleep(0))
        loop.close()
        asyncio.run(client.close())
        assert client.closed
        del left


@pytest.mark.filterwarnings("always")
def test_it_is_collected(shared_cluster: Cluster, queue: str, monkeypatch: pytest.MonkeyPatch) -> None:
    said: list[tuple[str, type[Warning]]] = []  # not the warnings: they have their clients
    monkeypatch.setattr(warnings, "showwarning", lambda message, category, *_: said.append((str(message), category)))
    with all_closed_again():
        client, left = asyncio.run(used(shared_cluster.endpoint, queue))
        del client, left
        gc.collect()
    assert any("was never closed" in text for text, _ in said)
    assert {category for _, category in said} == {ResourceWarning}
