"""``format("fila")``: Spark's interface for reading and writing queues."""

import logging
from typing import TYPE_CHECKING, Final
from weakref import WeakSet

from pyspark.sql import SparkSession
from pyspark.sql.datasource import DataSource
from pyspark.sql.streaming.listener import QueryProgressEvent, QueryStartedEvent, QueryTerminatedEvent, StreamingQueryListener
from pyspark.sql.types import StructType

from fila_cluster.client import Client
from fila_cluster.client.calls.reservations import Reservations
from fila_cluster.client.forwarding import CommandsAhead
from fila_cluster.spark import options
from fila_cluster.spark.planner import Offset
from fila_proto_zmq.errors import FilaError

TIMEOUT_S: Final = 5.0
"""Spark calls its listeners one after the other, so this one must not delay the others for long."""

_log = logging.getLogger(__name__)


class CompletionListener(StreamingQueryListener):
    """Acknowledges the batches of all streams that read queues, each as soon as Spark reports it complete.

    Spark reports a batch's end to a source only when it plans the next one, so its messages would stay leased; those of a
    query's last batch perhaps for ever. This listener gets a report right after each commit, in the driver's own process.
    """

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


if TYPE_CHECKING:
    from pyspark.sql.datasource import DataSourceReader, DataSourceStreamReader, DataSourceStreamWriter, DataSourceWriter


class FilaDataSource(DataSource):
    """Reads queues without leasing, drains them as streams, writes into them. ``register(spark)`` adds it to a session."""

    @classmethod
    def name(cls) -> str:
        """Return the name for ``format(…)``."""
        return "fila"

    def schema(self) -> StructType:
        """Return the columns that are read."""
        from fila_cluster.spark.schema import READ_SCHEMA  # noqa: PLC0415

        return READ_SCHEMA

    def reader(self, schema: StructType) -> "DataSourceReader":
        """Browse queues, as they are at this moment."""
        from fila_cluster.spark.browsing import browse_reader  # noqa: PLC0415

        options.refuse_unknown(self.options, options.READ)
        return browse_reader(self.options, schema)

    def streamReader(self, schema: StructType) -> "DataSourceStreamReader":  # noqa: N802
        """Take messages out of queues, acknowledged as batches complete."""
        from fila_cluster.spark.streaming import ReservationReader  # noqa: PLC0415

        options.refuse_unknown(self.options, options.STREAM_READ)
        return ReservationReader(self.options, schema)

    def writer(self, schema: StructType, overwrite: bool) -> "DataSourceWriter":
        """Enqueue the rows of a batch."""
        from fila_cluster.spark.writing import batch_writer  # noqa: PLC0415

        return batch_writer(self.options, schema, overwrite=overwrite)

    def streamWriter(self, schema: StructType, overwrite: bool) -> "DataSourceStreamWriter":  # noqa: N802
        """Enqueue the rows of each micro-batch."""
        from fila_cluster.spark.writing import stream_writer  # noqa: PLC0415

        return stream_writer(self.options, schema, overwrite=overwrite)


_listening: WeakSet[SparkSession] = WeakSet()


def register(spark: SparkSession) -> None:
    """Register the data source with a session, and the listener of its streams' batches. It may be called again."""
    spark.conf.set("spark.sql.python.filterPushdown.enabled", "true")  # otherwise Spark refuses a reader that takes filters
    spark.dataSource.register(FilaDataSource)
    if spark not in _listening:
        spark.streams.addListener(CompletionListener())
        _listening.add(spark)
