"""A broker in an application's own process: :class:`Broker`."""

from fila_cluster.embedded.broker import Broker

__all__ = ["Broker"]
