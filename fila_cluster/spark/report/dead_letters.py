"""Counts of dead letters, by Spark.

Errors carry numbers that are different each time ("timed out after 5003 ms"), so digits become ``#`` before errors are
counted. Time is when a message was given up. What is collected is bounded, however many tenants and errors there are: the most
frequent ones are found first, then counted by each other.
"""

from collections import defaultdict
from datetime import UTC, datetime
from typing import Any

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F  # noqa: N812 # as everybody calls it

from fila_cluster.spark.report.dwell import dwell_of
from fila_cluster.spark.report.figures import ERRORS_SHOWN, SERIES_SHOWN, TENANTS_SHOWN, Count, Failures

NO_ERROR = "(none given)"
OTHER = "other"
ERROR_LENGTH = 160
NONE = Failures(0, 0, [], [], [], [], 60, [])

_BUCKETS_S = (1, 10, 60, 300, 900, 3_600, 6 * 3_600, 86_400, 7 * 86_400, 30 * 86_400)
_BUCKETS_SHOWN = 60


def failures_of(letters: DataFrame) -> Failures:
    """What there is to say of dead letters, as the batch reader shows them, with ``dead_lettered_at``."""
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
    """The values with the most dead letters, and how many; ties by name."""
    rows = kinds.groupBy(column).count().orderBy(F.desc("count"), column).limit(shown).collect()
    return {row[column]: row["count"] for row in rows}


def _with_parts(
    kinds: DataFrame, column: str, counts: dict[str, int], part: str, parts: list[str], total: int
) -> list[Count]:
    """``counts`` split by what is in another column, and the rest of ``total`` as a last entry."""
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
    """Counts by two things; what is not in ``parts`` is counted as other."""
    told = F.when(F.col(part).isin(parts), F.col(part)).otherwise(OTHER)
    found: dict[Any, dict[str, int]] = defaultdict(dict)
    for row in kinds.groupBy(by.alias("by"), told.alias("part")).count().orderBy("part").collect():
        found[row["by"]][row["part"]] = row["count"]
    return found


def _bucket_s(span_s: int) -> int:
    """The finest step that cuts a span into no more bars than a plot has room for."""
    return next((step for step in _BUCKETS_S if span_s / step < _BUCKETS_SHOWN), _BUCKETS_S[-1])
