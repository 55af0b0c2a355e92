"""Files into a queue: their formats, by the files' names, the columns of messages, the job, and its progress.

Names are checked before Spark starts, so that a mistyped path does not cost five seconds. A path that is not on this machine
(``s3a://…``) is for Spark to find; its format is in its name, or has to be given.

A file's columns have the types of its format: everything in CSV is text, JSON has no binary. So each is cast to the type
of the writer; a value that can't be cast fails the job with the value in the error. Lists in a text column are separated by
commas. A whole row as payload is JSON with all its columns, nulls included, in the order of the file.
"""

import re
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from glob import glob, has_magic
from pathlib import Path, PurePosixPath
from threading import Event, Thread

from pyspark.sql import Column, DataFrame, Observation, SparkSession
from pyspark.sql import functions as F  # noqa: N812 # its usual name
from pyspark.sql.types import ArrayType, BinaryType, DataType, MapType, StringType, StructType

from fila_cluster import Client
from fila_cluster.errors import FilaError
from fila_cluster.spark.columns import OPTIONS
from fila_cluster.spark.pipelines.session import PipelineError, plain_errors

WHOLE_ROW = "*"
_TEXTS = ArrayType(StringType())
_TEXT_MAP = MapType(StringType(), StringType())

_OF_KIND: Mapping[str, DataType | str] = {"count": "int", "duration": "bigint", "number": "double", "texts": _TEXTS}
OPTION_TYPES: Mapping[str, DataType | str] = {
    "headers": _TEXT_MAP,
    **{name: _OF_KIND.get(kind, "string") for name, kind in OPTIONS.items()},
    "queue": "string",
}
"""The fields of a message besides its payload, as the writer's columns."""


@dataclass(frozen=True, slots=True)
class Mapped:
    """The columns of a message. ``payload``: a column, ``*`` for the whole row as JSON, None for a column of that name, else
    the row. ``tenant``: of fairness keys; ``tenant_pattern``: for lines of text, a regular expression (Java's) with one
    group."""

    payload: str | None = None
    tenant: str | None = None
    tenant_pattern: str | None = None
    options: Mapping[str, str] = field(default_factory=dict)

    def check(self, format_name: str) -> None:
        """Raise :class:`PipelineError` for contradictions, before anything is read."""
        if unknown := sorted(self.options.keys() - OPTION_TYPES.keys()):
            raise PipelineError(f"--option {unknown[0]}=…: a message has no such option; known: {', '.join(OPTION_TYPES)}")
        if self.tenant and self.tenant_pattern:
            raise PipelineError("give --tenant or --tenant-pattern, not both")
        if "fairness_key" in self.options and (self.tenant or self.tenant_pattern):
            raise PipelineError("--tenant is the fairness key: leave out --option fairness_key=…")
        if self.tenant_pattern is None:
            return
        if format_name != "text":
            raise PipelineError(f"--tenant-pattern is for lines of text, these are {format_name} files: use --tenant COLUMN")
        if _groups(self.tenant_pattern) == 0:
            raise PipelineError(
                f"--tenant-pattern {self.tenant_pattern!r} has no group: put the tenant's part in parentheses"
            )

    def messages(self, rows: DataFrame, format_name: str) -> DataFrame:
        """Return the writer's columns."""
        columns = {name: _option(rows, name, column) for name, column in self.options.items()}
        if self.tenant:
            columns["fairness_key"] = _column(rows, self.tenant, "--tenant").cast("string")
        if self.tenant_pattern:
            columns["fairness_key"] = _found(self.tenant_pattern)
        return rows.select(
            self._payload(rows, format_name).alias("payload"), *(column.alias(name) for name, column in columns.items())
        )

    def _payload(self, rows: DataFrame, format_name: str) -> Column:
        name = self.payload
        if name is None:
            name = "value" if format_name == "text" else "payload" if "payload" in rows.columns else WHOLE_ROW
        if name == WHOLE_ROW:
            return F.to_json(F.struct(*map(_quoted, rows.columns)), {"ignoreNullFields": "false"})
        column = _column(rows, name, "--payload")
        kind = _type_of(rows, column)
        if isinstance(kind, BinaryType | StringType):
            return column
        return F.to_json(column) if isinstance(kind, StructType | ArrayType | MapType) else column.cast("string")


