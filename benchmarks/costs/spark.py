"""Measure how fast Spark fills and drains a queue, beside plain Python programs in as many processes.

All ways run in turn on one cluster with two workers, each with a queue of its own, so that other work on the machine affects
all of them alike. A row is a payload, two headers and a fairness key, in an uncompressed Parquet file, one for each process.
Spark reads the files and writes them with ``format("fila")``; the plain programs read them with pyarrow and pass ``Message``s
to ``enqueue_many``, once as most applications do, and once with a dedup id each, as Spark's tasks do. The start of processes
and of Spark does not count, planning does. Spark's own ``foreachPartition`` pickles each row: its rate with rows that it
drops is the upper bound of any sink. On the way out a stream reads all pending messages, drops them, and acknowledges them;
the plain clients receive and acknowledge 500 at a time. The goal is at least 70 % of the plain clients' rate, for the writer.
"""

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple, TypeAlias

import pyarrow as pa
from pyarrow.parquet import ParquetWriter
from pyspark.sql import SparkSession

from benchmarks.costs import plain_side, spark_side
from benchmarks.costs.plain_side import timed
from benchmarks.harness.cluster import OneCluster
from benchmarks.harness.fila import Fila, blocking_client
from benchmarks.harness.report.spread import ratios, spread
from benchmarks.harness.workload import Benchmark, Run, number
from fila_cluster import Client

TENANTS = 100
SHARE_MIN = 0.7
ROWS_AT_ONCE = 10_000
SCHEMA = pa.schema([("payload", pa.binary()), ("headers", pa.map_(pa.string(), pa.string())), ("fairness_key", pa.string())])
QUEUE = "measured"
PLAIN, WITH_IDS = "plain clients", "plain clients, dedup ids"
WRITER, SINK, NOWHERE = 'format("fila")', "enqueue_partition", "foreachPartition to nowhere"
STREAM = "readStream"


@dataclass(frozen=True)
class Scale:
    """The numbers of this benchmark."""

    rows: int = number("Rows.")
    rounds: int = number("Rounds.")
    payload: int = number("Bytes of a payload.", 1024)
    processes: int = number("Processes.", 2)


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
    endpoint = on.cluster.address
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
    endpoint = on.cluster.address
    return {
        PLAIN: lambda: timed(plain_side.drain, endpoint, on.files, QUEUE),
        STREAM: lambda: (spark_side.drained_s(on.spark, endpoint, QUEUE, max(1000, on.rows // 10)), 0.0),
    }


def measure_in(run: Run[Scale], on: Measured) -> dict[str, list[Taken]]:
    """Return what each way in took, by round."""
    results: dict[str, list[Taken]] = {}
    ways = ways_in(on)
    for way in run.rounds(run.scale.rounds, ways, "in"):
        with a_queue(on.client):
            results.setdefault(way, []).append(taken(on, ways[way]))
            assert on.client.queue_stats(QUEUE).pending == (0 if way == NOWHERE else on.rows)
    return results


def measure_out(run: Run[Scale], on: Measured) -> dict[str, list[Taken]]:
    """Return what each way out took, by round."""
    results: dict[str, list[Taken]] = {}
    ways = ways_out(on)
    for way in run.rounds(run.scale.rounds, ways, "out"):
        with a_queue(on.client):
            timed(plain_side.load, on.cluster.address, on.files, QUEUE, False)
            results.setdefault(way, []).append(taken(on, ways[way]))
            stats = on.client.queue_stats(QUEUE)
            assert (stats.pending, stats.in_flight) == (0, 0)
    return results


@contextmanager
def a_queue(client: Client) -> Iterator[None]:
    """Make the queue that is measured, for the length of a ``with`` block."""
    client.create_queue(QUEUE)
    yield
    client.delete_queue(QUEUE, force=True)


def taken(on: Measured, way: Way) -> Taken:
    """Run a way once, and measure its cost."""
    broker_s, (jvm_s, workers_s) = sum(on.cluster.cpu_seconds().values()), spark_side.cpu_seconds()
    elapsed_s, plain_cpu_s = way()
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
        spark_side.written_s(few, on.cluster.address, QUEUE)
        spark_side.sunk_s(few, on.cluster.address, QUEUE)
        spark_side.drained_s(on.spark, on.cluster.address, QUEUE, 1000)


# --- the verdict ------------------------------------------------------------------------------------------------------


def measure(run: Run[Scale]) -> None:
    """Measure the ways in and the ways out, and judge."""
    scale = run.scale
    rows = scale.rows // scale.processes * scale.processes
    with run.directory() as directory, spark_side.session(scale.processes) as spark:
        files = write_files(directory, rows, scale.payload, scale.processes)
        with run.serving(Fila(workers=2)) as cluster, blocking_client(cluster.address) as client:
            on = Measured(cluster, client, spark, files, rows)
            warm_up(on)
            filled, drained = measure_in(run, on), measure_out(run, on)
    report(run, "in", filled)
    report(run, "out", drained)
    run.note(f"After each way in the broker had {rows:,} messages, after each way out none.")
    reached = spread(run.values("Share of the rate of plain clients", f"in: {WRITER}", "share")).median
    run.promise(f"{WRITER} reaches {reached:.0%} of plain clients, at least {SHARE_MIN:.0%}", reached >= SHARE_MIN)


def report(run: Run[Scale], direction: str, results: dict[str, list[Taken]]) -> None:
    """Add the tables of one direction."""
    plain = [each.rate for each in results[PLAIN]]
    for way, taken_ in results.items():
        row = f"{direction}: {way}"
        run.figure("Rows a second", row, "rate", "/s", *(each.rate for each in taken_))
        for column, values in (
            ("broker", [each.broker_us for each in taken_]),
            ("JVM", [each.jvm_us for each in taken_]),
            ("Python", [each.python_us for each in taken_]),
        ):
            run.figure("CPU time for a row", row, column, "µs", *values)
        shares = ratios([each.rate for each in taken_], plain)
        run.figure("Share of the rate of plain clients", row, "share", "", *shares)


BENCHMARK = Benchmark("spark", measure, Scale(2_000, 1), Scale(100_000, 3), Scale(1_000_000, 3))
