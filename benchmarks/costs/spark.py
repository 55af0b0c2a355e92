"""Measure how fast Spark fills and drains a queue, beside plain Python programs in as many processes.

    python benchmarks/spark_rows.py [--rows 1000000] [--payload 1024] [--processes 2] [--rounds 3]

All ways run in turn on one cluster with two workers, each with a queue of its own, so that other work on the machine affects all of them
alike. A row is a payload, two headers and a fairness key, in an uncompressed Parquet file, one for each process. Spark reads the files and
writes them with ``format("fila")``; the plain programs read them with pyarrow and pass ``Message``s to ``enqueue_many``, once as most
applications do, and once with a dedup id each, as Spark's tasks do. The start of processes and of Spark does not count, planning does.
Spark's own ``foreachPartition`` pickles each row: its rate with rows that it drops is the upper bound of any sink. On the way out a stream
reads all pending messages, drops them, and acknowledges them; the plain clients receive and acknowledge 500 at a time. The goal is at
least 70 % of the plain clients' rate, for the writer.
"""

import argparse
import os
import statistics
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import NamedTuple, TypeAlias

import plain_side
import pyarrow as pa
import spark_side
from cluster import OneCluster
from plain_side import timed
from pyarrow.parquet import ParquetWriter
from pyspark.sql import SparkSession
from rich.console import Console
from rich.progress import track
from rich.table import Table

from fila_cluster import Client

TENANTS = 100
SHARE_MIN = 0.7
ROWS_AT_ONCE = 10_000
SCHEMA = pa.schema([("payload", pa.binary()), ("headers", pa.map_(pa.string(), pa.string())), ("fairness_key", pa.string())])
QUEUE = "measured"
PLAIN, WITH_IDS = "plain clients", "plain clients, dedup ids"
WRITER, SINK, NOWHERE = 'format("fila")', "enqueue_partition", "foreachPartition to nowhere"
STREAM = "readStream"


class Taken(NamedTuple):
    """One round: rows a second, and CPU µs a row of broker, JVM and Python."""

    rate: float
    broker_us: float
    jvm_us: float
    python_us: float


Way: TypeAlias = Callable[[], tuple[float, float]]
"""A way to move all rows. Returns the seconds, and the CPU seconds of plain clients."""


class Measured(NamedTuple):
    """The set-up: a broker, a Spark session, the rows."""

    cluster: OneCluster
    client: Client
    spark: SparkSession
    files: list[Path]
    rows: int
    rounds: int


# --- rows -------------------------------------------------------------------------------------------------------------


