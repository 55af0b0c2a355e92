"""A peer that takes connections and never answers (a full broker, a dead proxy) stops nobody for ever.

Source: pika/pika issue 647, pika/pika issue 661
Right: each call ends at its timeout with an error that names the endpoint, and close returns at once
"""

import asyncio
import socket
from collections.abc import Iterator

import pytest

from fila_cluster import AsyncClient, Client
from fila_cluster.errors import RequestTimeoutError


@pytest.fixture
def mute() -> Iterator[str]:
    """An endpoint where the system takes connections and bytes, and no one answers."""
    with socket.create_server(("127.0.0.1", 0)) as listening:
        yield f"tcp://127.0.0.1:{listening.getsockname()[1]}"


def test_blocking(mute: str) -> None:
    with Client(mute, timeout=0.2) as client:
        with pytest.raises(RequestTimeoutError, match=mute):
            client.enqueue("q", b"x")
        with pytest.raises(RequestTimeoutError, match=mute):
            client.receive("q", wait=0.1)
        producer = client.producer("q")
        future = producer.send(b"x")
        with pytest.raises(RequestTimeoutError):
            future.result(30)
        producer.close()


def test_asyncio(mute: str) -> None:
    async def main() -> None:
        async with AsyncClient(mute, timeout=0.2) as client:
            with pytest.raises(RequestTimeoutError, match=mute):
                await client.list_queues()

    asyncio.run(main())
