"""A program that has Spark load what tests use of it: ``python -m tests.support.external.spark_classes DIRECTORY``."""

import sys
import warnings
from collections.abc import Iterator
from pathlib import Path

from pyspark.sql import DataFrame, Row, SparkSession
from pyspark.sql.datasource import DataSource, DataSourceReader, DataSourceWriter, InputPartition, WriterCommitMessage

SCHEMA = "payload string, tenant string"


class Rows(DataSource, DataSourceReader, DataSourceWriter):
    """A source in Python, as ours is."""

    @classmethod
    def name(cls) -> str:
        return "rows"

    def schema(self) -> str:
        return SCHEMA

    def reader(self, schema: object) -> DataSourceReader:
        return self

    def writer(self, schema: object, overwrite: bool) -> DataSourceWriter:
        return self

    def read(self, partition: InputPartition) -> Iterator[tuple[str, str]]:
        yield "payload", "tenant"

    def write(self, iterator: Iterator[Row]) -> WriterCommitMessage:
        for _ in iterator:
            pass
        return WriterCommitMessage()


def main(directory: str) -> None:
    """Read and write files, run Python in tasks, and stream."""
    builder = SparkSession.builder.master("local[2]").config("spark.ui.enabled", "false")
    builder = builder.config("spark.driver.host", "127.0.0.1").config("spark.driver.bindAddress", "127.0.0.1")
    spark = builder.config("spark.sql.shuffle.partitions", "2").getOrCreate()
    spark.sparkContext.setLogLevel("OFF")
    spark.dataSource.register(Rows)
    source, copy, checkpoint = (str(Path(directory) / name) for name in ("source", "copy", "checkpoint"))
    rows = spark.range(0, 100, 1, 2).selectExpr("cast(id as string) payload", "concat('t', id % 3) tenant")
    rows.write.parquet(source)
    rows.write.json(f"{source}.json")
    rows.groupBy("tenant").count().orderBy("tenant").collect()
    spark.createDataFrame(rows.rdd.mapPartitions(list), rows.schema).collect()
    spark.read.text(f"{source}.json").count()
    spark.read.json(f"{source}.json").filter("tenant = 't1'").collect()
    spark.read.format("rows").load().write.format("rows").mode("append").save()

    def write(batch: DataFrame, number: int) -> None:
        batch.write.mode("overwrite").parquet(f"{copy}-{number}")

    stream = spark.readStream.schema(SCHEMA).parquet(source).writeStream.foreachBatch(write)
    stream.option("checkpointLocation", checkpoint).trigger(availableNow=True).start().awaitTermination()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ResourceWarning)  # py4j leaves its sockets to the garbage collector
        spark.stop()


if __name__ == "__main__":
    main(*sys.argv[1:])