def _groups(pattern: str) -> int | None:
    """Return the groups of a regular expression; None if Python can't read it: Spark will check it."""
    try:
        return re.compile(pattern).groups
    except re.error:
        return None


def _found(pattern: str) -> Column:
    """Return the text of the group; null, so the default key, in lines that do not match."""
    found = F.regexp_extract("value", pattern, 1)
    return F.when(found != "", found)


def _option(rows: DataFrame, name: str, column_name: str) -> Column:
    column = _column(rows, column_name, f"--option {name}")
    kind = _type_of(rows, column)
    wanted = OPTION_TYPES[name]
    if isinstance(kind, StringType) and wanted is _TEXTS:
        return F.when(column != "", F.split(column, r"\s*,\s*"))
    if isinstance(kind, StructType | StringType) and wanted is _TEXT_MAP:
        return F.from_json(F.to_json(column) if isinstance(kind, StructType) else column, _TEXT_MAP)
    return column.cast(wanted)


def _column(rows: DataFrame, name: str, flag: str) -> Column:
    """Return a column by its name, dots included, or a field of a struct: ``customer.id``."""
    if name in rows.columns:
        return _quoted(name)
    if name.partition(".")[0] in rows.columns and "." in name:
        return F.col(name)
    raise PipelineError(f"{flag}: there is no column {name!r}; the files have {', '.join(rows.columns)}")


def _quoted(name: str) -> Column:
    return F.col(f"`{name.replace('`', '``')}`")


def _type_of(rows: DataFrame, column: Column) -> DataType:
    return rows.select(column).schema[0].dataType


FORMATS = ("parquet", "json", "csv", "text")
_FORMAT_OF = {
    ".parquet": "parquet",
    ".json": "json",
    ".jsonl": "json",
    ".ndjson": "json",
    ".csv": "csv",
    ".txt": "text",
    ".text": "text",
    ".log": "text",
}
_COMPRESSED = {".gz", ".bz2", ".zst", ".lz4", ".deflate", ".snappy"}
_OPTIONS = {"csv": {"header": "true"}}
_ELSEWHERE = re.compile(r"[A-Za-z][A-Za-z0-9+.-]*://")


@dataclass(frozen=True, slots=True)
class InputFiles:
    """Files of one format. ``path``: a file, a directory or a glob, as Spark understands them."""

    path: str
    format: str

    def read(self, spark: SparkSession) -> DataFrame:
        """Return the rows; CSV files have a line of column names, text files one column, ``value``."""
        return spark.read.format(self.format).options(**_OPTIONS.get(self.format, {})).load(self.path)


def source_of(path: str, format_name: str | None = None) -> InputFiles:
    """Return the files at ``path``; :class:`PipelineError` if there are none, or their format is unknown."""
    if _ELSEWHERE.match(path) and not path.startswith("file:"):
        return InputFiles(path, format_name or _one_format([PurePosixPath(path).name], path))
    files = list(_files_at(path.removeprefix("file://").removeprefix("file:")))
    if not files:
        raise PipelineError(f"there is no file at {path}: name a file, a directory with files, or a glob in quotes")
    return InputFiles(path, format_name or _one_format((file.name for file in files), path))


def _files_at(path: str) -> Iterator[Path]:
    """Yield the files that Spark would read."""
    for found in map(Path, sorted(glob(path)) if has_magic(path) else [path]):
        if found.is_file():
            yield found
        elif found.is_dir():
            yield from (file for file in sorted(found.rglob("*")) if file.is_file() and not _hidden(file.relative_to(found)))


def _hidden(path: Path) -> bool:
    """Return whether Spark ignores a file: markers, checkpoints and the like."""
    return any(part.startswith((".", "_")) and "=" not in part for part in path.parts)


def _one_format(names: Iterable[str], path: str) -> str:
    formats = {_format_of(name) for name in names}
    if len(formats) == 1 and (only := formats.pop()) is not None:
        return only
    seen = "no known ending" if None in formats or not formats else f"{' and '.join(sorted(filter(None, formats)))} files"
    raise PipelineError(f"{path} has {seen}: say which to read with --format {'|'.join(FORMATS)}")


