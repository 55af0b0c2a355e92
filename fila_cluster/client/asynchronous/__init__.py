"""The asyncio client, and the source that the blocking one is made from."""

from fila_cluster.client.asynchronous.client import AsyncClient
from fila_cluster.client.asynchronous.consumer import AsyncConsumer

__all__ = ["AsyncClient", "AsyncConsumer"]
