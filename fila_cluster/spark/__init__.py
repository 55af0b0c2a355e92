"""Bulk work with Apache Spark: read, write and drain queues in parallel, all shards at once.

``register(spark)`` makes ``format("fila")`` known to a session; :func:`enqueue_partition` is for ``foreachPartition``. No
other package of this project imports this one when it starts: it needs ``pip install 'fila-cluster[spark]'``.
"""

from fila_cluster.spark.data_source import FilaDataSource, register
from fila_cluster.spark.writing import enqueue_partition

__all__ = ["FilaDataSource", "enqueue_partition", "register"]
