"""Making a Spark session know ``format("fila")``."""

from weakref import WeakSet

from pyspark.sql import SparkSession

from fila_cluster.spark.data_source import FilaDataSource
from fila_cluster.spark.listener import CompletionListener

_listening: WeakSet[SparkSession] = WeakSet()


def register(spark: SparkSession) -> None:
    """Register the data source with a session, and a listener that acknowledges the batches of its streams.

    Doing it again does no harm.
    """
    spark.conf.set("spark.sql.python.filterPushdown.enabled", "true")  # or Spark refuses a reader that takes filters
    spark.dataSource.register(FilaDataSource)
    if spark not in _listening:
        spark.streams.addListener(CompletionListener())
        _listening.add(spark)
