# Made by .ci/make_blocking.py from fila_cluster/client/asynchronous/__init__.py: edit that, then run `make blocking`.

"""The blocking client, made from the asyncio one."""

from fila_cluster.client.blocking.batches import Batch, BatchConsumer
from fila_cluster.client.blocking.client import Client
from fila_cluster.client.blocking.consumer import Consumer
from fila_cluster.client.blocking.message_batches import MessageBatch
from fila_cluster.client.blocking.producer import Producer

__all__ = ["Batch", "BatchConsumer", "Client", "Consumer", "MessageBatch", "Producer"]
