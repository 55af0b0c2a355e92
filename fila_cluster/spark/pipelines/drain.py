"""A queue into files: the columns of the files, the batches, and the leftovers of a drain that was killed.

Spark's file sink lists the files of its output in ``_spark_metadata``, and Spark reads no others. Other readers take every
file they find, so the leftovers of an attempt would be rows twice. A name in the sink's own pattern that is not in its log
can only be a leftover, since a drain writes to a directory of its own. Left out: outputs that are not on this machine's file
system.
"""

import json
import re
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import unquote, urlsplit

from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812 # its usual name
from pyspark.sql.streaming.query import StreamingQuery

from fila_cluster import Client
from fila_cluster.client.calls.reservations import Reservations
from fila_cluster.client.forwarding import CommandsAhead
from fila_cluster.errors import FilaError, QueueNotFoundError
from fila_cluster.spark.options import COUNT_MAX
from fila_cluster.spark.pipelines.session import PipelineError, plain_errors
from fila_cluster.spark.planner import Offset, SupportsTriggerAvailableNow
from fila_cluster.spark.pushdown import Selection, meant

_LOG = "_spark_metadata"
_BATCH = re.compile(r"\d+(\.compact)?")
_WRITTEN = re.compile(r"part-\d{5}-[0-9a-f-]{36}[.-].*")


def remove_leftovers(output: str) -> int:
    """Remove leftovers from a local directory in which no drain is writing; return how many there were."""
    folder = Path(output)
    if "://" in output or not (folder / _LOG).is_dir():
        return 0
    logged = set(_logged_names(folder / _LOG))
    strangers = [file for file in folder.rglob("part-*") if _WRITTEN.fullmatch(file.name) and file.name not in logged]
    for file in strangers:
        file.unlink()
        file.with_name(f".{file.name}.crc").unlink(missing_ok=True)
    return len(strangers)


def _logged_names(log: Path) -> Iterator[str]:
    """Yield the names in a log: a line with the version, then one JSON object for each file that was written."""
    for batch in log.iterdir():
        if _BATCH.fullmatch(batch.name):
            for line in batch.read_text().splitlines()[1:]:
                yield Path(unquote(urlsplit(json.loads(line)["path"]).path)).name


_NESTED = ("throttle_keys", "headers")


def shaped(rows: DataFrame, format_name: str, partition_by: Sequence[str] = ()) -> DataFrame:
    """Return the columns for files of this format; :class:`PipelineError` if they can't be partitioned like that."""
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
    """Return the payload, if it is UTF-8."""
    return F.try_validate_utf8(F.col("payload").cast("string"))


ROWS_PER_BATCH = 100_000
"""A batch costs the file sink and the checkpoint half a second, whatever its size."""
RESERVATION_TIMEOUT = "10m"
"""How long a batch waits for a killed drain to run again. Later, its messages are delivered to others, and written ones that
were not acknowledged come a second time."""
LOOK_EVERY_S = 1
ACKNOWLEDGE_FOR_S = 60.0
"""Longer than a killed worker takes to come back."""
CHECKPOINT_NAME = "_checkpoint"
"""In the output directory: readers ignore names with an underscore in front."""

RUNS_TO_THE_END = SupportsTriggerAvailableNow.__module__.startswith("pyspark")
"""Before PySpark 4.2 a run that ends by itself is a single batch, so a drain starts several runs."""
_ENDINGS = {"parquet": ".parquet", "json": ".json", "csv": ".csv", "text": ".txt"}


@dataclass(frozen=True, slots=True)
class DrainJob:
    """The input and the output. ``queue`` may be a pattern; ``limit``: rows at most."""

    queue: str
    to: str
    format: str = "parquet"
    partition_by: tuple[str, ...] = ()
    limit: int | None = None
    rows_per_batch: int = ROWS_PER_BATCH
    checkpoint: str | None = None

    @property
    def checkpoint_path(self) -> str:
        """The directory of Spark's checkpoint."""
        return self.checkpoint or f"{self.to.rstrip('/')}/{CHECKPOINT_NAME}"


@dataclass(frozen=True, slots=True)
class Drained:
    """The result. ``rows`` are those of this run; ``batches`` as Spark made them."""

    rows: int
    batches: int
    seconds: float

    @property
    def rows_per_second(self) -> float:
        """The rate of rows."""
        return self.rows / self.seconds if self.seconds else 0.0


Look = Callable[[int], None]
"""Called now and then with the rows written so far."""


