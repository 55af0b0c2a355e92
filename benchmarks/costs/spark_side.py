"""The Spark side: sessions, writes, drains, and what they cost the JVM and the Python workers."""

import os
import sys
import tempfile
import time
from collections import deque
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress

import psutil
from pyspark.sql import DataFrame, Row, SparkSession

from fila_cluster.spark import enqueue_partition, register

SETTINGS: dict[str, bool | float | int | str | None] = {
    "spark.ui.enabled": "false",
    "spark.ui.showConsoleProgress": "false",
    "spark.driver.memory": "2g",
    "spark.sql.shuffle.partitions": "2",
}


@contextmanager
def session(processes: int) -> Iterator[SparkSession]:
    """Return a quiet local session with so many tasks at a time."""
    os.environ["PYSPARK_PYTHON"] = sys.executable
    spark = SparkSession.builder.master(f"local[{processes}]").config(map=SETTINGS).getOrCreate()
    spark.sparkContext.setLogLevel("OFF")
    register(spark)
    yield spark
    spark.stop()


def cpu_seconds() -> tuple[float, float]:
    """Return the CPU seconds so far of the JVM that this process started, and of its Python workers, also those that have
    ended."""
    jvm = python = 0.0
    for java in (child for child in psutil.Process().children() if child.name() == "java"):
        times = java.cpu_times()
        jvm += times.user + times.system
        python += times.children_user + times.children_system
        for child in java.children(recursive=True):
            with suppress(psutil.NoSuchProcess):  # it has just ended, and the JVM counts it from now on
                python += sum(child.cpu_times()[:4])
    return jvm, python


# --- the ways ---------------------------------------------------------------------------------------------------------


def written_s(frame: DataFrame, endpoint: str, queue: str) -> float:
    """Return the seconds that ``format("fila")`` takes."""
    start = time.perf_counter()
    frame.write.format("fila").mode("append").options(endpoint=endpoint, queue=queue).save()
    return time.perf_counter() - start


def sunk_s(frame: DataFrame, endpoint: str, queue: str) -> float:
    """Return the seconds that ``foreachPartition`` takes."""
    start = time.perf_counter()
    frame.foreachPartition(enqueue_partition(endpoint=endpoint, queue=queue, headers="headers", fairness_key="fairness_key"))
    return time.perf_counter() - start


def nowhere_s(frame: DataFrame) -> float:
    """Return the seconds that ``foreachPartition`` takes to hand out the rows."""
    start = time.perf_counter()

    def throw_away(rows: Iterable[Row]) -> None:  # in here, so that it is pickled whole: workers cannot import this module
        deque(rows, maxlen=0)

    frame.foreachPartition(throw_away)
    return time.perf_counter() - start


def drained_s(spark: SparkSession, endpoint: str, queue: str, rows_per_batch: int) -> float:
    """Return the seconds that a stream takes to read, drop and acknowledge all pending messages."""
    stream = spark.readStream.format("fila").options(endpoint=endpoint, queue=queue, max_rows_per_batch=rows_per_batch)
    with tempfile.TemporaryDirectory(prefix="fila-checkpoint-") as checkpoint:
        start = time.perf_counter()
        writer = stream.load().writeStream.format("noop").option("checkpointLocation", checkpoint)
        writer.trigger(availableNow=True).start().awaitTermination()
        return time.perf_counter() - start
