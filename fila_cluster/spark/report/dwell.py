"""How long messages have been in a queue, as percentiles by tenant, by Spark.

One scan gives all tenants' and the whole queue's. Percentiles are Spark's approximate ones, right to a ten-thousandth of the
rank.
"""

from datetime import datetime

from pyspark.sql import DataFrame, Row
from pyspark.sql import functions as F  # noqa: N812 # as everybody calls it

from fila_cluster.spark.report.figures import TENANTS_SHOWN, Dwell

_PERCENTILES = [0.5, 0.9, 0.99]


def waiting_in(messages: DataFrame, now: datetime) -> list[Dwell]:
    """What is pending: now − enqueued_at."""
    waited_s = F.greatest(F.lit(0.0), F.lit(now.timestamp()) - F.unix_micros("enqueued_at") / 1e6)
    return dwell_of(messages.where("state = 'pending'").select("fairness_key", waited_s.alias("waited_s")))


def dwell_of(waited: DataFrame) -> list[Dwell]:
    """Of ``fairness_key`` and ``waited_s``: all together first, then the tenants with the longest waits. Empty if there are none."""
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
