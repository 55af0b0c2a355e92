"""``format("fila")``: Spark's interface for reading and writing queues."""

from typing import TYPE_CHECKING
from weakref import WeakSet

from pyspark.sql import SparkSession
from pyspark.sql.datasource import DataSource
from pyspark.sql.types import StructType

from fila_cluster.spark import options
from fila_cluster.spark.listener import CompletionListener

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
    """Register the data source with a session, and a listener that acknowledges the batches of its streams.

    It may be called again.
    """
    spark.conf.set("spark.sql.python.filterPushdown.enabled", "true")  # otherwise Spark refuses a reader that takes filters
    spark.dataSource.register(FilaDataSource)
    if spark not in _listening:
        spark.streams.addListener(CompletionListener())
        _listening.add(spark)
