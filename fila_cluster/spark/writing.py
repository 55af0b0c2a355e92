"""``df.write.format("fila")`` and ``df.writeStream.format("fila")``: rows to messages, by tasks that may run twice.

There is nothing to commit when the tasks are done: each row is in its queue once, durable, as soon as its task reports it,
and a consumer may have it before the job ends. The rows that tasks of a failed job have stored stay in the queue.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import pyarrow as pa
from pyspark.sql import datasource
from pyspark.sql.datasource import DataSourceStreamWriter, DataSourceWriter, WriterCommitMessage
from pyspark.sql.types import StructType

from fila_cluster.spark import columns
from fila_cluster.spark.columns import Columns
from fila_cluster.spark.feed import Intake
from fila_proto_zmq.errors import FilaError, InvalidArgumentError, RequestTimeoutError
from fila_proto_zmq.names import is_dead_letter


@dataclass(slots=True)
class Stored(WriterCommitMessage):
    """A task's report: the number of stored rows."""

    rows: int


class _Writing:
    """The part that all writers share."""

    def __init__(self, intake: Intake, columns: Columns) -> None:
        self._intake = intake
        self._columns = columns


class _OfArrow(_Writing):
    def write(self, iterator: Iterator[pa.RecordBatch]) -> Stored:
        return Stored(self._intake.store(columns.of_arrow(iterator, self._columns)))


class _OfRows(_Writing):
    def write(self, iterator: Iterator[Any]) -> Stored:
        return Stored(self._intake.store(columns.of_rows(iterator, self._columns)))


if hasattr(datasource, "DataSourceArrowWriter"):

    class BatchWriter(_OfArrow, datasource.DataSourceArrowWriter):
        """Writes a DataFrame."""

else:  # PySpark before 4.1

    class BatchWriter(_OfRows, DataSourceWriter):  # type: ignore[no-redef]
        """Writes a DataFrame."""


if hasattr(datasource, "DataSourceStreamArrowWriter"):

    class StreamWriter(_OfArrow, datasource.DataSourceStreamArrowWriter):
        """Writes the micro-batches of a query."""

else:  # PySpark before 4.1

    class StreamWriter(_OfRows, DataSourceStreamWriter):  # type: ignore[no-redef]
        """Writes the micro-batches of a query."""


def batch_writer(options: Mapping[str, str], schema: StructType, *, overwrite: bool) -> DataSourceWriter:
    """Plan a batch write: errors that can be known are raised now, before a task starts.

    Tasks wait for a shard that is down for a moment; a broker that does not answer at all is an error now, because its
    endpoint is probably wrong.
    """
    if overwrite:
        raise InvalidArgumentError(
            "mode overwrite: a queue's messages are not replaced by a write; use mode('append'), "
            "after client.purge_queue(…) if the queue should be empty first"
        )
    intake, columns = _planned(options, schema)
    try:
        _check_target(intake)
    except FilaError as error:
        if not error.retryable or isinstance(error, RequestTimeoutError):
            raise
    return BatchWriter(intake, columns)


def stream_writer(options: Mapping[str, str], schema: StructType, *, overwrite: bool) -> DataSourceStreamWriter:
    """Plan a streaming write.

    Spark plans again to commit each micro-batch; tasks wait for a broker that is away for a moment, and the query
    does not end.
    """
    if overwrite:
        raise InvalidArgumentError(
            "outputMode complete would enqueue the whole result again with every batch: use outputMode('append') or 'update'"
        )
    intake, columns = _planned(options, schema)
    try:
        _check_target(intake)
    except FilaError as error:
        if not error.retryable:
            raise
    return StreamWriter(intake, columns)


def _planned(options: Mapping[str, str], schema: StructType) -> tuple[Intake, Columns]:
    intake, columns = Intake.of(options), Columns.of(schema, options)
    if intake.queue is None and "queue" not in columns.names:
        raise InvalidArgumentError("no queue: name one with option queue, or give the rows a column 'queue'")
    return intake, columns


def _check_target(intake: Intake) -> None:
    if intake.queue is not None and is_dead_letter(intake.queue):
        raise InvalidArgumentError(
            f"option queue: {intake.queue!r} is a dead letter queue, only the broker puts messages there"
        )
    with intake.connection.client() as client:
        if intake.queue is None:
            client.cluster_status()
        else:
            client.queue_stats(intake.queue)
