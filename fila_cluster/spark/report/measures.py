"""Count dead letters, waiting times and shares of a queue by Spark."""

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import replace
from datetime import UTC, datetime
from typing import Any

from pyspark.sql import Column, DataFrame, Row, SparkSession
from pyspark.sql import functions as F  # noqa: N812 # its usual name
from pyspark.sql.types import StructType

from fila_cluster import Client
from fila_cluster.client.views import KeyStats, QueueStats
from fila_cluster.errors import QueueNotFoundError
from fila_cluster.ops.analysis.history import HalfHour, LastMinuteShare
from fila_cluster.spark.pipelines.session import plain_errors
from fila_cluster.spark.report.content import (
    ERRORS_SHOWN,
    SERIES_SHOWN,
    TENANTS_SHOWN,
    Count,
    Dwell,
    Failures,
    QueueReport,
    QueueTotals,
    ReportHistory,
    TenantShare,
)
from fila_cluster.spark.schema import DEAD_LETTER_SCHEMA, READ_SCHEMA
from fila_proto_zmq.commands import OTHER_KEYS

NO_ERROR = "(none given)"
OTHER = "other"
ERROR_LENGTH = 160
NONE = Failures(0, 0, [], [], [], [], 60, [])

_BUCKETS_S = (1, 10, 60, 300, 900, 3_600, 6 * 3_600, 86_400, 7 * 86_400, 30 * 86_400)
_BUCKETS_SHOWN = 60


def failures_of(letters: DataFrame) -> Failures:
    """Return the numbers of dead letters, which the batch reader shows with ``dead_lettered_at``."""
    kinds = letters.select(
        "fairness_key",
        F.coalesce("reason", F.lit(OTHER)).alias("reason"),
        _error().alias("error"),
        F.unix_timestamp("dead_lettered_at").alias("second"),
        ((F.unix_micros("dead_lettered_at") - F.unix_micros("enqueued_at")) / 1e6).alias("waited_s"),
    ).persist()
    try:
        return _failures(kinds)
    finally:
        kinds.unpersist()


def _error() -> Column:
    text = F.substring(F.regexp_replace("error", r"\d+", "#"), 1, ERROR_LENGTH)
    return F.when(text == "", NO_ERROR).otherwise(text)


def _failures(kinds: DataFrame) -> Failures:
    (whole,) = kinds.agg(
        F.count("*").alias("total"),
        F.count_distinct("fairness_key").alias("tenants"),
        F.min("second").alias("first"),
        F.max("second").alias("last"),
    ).collect()
    if not whole["total"]:
        return NONE
    total, bucket_s = int(whole["total"]), _bucket_s(whole["last"] - whole["first"])
    reasons = _most_frequent(kinds, "reason", SERIES_SHOWN)
    errors = _most_frequent(kinds, "error", ERRORS_SHOWN)
    tenants = _most_frequent(kinds, "fairness_key", TENANTS_SHOWN)
    return Failures(
        total,
        int(whole["tenants"]),
        [Count(name, count, {}) for name, count in reasons.items()],
        _with_parts(kinds, "error", errors, "reason", list(reasons), total),
        _with_parts(kinds, "fairness_key", tenants, "error", list(errors)[:SERIES_SHOWN], total),
        _by_time(kinds, list(reasons), bucket_s),
        bucket_s,
        dwell_of(kinds),
    )


def _most_frequent(kinds: DataFrame, column: str, shown: int) -> dict[str, int]:
    """Return the values with the most dead letters, and how many; ties by name."""
    rows = kinds.groupBy(column).count().orderBy(F.desc("count"), column).limit(shown).collect()
    return {row[column]: row["count"] for row in rows}


def _with_parts(
    kinds: DataFrame, column: str, counts: dict[str, int], part: str, parts: list[str], total: int
) -> list[Count]:
    """Return ``counts`` split by another column, with the rest of ``total`` as a last entry."""
    by_name = _crossed(kinds.where(F.col(column).isin(list(counts))), F.col(column), part, parts)
    entries = [Count(name, count, by_name[name]) for name, count in counts.items()]
    if rest := total - sum(counts.values()):
        entries.append(Count(None, rest, {}))
    return entries


def _by_time(kinds: DataFrame, reasons: list[str], bucket_s: int) -> list[Count]:
    start = F.floor(F.col("second") / bucket_s) * bucket_s
    by_start = _crossed(kinds, start, "reason", reasons)
    return [
        Count(datetime.fromtimestamp(second, UTC).isoformat(), sum(parts.values()), parts)
        for second, parts in sorted(by_start.items())
    ]


def _crossed(kinds: DataFrame, by: Column, part: str, parts: list[str]) -> dict[Any, dict[str, int]]:
    """Return counts by two columns; values that are not in ``parts`` are counted as other."""
    kind = F.when(F.col(part).isin(parts), F.col(part)).otherwise(OTHER)
    found: dict[Any, dict[str, int]] = defaultdict(dict)
    for row in kinds.groupBy(by.alias("by"), kind.alias("part")).count().orderBy("part").collect():
        found[row["by"]][row["part"]] = row["count"]
    return found


def _bucket_s(span_s: int) -> int:
    """Return the finest step with which the bars of a span fit into a plot."""
    return next((step for step in _BUCKETS_S if span_s / step < _BUCKETS_SHOWN), _BUCKETS_S[-1])


_PERCENTILES = [0.5, 0.9, 0.99]


