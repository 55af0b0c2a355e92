"""A program for tests to kill: streams a queue into Parquet, a directory for each batch, until it is killed or the queue is empty.

``python -m tests.spark.stream_job ENDPOINT QUEUE DIRECTORY MASTER``. Writing a batch again overwrites it: idempotent by batch id.
"""

import os
import sys
import warnings
from pathlib import Path

from pyspark.sql import DataFrame, SparkSession

from fila_cluster.spark import register
from tests.spark.conftest import CONFIG

ROWS_PER_BATCH = 200


def main(endpoint: str, queue: str, directory: str, master: str) -> None:
    """Stream until nothing is left."""
    os.environ["PYSPARK_PYTHON"] = sys.executable
    builder = SparkSession.builder.master(master).config("spark.executor.memory", "512m")
    for name, value in CONFIG.items():
        builder = builder.config(name, value)
    spark = builder.getOrCreate()
    spark.sparkContext.setLogLevel("OFF")
    register(spark)
    stream = spark.readStream.format("fila").option("endpoint", endpoint).option("queue", queue)
    rows = stream.option("max_rows_per_batch", ROWS_PER_BATCH).load()

    def write(batch: DataFrame, number: int) -> None:
        batch.select("id", "payload", "fairness_key").write.mode("overwrite").parquet(
            str(Path(directory) / f"batch-{number:06}")
        )

    query = rows.writeStream.foreachBatch(write).option("checkpointLocation", str(Path(directory) / "checkpoint"))
    query.trigger(availableNow=True).start().awaitTermination()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ResourceWarning)
        spark.stop()


if __name__ == "__main__":
    main(*sys.argv[1:])
