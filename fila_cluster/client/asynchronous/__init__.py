"""The asyncio client, and the source of the blocking one."""

from fila_cluster.client.asynchronous.client import AsyncClient
from fila_cluster.client.asynchronous.consumer import AsyncConsumer

__all__ = ["AsyncClient", "AsyncConsumer"]