def waiting_in(messages: DataFrame, now: datetime) -> list[Dwell]:
    """Return the waiting times of pending messages: now − enqueued_at."""
    waited_s = F.greatest(F.lit(0.0), F.lit(now.timestamp()) - F.unix_micros("enqueued_at") / 1e6)
    return dwell_of(messages.where("state = 'pending'").select("fairness_key", waited_s.alias("waited_s")))


def dwell_of(waited: DataFrame) -> list[Dwell]:
    """Return times of ``fairness_key`` and ``waited_s``: all together first, then the slowest tenants. Empty: none are there."""
    rows = (
        waited.rollup("fairness_key")
        .agg(
            F.grouping("fairness_key").alias("together"),
            F.count("*").alias("messages"),
            F.percentile_approx("waited_s", _PERCENTILES).alias("percentiles"),
            F.max("waited_s").alias("longest"),
        )
        .orderBy(F.desc("together"), F.desc(F.col("percentiles")[1]), "fairness_key")
        .limit(1 + TENANTS_SHOWN)
        .collect()
    )
    return [_dwell(row) for row in rows if row["messages"]]


def _dwell(row: Row) -> Dwell:
    p50, p90, p99 = (round(value, 3) for value in row["percentiles"])
    name = None if row["together"] else row["fairness_key"]
    return Dwell(name, row["messages"], p50, p90, p99, round(row["longest"], 3))


def shares_of(stats: QueueStats) -> list[TenantShare]:
    """Return the keys with the most deliveries or entitlement, then the others together; empty before the first delivery."""
    keys = sorted(
        (key for key in stats.keys if key.delivered or key.pending),
        key=lambda key: (-key.delivered, -key.weight, key.fairness_key),
    )
    delivered = max(stats.delivered, sum(key.delivered for key in keys))
    if not keys or not delivered:
        return []
    weights = sum(key.weight for key in keys)
    shown = [_share(key.fairness_key, [key], delivered, weights) for key in keys[:TENANTS_SHOWN]]
    if others := keys[TENANTS_SHOWN:]:
        shown.append(_share(None, others, delivered, weights))
    return shown


def shares_lately(latest: Sequence[LastMinuteShare], stats: QueueStats) -> list[TenantShare]:
    """Return the shares of the last minute, the others together last; empty without deliveries in it."""
    if not any(share.delivered_per_s for share in latest):
        return []
    named = [share for share in latest if share.fairness_key != OTHER_KEYS][:TENANTS_SHOWN]
    known = {key.fairness_key: key for key in stats.keys}
    shown = [_share_lately(share, known.get(share.fairness_key)) for share in named]
    if others := [share for share in latest if share not in named]:
        shown.append(_others_lately(others, shown, stats))
    return shown


def _share_lately(share: LastMinuteShare, key: KeyStats | None) -> TenantShare:
    return TenantShare(
        share.fairness_key,
        key.weight if key else share.weight,
        key.delivered if key else 0,
        key.pending if key else share.pending,
        share.actual,
        share.entitled,
        share.delivered_per_s,
    )


def _others_lately(others: Sequence[LastMinuteShare], shown: Sequence[TenantShare], stats: QueueStats) -> TenantShare:
    """Return the rest of the entitlements and deliveries; 0 if no key competes."""
    names = {share.fairness_key for share in shown}
    keys = [key for key in stats.keys if key.fairness_key not in names]
    due = sum(share.entitled for share in shown)
    return TenantShare(
        None,
        sum(key.weight for key in keys),
        max(0, stats.delivered - sum(share.delivered for share in shown)),
        sum(key.pending for key in keys),
        sum(share.actual for share in others),
        max(0.0, 1 - due) if due else 0.0,
        sum(share.delivered_per_s for share in others),
    )


def _share(name: str | None, keys: Sequence[KeyStats], delivered: int, weights: int) -> TenantShare:
    own_weight = sum(key.weight for key in keys)
    own = sum(key.delivered for key in keys)
    return TenantShare(name, own_weight, own, sum(key.pending for key in keys), own / delivered, own_weight / weights)


DEAD_LETTERS = ".dlq"
NOT_ASKED = "no dashboard was asked"


def source_queue(queue: str) -> str:
    """Return the queue of a report: a dead letter queue's name stands for its queue."""
    return queue.removesuffix(DEAD_LETTERS)


def gather(spark: SparkSession, queue: str, client: Client, remembered: HalfHour | str = NOT_ASKED) -> QueueReport:
    """Count everything as of now. ``remembered``: the last half hour, or why it is missing. Raises :class:`PipelineError`."""
    queue = source_queue(queue)
    stats = client.queue_stats(queue)
    letters = queue + DEAD_LETTERS if _exists(client, queue + DEAD_LETTERS) else None
    now = datetime.now(UTC)
    with plain_errors():
        failures = failures_of(_browsed(spark, letters, client.endpoint, DEAD_LETTER_SCHEMA)) if letters else NONE
        waiting = waiting_in(_browsed(spark, queue, client.endpoint), now) if stats.pending else []
    report = QueueReport(queue, letters, now.replace(microsecond=0), _totals(stats), failures, waiting, shares_of(stats))
    return replace(report, no_history=remembered) if isinstance(remembered, str) else _with_history(report, stats, remembered)


def _with_history(report: QueueReport, stats: QueueStats, half_hour: HalfHour) -> QueueReport:
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
