"""The asyncio client, and the source of the blocking one."""

from fila_cluster.client.asynchronous.batches import AsyncBatch, AsyncBatchConsumer
from fila_cluster.client.asynchronous.client import AsyncClient
from fila_cluster.client.asynchronous.consumer import AsyncConsumer
from fila_cluster.client.asynchronous.message_batches import AsyncMessageBatch
from fila_cluster.client.asynchronous.producer import AsyncProducer

__all__ = ["AsyncBatch", "AsyncBatchConsumer", "AsyncClient", "AsyncConsumer", "AsyncMessageBatch", "AsyncProducer"]
