"""Celery and kombu on this broker: ``broker_url = "fila://host:5555"`` after ``import fila_cluster.celery``.

Needs ``pip install 'fila-cluster[celery]'``. ``docs/celery.md`` says how Celery's words map to the broker's.
"""

try:
    import celery  # noqa: F401
    import kombu.transport
except ImportError as error:
    raise ImportError(f"fila_cluster.celery needs Celery ({error}): pip install 'fila-cluster[celery]'") from error

from fila_cluster.celery.tenancy import SentTask, Share, fair
from fila_cluster.celery.transport import Transport

kombu.transport.TRANSPORT_ALIASES["fila"] = "fila_cluster.celery.transport:Transport"

__all__ = ["SentTask", "Share", "Transport", "fair"]
