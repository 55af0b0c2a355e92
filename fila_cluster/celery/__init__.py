"""Celery and kombu on this broker: ``broker_url = "fila://host:5555"`` after ``import fila_cluster.celery``.

Needs ``pip install 'fila-cluster[celery]'``. ``docs/celery.md`` says how Celery's words map to the broker's.
"""

try:
    import celery.signals
    import kombu.transport
except ImportError as error:
    raise ImportError(f"fila_cluster.celery needs Celery ({error}): pip install 'fila-cluster[celery]'") from error

from typing import Any

from fila_cluster.celery.tenancy import SentTask, Share, fair
from fila_cluster.celery.transport import Transport

kombu.transport.TRANSPORT_ALIASES["fila"] = "fila_cluster.celery.transport:Transport"


@celery.signals.celeryd_init.connect(weak=False)  # type: ignore[untyped-decorator]
def _let_workers_mingle(**_: Any) -> None:
    """Ask other workers for revoked tasks when a worker starts: Celery does that only for brokers in its list."""
    from celery.worker.consumer.mingle import Mingle  # noqa: PLC0415  # a producer needs no worker

    Mingle.compatible_transports.add(Transport.driver_type)


@celery.signals.worker_init.connect(weak=False)  # type: ignore[untyped-decorator]
def _let_workers_refuse(sender: Any, **_: Any) -> None:
    """Keep a worker running after a message that is not a task."""
    from fila_cluster.celery.unreadable import Unreadable  # noqa: PLC0415  # a producer needs no worker

    sender.app.steps["consumer"].add(Unreadable)


__all__ = ["SentTask", "Share", "Transport", "fair"]