def _format_of(name: str) -> str | None:
    """Return the format by the ending of a file's name, or of a glob."""
    endings = [ending.lower() for ending in PurePosixPath(name).suffixes]
    if endings and endings[-1] in _COMPRESSED:
        endings.pop()
    return _FORMAT_OF.get(endings[-1]) if endings else None


PARTITIONS_OF_JOB = 16
"""The partitions of a named job, unless it sets another number.

Part of its identity, so never a machine's number of cores.
"""
LOOK_EVERY_S = 0.5


@dataclass(frozen=True, slots=True)
class LoadJob:
    """The input and the queue. ``dedup_window_s``: how long the broker remembers the rows; None: its setting."""

    source: InputFiles
    queue: str
    mapped: Mapped = field(default_factory=Mapped)
    job: str | None = None
    dedup_window_s: float | None = None
    partitions: int | None = None


@dataclass(frozen=True, slots=True)
class Loaded:
    """The result. ``rows`` were confirmed by the broker, with those that it had from an earlier run of the job."""

    rows: int
    seconds: float

    @property
    def rows_per_second(self) -> float:
        """The rate of rows."""
        return self.rows / self.seconds if self.seconds else 0.0


Look = Callable[[int, int, int], None]
"""Called now and then: tasks done, tasks in all, rows that the queue took in meanwhile."""


def load(spark: SparkSession, plan: LoadJob, client: Client, look: Look = lambda *_: None) -> Loaded:
    """Run a load. ``client`` is of the same broker, for the queue's counters. Raises :class:`PipelineError`."""
    with plain_errors():
        messages = _spread(plan.mapped.messages(plan.source.read(spark), plan.source.format), plan)
        counted = Observation("load")
        writer = messages.observe(counted, F.count(F.lit(1)).alias("rows")).write.format("fila").mode("append")
        began = time.monotonic()
        with _watched(spark, client, plan.queue, look):
            writer.options(**_options(plan, client)).save()
        return Loaded(int(counted.get["rows"]), time.monotonic() - began)


def _spread(messages: DataFrame, plan: LoadJob) -> DataFrame:
    """Return the messages in the number of partitions that was asked for."""
    if plan.job is not None:
        return messages.repartition(plan.partitions or PARTITIONS_OF_JOB, "payload")
    return messages.repartition(plan.partitions) if plan.partitions else messages


def _options(plan: LoadJob, client: Client) -> dict[str, str]:
    options = {"endpoint": client.endpoint, "queue": plan.queue}
    if plan.job is not None:
        options["job"] = plan.job
    if plan.dedup_window_s is not None:
        options["dedup_window"] = f"{round(plan.dedup_window_s * 1000)}ms"
    return options


@contextmanager
def _watched(spark: SparkSession, client: Client, queue: str, look: Look) -> Iterator[None]:
    """Call ``look`` with the job's progress, from a thread beside it."""
    over = Event()
    thread = Thread(target=_watch, args=(spark, _Intake(client, queue), look, over), daemon=True)
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join()


def _watch(spark: SparkSession, intake: "_Intake", look: Look, over: Event) -> None:
    tracker = spark.sparkContext.statusTracker()
    while not over.wait(LOOK_EVERY_S):
        stages = [stage for number in tracker.getActiveStageIds() if (stage := tracker.getStageInfo(number))]
        if stages:
            look(sum(stage.numCompletedTasks for stage in stages), sum(stage.numTasks for stage in stages), intake.rows())


class _Intake:
    """Counts the messages that came into a queue since this was made, by the queue's counter, from all producers."""

    def __init__(self, client: Client, queue: str) -> None:
        self._client = client
        self._queue = queue
        self._rows = 0
        self._last = self._counter() or 0

    def rows(self) -> int:
        counter = self._counter()
        if counter is not None:  # it starts again at 0 with its worker
            self._rows += counter - self._last if counter >= self._last else counter
            self._last = counter
        return self._rows

    def _counter(self) -> int | None:
        try:
            return self._client.queue_stats(self._queue).enqueued
        except FilaError:
            return None  # its worker is away: the job waits for it, too
