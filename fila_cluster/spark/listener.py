"""Acknowledges a batch as soon as Spark reports it complete.

Spark reports a batch's end to a source only when it plans the next one, so its messages would stay leased; those of a query's
last batch perhaps for ever. A listener of the session gets a report on each batch right after its commit, in the driver's own
Python process: the offset in the report is enough.
"""

import logging
from typing import Final

from pyspark.sql.streaming.listener import (
    QueryProgressEvent,
    QueryStartedEvent,
    QueryTerminatedEvent,
    StreamingQueryListener,
)

from fila_cluster.client import Client
from fila_cluster.client.calls.reservations import Reservations
from fila_cluster.client.forwarding import CommandsAhead
from fila_cluster.spark.planner import Offset
from fila_proto_zmq.errors import FilaError

TIMEOUT_S: Final = 5.0
"""Spark calls its listeners one after the other, so this one must not delay the others for long."""

_log = logging.getLogger(__name__)


class CompletionListener(StreamingQueryListener):
    """Acknowledges the batches of all streams that read queues."""

    def onQueryStarted(self, event: QueryStartedEvent) -> None:  # noqa: N802
        """Do nothing: there is no batch yet."""

    def onQueryProgress(self, event: QueryProgressEvent) -> None:  # noqa: N802
        """Acknowledge a batch that is complete; a report may also come because there was nothing to do."""
        for source in event.progress.sources:
            batch = Offset.parse(source.endOffset)
            if batch is not None and batch.queues and source.endOffset != source.startOffset:
                acknowledge(batch)

    def onQueryTerminated(self, event: QueryTerminatedEvent) -> None:  # noqa: N802
        """Do nothing: a batch under way stays reserved for a restart, until its timeout."""


def acknowledge(batch: Offset) -> None:
    """Acknowledge a batch's messages; if the broker can't be reached, log that: the next batch tries again."""
    try:
        with Client(batch.endpoint, timeout=TIMEOUT_S) as client:
            Reservations(CommandsAhead(client)).ack(batch.reservation, batch.queues)
    except FilaError as error:
        _log.warning("batch %s is complete and could not be acknowledged yet: %s", batch.reservation, error)
