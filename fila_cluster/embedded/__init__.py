"""A broker in an application's own process: :class:`Broker`.

:mod:`broker` is the durable one, with its thread; :mod:`joined` is what it and the broker of :mod:`fila_cluster.testing` are made of.
"""

from fila_cluster.embedded.broker import Broker

__all__ = ["Broker"]
