"""Move ten thousand requests of a real web site through Spark: a text file into a queue, the queue as a stream, the stream
into Parquet.

    make up                                    # in one terminal: the broker
    .venv/bin/python examples/spark_access_log.py PATH/TO/apache_access.log DIRECTORY [--picture shares.png]

Spark reads an access log (Apache's combined format) and writes each line as a message, its client address as the fairness
key. A streaming query takes them out again, in fair shares, into Parquet, with a directory for each micro-batch. Then the
program counts whether every line is there once, and draws the shares that the busiest tenants had of the first batch. Needs
Java 17 and ``pip install 'fila-cluster[spark]'``.
"""

import argparse
import os
import sys
from collections import Counter
from pathlib import Path

from pyspark.sql import DataFrame, Row, SparkSession
from pyspark.sql import functions as f

from fila_cluster import Client
from fila_cluster.errors import FilaError
from fila_cluster.spark import register

ADDRESS = r"^(\S+)"
SHOWN = 10


def session() -> SparkSession:
    """Return a Spark session on all cores of this machine with ``format("fila")``."""
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    builder = SparkSession.builder.master("local[*]").config("spark.ui.enabled", "false")
    spark = builder.config("spark.sql.shuffle.partitions", "4").getOrCreate()
    spark.sparkContext.setLogLevel("ERROR")
    register(spark)
    return spark


def load(spark: SparkSession, log: Path, endpoint: str, queue: str) -> None:
    """Write each line of a text file as a message, with its client address as the fairness key."""
    lines = spark.read.text(str(log)).withColumnRenamed("value", "payload")
    lines = lines.withColumn("fairness_key", f.regexp_extract("payload", ADDRESS, 1))
    lines.write.format("fila").mode("append").option("endpoint", endpoint).option("queue", queue).save()


def drain(spark: SparkSession, endpoint: str, queue: str, rows: int, directory: Path) -> None:
    """Write all messages of a queue in micro-batches. A batch that is repeated after a crash replaces what it wrote
    before."""
    stream = spark.readStream.format("fila").option("endpoint", endpoint).option("queue", queue)
    messages = stream.option("max_rows_per_batch", rows).load().withColumn("line", f.decode("payload", "UTF-8"))

    def write(batch: DataFrame, number: int) -> None:
        batch.select("id", "fairness_key", "line").write.mode("overwrite").parquet(str(directory / f"batch={number}"))

    query = messages.writeStream.foreachBatch(write).option("checkpointLocation", str(directory / "_checkpoint"))
    query.trigger(availableNow=True).start().awaitTermination()


def written(spark: SparkSession, directory: Path) -> tuple[list[Row], dict[str, int]]:
    """Return the rows in Parquet with their batches, and their number for each tenant, as Spark counts it."""
    rows = spark.read.parquet(str(directory)).select("batch", "fairness_key", "line")
    return rows.collect(), {row["fairness_key"]: row["count"] for row in rows.groupBy("fairness_key").count().collect()}


def picture(path: Path, arrived: Counter[str], first: Counter[str], served: Counter[str]) -> None:
    """Draw the busiest tenants' shares of the first batch: in the order of arrival, and as it was served."""
    from matplotlib.figure import Figure  # noqa: PLC0415 - needed for --picture only

    busiest = [tenant for tenant, _ in arrived.most_common(SHOWN)]
    figure = Figure(figsize=(9, 5), layout="constrained")
    axes = figure.subplots()
    places = range(len(busiest))
    for counts, label, color, shift in (
        (first, "in the order of arrival", "#c2703d", -0.2),
        (served, "as fila-cluster served them", "#2f6f8f", 0.2),
    ):
        total = counts.total()
        bars = axes.barh(
            [place + shift for place in places], [100 * counts[each] / total for each in busiest], 0.38, label=label
        )
        for bar in bars:
            bar.set_color(color)
        axes.bar_label(bars, [f"{100 * counts[each] / total:.1f} %" for each in busiest], padding=3, fontsize=8)
    axes.set_yticks(list(places), [f"{tenant}\n{arrived[tenant]:,} requests" for tenant in busiest], fontsize=8)
    axes.invert_yaxis()
    axes.set_xlabel(f"share of the first {served.total():,} of {arrived.total():,} messages, %")
    axes.set_title(
        f"{len(first):,} tenants in the first batch in order of arrival, {len(served):,} in fair order", loc="left"
    )
    axes.spines[["top", "right"]].set_visible(False)
    axes.legend(frameon=False, loc="lower right")
    figure.savefig(path, dpi=150)


def main() -> int:
    """Run the example against a running broker."""
    parser = argparse.ArgumentParser(description="An access log through Spark, a queue and Spark again")
    parser.add_argument("log", type=Path, help="an access log in Apache's combined format")
    parser.add_argument("directory", type=Path, help="where the Parquet files go: must not exist yet")
    parser.add_argument("--endpoint", default=os.environ.get("FILA_ENDPOINT", "tcp://127.0.0.1:5555"))
    parser.add_argument("--queue", default="spark-access-log")
    parser.add_argument("--picture", type=Path, help="draw the shares of the first batch into this file")
    arguments = parser.parse_args()
    try:
        lines = arguments.log.read_text(errors="replace").splitlines()
        arguments.directory.mkdir(parents=True)
        with Client(arguments.endpoint) as client:
            client.create_queue(arguments.queue)
    except (FilaError, OSError) as error:
        print(f"spark_access_log: {error}", file=sys.stderr)
        return 1
    tenants = [line.split(" ", 1)[0] for line in lines]
    with session() as spark:
        load(spark, arguments.log, arguments.endpoint, arguments.queue)
        drain(spark, arguments.endpoint, arguments.queue, len(set(tenants)), arguments.directory)
        rows, grouped = written(spark, arguments.directory)
    first = Counter(row["fairness_key"] for row in rows if row["batch"] == 0)
    once = Counter(row["line"] for row in rows) == Counter(lines)
    equal = grouped == Counter(tenants)
    print(f"{len(rows):,} of {len(lines):,} lines in Parquet, {'every one once' if once else 'NOT EVERY ONE ONCE'}")
    print(f"{len(grouped):,} tenants, their counts {'equal' if equal else 'DIFFER FROM'} a plain count")
    print(f"the first batch: {first.total():,} messages of {len(first):,} tenants")
    if arguments.picture:
        picture(arguments.picture, Counter(tenants), Counter(tenants[: first.total()]), first)
    return 0 if once and equal else 1


if __name__ == "__main__":
    sys.exit(main())
