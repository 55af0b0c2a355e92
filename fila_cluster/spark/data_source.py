"""``format("fila")``: the door through which Spark reads and writes queues.

Spark makes this object anew in several processes of the driver, for each plan; so it holds nothing but the options, and the
parts are imported when one of them is asked for.
"""

from typing import TYPE_CHECKING

from pyspark.sql.datasource import DataSource
from pyspark.sql.types import StructType

from fila_cluster.spark import options

if TYPE_CHECKING:
    from pyspark.sql.datasource import DataSourceReader, DataSourceStreamReader, DataSourceStreamWriter, DataSourceWriter


class FilaDataSource(DataSource):
    """Reads queues without leasing, drains them as streams, writes into them. ``register(spark)`` makes Spark know it."""

    @classmethod
    def name(cls) -> str:
        """What ``format(…)`` calls it."""
        return "fila"

    def schema(self) -> StructType:
        """The columns that are read."""
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
