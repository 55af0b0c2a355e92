"""Messages as rows of files: what each format can hold.

Parquet holds the reader's columns as they are. JSON and CSV have no bytes: a payload that is UTF-8 is text in ``payload``, any
other is in ``payload_base64``, as ``fila-cluster consume`` prints them. CSV has no lists and maps either: they are JSON in a
text. A text file has payloads only, a line each.
"""

from collections.abc import Sequence

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F  # noqa: N812 # as everybody calls it

from fila_cluster.spark.pipelines.failure import PipelineError

_NESTED = ("throttle_keys", "headers")


def shaped(rows: DataFrame, format_name: str, partition_by: Sequence[str] = ()) -> DataFrame:
    """The columns for files of this format; :class:`PipelineError` if they can't be partitioned like that."""
    for name in partition_by:
        if name not in rows.columns or name in (*_NESTED, "payload"):
            known = [column for column in rows.columns if column not in (*_NESTED, "payload")]
            raise PipelineError(f"--partition-by {name}: files can be partitioned by {', '.join(known)}")
    if format_name == "text":
        return rows.select(F.col("payload").cast("string").alias("value"), *partition_by)
    if format_name in {"json", "csv"}:
        columns = {"payload": _text(), "payload_base64": F.when(_text().isNull(), F.base64("payload"))}
        if format_name == "csv":
            columns |= {name: F.to_json(name) for name in _NESTED}
        return rows.withColumns(columns)
    return rows


def _text() -> Column:
    """The payload, if it is UTF-8."""
    return F.try_validate_utf8(F.col("payload").cast("string"))
