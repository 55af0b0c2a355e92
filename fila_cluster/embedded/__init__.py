"""A broker in an application's own process: :class:`Broker`.

:mod:`broker` is the durable one, with its thread; :mod:`joined` is its inside, and that of :mod:`fila_cluster.testing`.
"""

from fila_cluster.embedded.broker import Broker

__all__ = ["Broker"]
