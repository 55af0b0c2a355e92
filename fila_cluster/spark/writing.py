"""``df.write.format("fila")`` and ``df.writeStream.format("fila")``: rows to messages, by tasks that may run twice.

There is no commit at the end of a job: each row is in its queue once, durable, as soon as its task reports it, and a consumer
may have it before the job ends. The rows that tasks of a failed job have stored stay in the queue.
"""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import pyarrow as pa
from pyspark.sql import datasource
from pyspark.sql.datasource import DataSourceStreamWriter, DataSourceWriter, WriterCommitMessage
from pyspark.sql.types import StructType

from fila_cluster.spark import columns
from fila_cluster.spark.columns import Columns
from fila_cluster.spark.feed import PartitionIntake
from fila_proto_zmq.errors import FilaError, InvalidArgumentError, RequestTimeoutError
from fila_proto_zmq.names import is_dead_letter


@dataclass(frozen=True, slots=True)
class PartitionSink:
    """Enqueues the rows of one partition when it is called with them. Picklable: Spark sends it to its executors."""

    intake: PartitionIntake
    columns: Columns

    def __call__(self, rows: Iterable[Any]) -> None:
        """Enqueue rows, ``Row`` or dict; return when all are durable."""
        self.intake.store(columns.of_rows(rows, self.columns))


def enqueue_partition(
    *,
    queue: str,
    endpoint: str | None = None,
    payload: str = "payload",
    headers: str | None = None,
    fairness_key: str | None = None,
    weight: str | None = None,
    throttle_keys: str | None = None,
    priority: str | None = None,
    cost: str | None = None,
    delay_ms: str | None = None,
    ttl_ms: str | None = None,
    dedup_id: str | None = None,
    dedup_mode: str | None = None,
    max_attempts: str | None = None,
    api_key: str | None = None,
    server_key: str | None = None,
    timeout: str | float | None = None,
    dedup_window: str | float | None = None,
    retry_for: str | float | None = None,
    job: str | None = None,
) -> PartitionSink:
    """Make the function for ``foreachPartition`` of a DataFrame, or an RDD of ``Row`` or dict, that enqueues its rows.

    From ``payload`` to ``max_attempts`` the arguments name columns (``payload="*"``: the whole row as JSON); other columns
    are ignored, and null means the default. The rest are the options of ``format("fila")``; durations are text (``"5m"``) or
    a number of milliseconds.

    Within the dedup window a task that Spark repeats stores rows once. So does a replayed micro-batch, if this is called
    inside ``foreachBatch``, or a repeated job, if ``job`` names it. Raises :class:`InvalidArgumentError`.
    """
    named = {
        "payload": payload,
        "headers": headers,
        "fairness_key": fairness_key,
        "weight": weight,
        "throttle_keys": throttle_keys,
        "priority": priority,
        "cost": cost,
        "delay_ms": delay_ms,
        "ttl_ms": ttl_ms,
        "dedup_id": dedup_id,
        "dedup_mode": dedup_mode,
        "max_attempts": max_attempts,
    }
    rest = {
        "endpoint": endpoint,
        "queue": queue,
        "api_key": api_key,
        "server_key": server_key,
        "timeout": timeout,
        "dedup_window": dedup_window,
        "retry_for": retry_for,
        "job": job,
    }
    intake = PartitionIntake.of({name: _text(name, value) for name, value in rest.items() if value is not None})
    return PartitionSink(
        intake, Columns.named({name: _text(name, column) for name, column in named.items() if column is not None})
    )


def _text(name: str, value: Any) -> str:
    if isinstance(value, str) and value:
        return value
    if name in _DURATIONS and isinstance(value, (int, float)) and not isinstance(value, bool):
        return str(value)
    raise InvalidArgumentError(f"{name}={value!r}: pass {'a duration' if name in _DURATIONS else 'a str'}")


_DURATIONS = ("timeout", "dedup_window", "retry_for")


@dataclass(slots=True)
class StoredRows(WriterCommitMessage):
    """A task's report: the number of stored rows."""

    rows: int


class _Writing:
    """The part that all writers share."""

    def __init__(self, intake: PartitionIntake, columns: Columns) -> None:
        self._intake = intake
        self._columns = columns


class _OfArrow(_Writing):
    def write(self, iterator: Iterator[pa.RecordBatch]) -> StoredRows:
        return StoredRows(self._intake.store(columns.of_arrow(iterator, self._columns)))


class _OfRows(_Writing):
    def write(self, iterator: Iterator[Any]) -> StoredRows:
        return StoredRows(self._intake.store(columns.of_rows(iterator, self._columns)))


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
    """Plan a batch write, and raise errors before a task starts. A broker that does not answer at all is one now: its
    endpoint is probably wrong; tasks wait for a shard that is down for a moment."""
    if overwrite:
        raise InvalidArgumentError(
            "mode overwrite: a queue's messages are not replaced by a write; use mode('append'), "
            "after client.purge_queue(…) if the queue should be empty first"
        )
    return BatchWriter(*_planned(options, schema, needs_answer=True))


def stream_writer(options: Mapping[str, str], schema: StructType, *, overwrite: bool) -> DataSourceStreamWriter:
    """Plan a streaming write. Spark plans again to commit each micro-batch; tasks wait for a broker that is away for a
    moment, and the query does not end."""
    if overwrite:
        raise InvalidArgumentError(
            "outputMode complete would enqueue the whole result again with every batch: use outputMode('append') or 'update'"
        )
    return StreamWriter(*_planned(options, schema, needs_answer=False))


def _planned(options: Mapping[str, str], schema: StructType, *, needs_answer: bool) -> tuple[PartitionIntake, Columns]:
    intake, columns = PartitionIntake.of(options), Columns.of(schema, options)
    if intake.queue is None and "queue" not in columns.names:
        raise InvalidArgumentError("no queue: name one with option queue, or give the rows a column 'queue'")
    try:
        _check_target(intake)
    except FilaError as error:
        if not error.retryable or (needs_answer and isinstance(error, RequestTimeoutError)):
            raise
    return intake, columns


def _check_target(intake: PartitionIntake) -> None:
    if intake.queue is not None and is_dead_letter(intake.queue):
        raise InvalidArgumentError(
            f"option queue: {intake.queue!r} is a dead letter queue, only the broker puts messages there"
        )
    with intake.connection.client() as client:
        if intake.queue is None:
            client.cluster_status()
        else:
            client.queue_stats(intake.queue)