def write_files(directory: Path, rows: int, payload_bytes: int, count: int) -> list[Path]:
    """Write rows that all differ into so many files."""
    noise = os.urandom(payload_bytes - 16)
    files = [directory / f"rows-{number}.parquet" for number in range(count)]
    for path in files:
        with ParquetWriter(path, SCHEMA, compression="none", use_dictionary=["fairness_key"]) as writer:
            for start in range(0, rows // count, ROWS_AT_ONCE):
                numbers = range(start, min(start + ROWS_AT_ONCE, rows // count))
                writer.write_batch(_batch(numbers, noise), row_group_size=ROWS_AT_ONCE)
    return files


def _batch(numbers: range, noise: bytes) -> pa.RecordBatch:
    tenants = [f"tenant-{number % TENANTS}" for number in numbers]
    payloads = [b"%016d" % number + noise for number in numbers]
    headers = [[("tenant", tenant), ("kind", "order.created")] for tenant in tenants]
    return pa.record_batch([payloads, pa.array(headers, SCHEMA.field("headers").type), tenants], schema=SCHEMA)


# --- measuring --------------------------------------------------------------------------------------------------------


def ways_in(on: Measured) -> dict[str, Way]:
    """Return the ways to fill the queue."""
    endpoint = on.cluster.endpoint
    frame = on.spark.read.parquet(*map(str, on.files))
    return {
        PLAIN: lambda: timed(plain_side.load, endpoint, on.files, QUEUE, False),
        WITH_IDS: lambda: timed(plain_side.load, endpoint, on.files, QUEUE, True),
        WRITER: lambda: (spark_side.written_s(frame, endpoint, QUEUE), 0.0),
        SINK: lambda: (spark_side.sunk_s(frame, endpoint, QUEUE), 0.0),
        NOWHERE: lambda: (spark_side.nowhere_s(frame), 0.0),
    }


def ways_out(on: Measured) -> dict[str, Way]:
    """Return the ways to empty the queue."""
    endpoint = on.cluster.endpoint
    return {
        PLAIN: lambda: timed(plain_side.drain, endpoint, on.files, QUEUE),
        STREAM: lambda: (spark_side.drained_s(on.spark, endpoint, QUEUE, max(1000, on.rows // 10)), 0.0),
    }


def measure_in(on: Measured, console: Console) -> dict[str, list[Taken]]:
    """Return what each way in took, by round."""
    results: dict[str, list[Taken]] = {}
    for way, run in in_turns(ways_in(on), on.rounds, "in", console):
        with a_queue(on.client):
            results.setdefault(way, []).append(taken(on, run))
            assert on.client.queue_stats(QUEUE).pending == (0 if way == NOWHERE else on.rows)
    return results


def measure_out(on: Measured, console: Console) -> dict[str, list[Taken]]:
    """Return what each way out took, by round."""
    results: dict[str, list[Taken]] = {}
    for way, run in in_turns(ways_out(on), on.rounds, "out", console):
        with a_queue(on.client):
            timed(plain_side.load, on.cluster.endpoint, on.files, QUEUE, False)
            results.setdefault(way, []).append(taken(on, run))
            stats = on.client.queue_stats(QUEUE)
            assert (stats.pending, stats.in_flight) == (0, 0)
    return results


def in_turns(ways: dict[str, Way], rounds: int, title: str, console: Console) -> Iterator[tuple[str, Way]]:
    """Run all ways, so many times."""
    for _ in track(range(rounds), title, console=console, transient=True):
        yield from ways.items()


class a_queue:  # noqa: N801 - it reads as words
    """Make the queue that is measured, for the length of a ``with`` block."""

    def __init__(self, client: Client) -> None:
        self._client = client

    def __enter__(self) -> None:
        self._client.create_queue(QUEUE)

    def __exit__(self, *error: object) -> None:
        self._client.delete_queue(QUEUE, force=True)


def taken(on: Measured, run: Way) -> Taken:
    """Run a way once, and measure its cost."""
    broker_s, (jvm_s, workers_s) = sum(on.cluster.cpu_seconds().values()), spark_side.cpu_seconds()
    elapsed_s, plain_cpu_s = run()
    jvm_after_s, workers_after_s = spark_side.cpu_seconds()
    costs_s = (
        sum(on.cluster.cpu_seconds().values()) - broker_s,
        jvm_after_s - jvm_s,
        plain_cpu_s + workers_after_s - workers_s,
    )
    return Taken(on.rows / elapsed_s, *(cost_s * 1e6 / on.rows for cost_s in costs_s))


def warm_up(on: Measured) -> None:
    """Let Spark start its workers and load what it needs."""
    few = on.spark.read.parquet(str(on.files[0])).limit(1000)
    with a_queue(on.client):
        spark_side.written_s(few, on.cluster.endpoint, QUEUE)
        spark_side.sunk_s(few, on.cluster.endpoint, QUEUE)
        spark_side.drained_s(on.spark, on.cluster.endpoint, QUEUE, 1000)


# --- the verdict ------------------------------------------------------------------------------------------------------


def shares(results: dict[str, list[Taken]], way: str) -> float:
    """Return a way's median share of the plain clients' rate in the same round."""
    return statistics.median(one.rate / plain.rate for one, plain in zip(results[way], results[PLAIN], strict=True))


def table(title: str, results: dict[str, list[Taken]]) -> Table:
    """Return medians over the rounds."""
    shown = Table("", "rows a second", "min … max", "broker", "JVM", "Python", "of plain", title=title)
    for way, rounds in results.items():
        rate, *costs_us = (statistics.median(values) for values in zip(*rounds, strict=True))
        span = f"{min(one.rate for one in rounds):,.0f} … {max(one.rate for one in rounds):,.0f}"
        shown.add_row(way, f"{rate:,.0f}/s", span, *(f"{cost:.1f} µs" for cost in costs_us), f"{shares(results, way):.0%}")
    return shown


def main() -> None:
    """Measure and judge."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rows", type=int, default=1_000_000)
    parser.add_argument("--payload", type=int, default=1024, help="bytes")
    parser.add_argument("--processes", type=int, default=2)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--only", choices=("in", "out"))
    arguments = parser.parse_args()
    console = Console(width=max(120, Console().width))
    with tempfile.TemporaryDirectory(prefix="fila-spark-") as directory:
        filled, drained = measure(Path(directory), arguments, console)
    title = f"{arguments.rows:,} rows of {arguments.payload} B, {arguments.processes} processes, {arguments.rounds} rounds"
    if drained:
        console.print(table(f"out: {title}; CPU a row", drained))
        console.print(f"{STREAM} reaches {shares(drained, STREAM):.0%} of plain clients")
    if filled:
        console.print(table(f"in: {title}; CPU a row", filled))
        reached = shares(filled, WRITER)
        console.print(f"{WRITER} reaches {reached:.0%} of plain clients (at least {SHARE_MIN:.0%})")
        raise SystemExit(0 if reached >= SHARE_MIN else 1)


def measure(
    directory: Path, arguments: argparse.Namespace, console: Console
) -> tuple[dict[str, list[Taken]], dict[str, list[Taken]]]:
    """Measure the ways in and the ways out."""
    rows = arguments.rows // arguments.processes * arguments.processes
    files = write_files(directory, rows, arguments.payload, arguments.processes)
    with OneCluster(directory / "data", workers=2) as cluster, spark_side.session(arguments.processes) as spark:
        with Client(cluster.endpoint, timeout=60) as client:
            on = Measured(cluster, client, spark, files, rows, arguments.rounds)
            warm_up(on)
            filled = {} if arguments.only == "out" else measure_in(on, console)
            return filled, {} if arguments.only == "in" else measure_out(on, console)


if __name__ == "__main__":
    main()