def drain(spark: SparkSession, plan: DrainJob, client: Client, look: Look = lambda _: None) -> Drained:
    """Run a drain; ``client`` is of the broker to drain. Raises :class:`PipelineError`."""
    check_output(plan)
    began = time.monotonic()
    wanted = min(plan.limit or COUNT_MAX, waiting(client, plan.queue))
    written: dict[int, int] = {}
    with plain_errors():
        while True:
            rows_before = sum(written.values())
            query = _start(spark, plan, client.endpoint, wanted - rows_before)
            _follow(query, written, look)
            _acknowledge_last(query)
            if RUNS_TO_THE_END or not rows_before < sum(written.values()) < wanted:
                break
    remove_leftovers(plan.to)
    batches = [rows for rows in written.values() if rows]
    return Drained(sum(batches), len(batches), time.monotonic() - began)


def waiting(client: Client, queue: str) -> int:
    """Return how many messages could be taken from the queues of a name or pattern. Raises :class:`QueueNotFoundError`."""
    found = meant(client, Selection.of(queue), to_drain=True)
    if not found:
        raise QueueNotFoundError(f"no queue {queue!r}: fila-cluster queue list shows those that there are")
    return sum(info.pending for info in found)


def check_output(plan: DrainJob) -> None:
    """Refuse a directory that has other files in it: their rows would be mixed."""
    folder = Path(plan.to)
    if "://" in plan.to or not folder.exists():
        return
    if not folder.is_dir():
        raise PipelineError(f"{plan.to} is a file: name a directory to write to")
    others = [entry.name for entry in folder.iterdir() if entry.name not in {CHECKPOINT_NAME, "_spark_metadata"}]
    if others and not (folder / "_spark_metadata").is_dir():
        raise PipelineError(
            f"{plan.to} has other things in it ({min(others)} …): name a new directory, or an earlier drain's"
        )
    mixed = next((file.name for file in folder.rglob("part-*") if not file.name.endswith(_ENDINGS[plan.format])), None)
    if mixed is not None:
        raise PipelineError(f"{plan.to} is not in {plan.format}, it has {mixed}: name another directory, or its --format")


def _start(spark: SparkSession, plan: DrainJob, endpoint: str, rows_left: int) -> StreamingQuery:
    rows = shaped(_stream(spark, plan, endpoint, rows_left), plan.format, plan.partition_by)
    writer = rows.writeStream.format(plan.format).outputMode("append").trigger(availableNow=True)
    if plan.partition_by:
        writer = writer.partitionBy(*plan.partition_by)
    if plan.format == "csv":
        writer = writer.option("header", "true")
    return writer.start(plan.to, checkpointLocation=plan.checkpoint_path)


def _stream(spark: SparkSession, plan: DrainJob, endpoint: str, rows_left: int) -> DataFrame:
    reader = spark.readStream.format("fila").options(endpoint=endpoint, queue=plan.queue)
    rows_per_batch = min(plan.rows_per_batch, plan.limit or COUNT_MAX)
    if not RUNS_TO_THE_END:
        rows_per_batch = min(rows_per_batch, max(1, rows_left))
    if plan.limit is not None:
        reader = reader.option("max_rows", str(plan.limit))
    return reader.options(max_rows_per_batch=str(rows_per_batch), reservation_timeout=RESERVATION_TIMEOUT).load()


def _follow(query: StreamingQuery, written: dict[int, int], look: Look) -> None:
    """Wait for the query's end, and note its rows by batch."""
    try:
        while not query.awaitTermination(LOOK_EVERY_S):
            _note(query, written)
            look(sum(written.values()))
    finally:
        if query.isActive:  # interrupted
            query.stop()
    _note(query, written)
    look(sum(written.values()))


def _acknowledge_last(query: StreamingQuery) -> None:
    """Acknowledge the last batch: Spark calls listeners at any time, and this process may be gone by then."""
    for source in query.lastProgress.sources if query.lastProgress else ():
        batch = Offset.parse(source.endOffset)
        if batch is not None and batch.queues:
            _acknowledge(batch)


def _acknowledge(batch: Offset) -> None:
    give_up_at = time.monotonic() + ACKNOWLEDGE_FOR_S
    while True:
        try:
            with Client(batch.endpoint) as client:
                Reservations(CommandsAhead(client)).ack(batch.reservation, batch.queues)
                return
        except FilaError as error:
            if not error.retryable or time.monotonic() > give_up_at:
                raise PipelineError(
                    f"all is written, but the last batch could not be acknowledged: {error}; run the same command again"
                ) from error
        time.sleep(LOOK_EVERY_S)


def _note(query: StreamingQuery, written: dict[int, int]) -> None:
    for progress in query.recentProgress:  # the last hundred
        written[progress.batchId] = max(progress.numInputRows, written.get(progress.batchId, 0))
