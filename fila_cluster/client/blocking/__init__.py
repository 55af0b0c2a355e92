# Made by .ci/make_blocking.py of fila_cluster/client/asynchronous/__init__.py: edit that, then run `make blocking`.

"""The blocking client, made of the asyncio one."""

from fila_cluster.client.blocking.client import Client
from fila_cluster.client.blocking.consumer import Consumer

__all__ = ["Client", "Consumer"]
