"""A broker for Dramatiq: its actors, middleware and command line, on this project's queues.

A project changes only ``dramatiq.set_broker(FilaBroker("tcp://127.0.0.1:5555"))``. :func:`fair` sets the tenants of messages.
It needs ``pip install 'fila-cluster[dramatiq]'``.
"""

try:
    import dramatiq  # noqa: F401
except ImportError as error:
    raise ImportError(f"fila_cluster.dramatiq needs dramatiq ({error}): pip install 'fila-cluster[dramatiq]'") from error

from fila_cluster.dramatiq.broker import FilaBroker
from fila_cluster.dramatiq.options import fair

__all__ = ["FilaBroker", "fair"]
