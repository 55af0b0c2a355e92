"""All numbers of one queue: from its dead letters and its backlog by Spark, from its counters by the client, and a
dashboard's history."""

from dataclasses import replace
from datetime import UTC, datetime

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.types import StructType

from fila_cluster import Client
from fila_cluster.client.views import QueueStats
from fila_cluster.errors import QueueNotFoundError
from fila_cluster.ops.observer.half_hour import HalfHour
from fila_cluster.spark.pipelines.session import plain_errors
from fila_cluster.spark.report.content import QueueTotals, Report, ReportHistory
from fila_cluster.spark.report.measures import NONE, failures_of, shares_lately, shares_of, waiting_in
from fila_cluster.spark.schema import DEAD_LETTER_SCHEMA, READ_SCHEMA

DEAD_LETTERS = ".dlq"
NOT_ASKED = "no dashboard was asked"


def source_queue(queue: str) -> str:
    """Return the queue of a report: a dead letter queue's name stands for its queue."""
    return queue.removesuffix(DEAD_LETTERS)


def gather(spark: SparkSession, queue: str, client: Client, remembered: HalfHour | str = NOT_ASKED) -> Report:
    """Count everything as of now. ``remembered``: the last half hour, or why there is none.

    Raises :class:`PipelineError`, and the client's errors.
    """
    queue = source_queue(queue)
    stats = client.queue_stats(queue)
    letters = queue + DEAD_LETTERS if _exists(client, queue + DEAD_LETTERS) else None
    now = datetime.now(UTC)
    with plain_errors():
        failures = failures_of(_browsed(spark, letters, client.endpoint, DEAD_LETTER_SCHEMA)) if letters else NONE
        waiting = waiting_in(_browsed(spark, queue, client.endpoint), now) if stats.pending else []
    report = Report(queue, letters, now.replace(microsecond=0), _totals(stats), failures, waiting, shares_of(stats))
    return replace(report, no_history=remembered) if isinstance(remembered, str) else _with_history(report, stats, remembered)


def _with_history(report: Report, stats: QueueStats, half_hour: HalfHour) -> Report:
    report = replace(
        report, history=ReportHistory([datetime.fromtimestamp(at_s, UTC) for at_s in half_hour.times], half_hour.series)
    )
    shares = shares_lately(half_hour.shares, stats)
    return replace(report, shares=shares, shares_span="last_minute") if shares else report


def _exists(client: Client, queue: str) -> bool:
    try:
        client.queue_stats(queue)
    except QueueNotFoundError:
        return False
    return True


def _browsed(spark: SparkSession, queue: str, endpoint: str, schema: StructType = READ_SCHEMA) -> DataFrame:
    return spark.read.format("fila").schema(schema).options(endpoint=endpoint, queue=queue).load()


def _totals(stats: QueueStats) -> QueueTotals:
    return QueueTotals(*(getattr(stats, name) for name in QueueTotals.__slots__))
