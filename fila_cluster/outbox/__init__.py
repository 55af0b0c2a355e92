"""A transactional outbox: messages that are enqueued exactly when the caller's database transaction commits.

:func:`add` writes a message into a table of the caller's database, in the caller's transaction. :func:`relay` sends committed
rows to the broker, each with a dedup id, so that a crash at any step neither loses a message nor stores it twice within the
dedup window.

It needs ``pip install 'fila-cluster[outbox]'``.
"""

try:
    import sqlalchemy  # noqa: F401
except ModuleNotFoundError:
    raise ModuleNotFoundError(
        "fila_cluster.outbox needs SQLAlchemy: pip install 'fila-cluster[outbox]'", name="sqlalchemy"
    ) from None

from fila_cluster.outbox.relaying import Turn, relay, relay_turn
from fila_cluster.outbox.status import Status, status
from fila_cluster.outbox.table import add, metadata, outbox

__all__ = ["Status", "Turn", "add", "metadata", "outbox", "relay", "relay_turn", "status"]
