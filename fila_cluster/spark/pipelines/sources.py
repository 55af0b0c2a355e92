"""Files to load: which format they have, told by their names, and what Spark reads them as.

Names are looked at before Spark starts, so that a mistyped path costs no five seconds. What is no path of this machine
(``s3a://…``) Spark has to find; its format is in its name, or has to be given.
"""

import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from glob import glob, has_magic
from pathlib import Path, PurePosixPath

from pyspark.sql import DataFrame, SparkSession

from fila_cluster.spark.pipelines.failure import PipelineError

FORMATS = ("parquet", "json", "csv", "text")
_FORMAT_OF = {
    ".parquet": "parquet", ".json": "json", ".jsonl": "json", ".ndjson": "json", ".csv": "csv", ".txt": "text",
    ".text": "text", ".log": "text",
}  # fmt: skip
_COMPRESSED = {".gz", ".bz2", ".zst", ".lz4", ".deflate", ".snappy"}
_OPTIONS = {"csv": {"header": "true"}}
_ELSEWHERE = re.compile(r"[A-Za-z][A-Za-z0-9+.-]*://")


@dataclass(frozen=True, slots=True)
class Source:
    """Files of one format. ``path``: a file, a directory or a glob, as Spark understands them."""

    path: str
    format: str

    def read(self, spark: SparkSession) -> DataFrame:
        """The rows; CSV files have a line of column names, text files one column, ``value``."""
        return spark.read.format(self.format).options(**_OPTIONS.get(self.format, {})).load(self.path)


def source_of(path: str, format_name: str | None = None) -> Source:
    """What is at ``path``; :class:`PipelineError` if that is nothing, or nothing whose format is known."""
    if _ELSEWHERE.match(path) and not path.startswith("file:"):
        return Source(path, format_name or _one_format([PurePosixPath(path).name], path))
    files = list(_files_at(path.removeprefix("file://").removeprefix("file:")))
    if not files:
        raise PipelineError(f"there is no file at {path}: name a file, a directory with files, or a glob in quotes")
    return Source(path, format_name or _one_format((file.name for file in files), path))


def _files_at(path: str) -> Iterator[Path]:
    """Those that Spark would read."""
    for found in map(Path, sorted(glob(path)) if has_magic(path) else [path]):
        if found.is_file():
            yield found
        elif found.is_dir():
            yield from (file for file in sorted(found.rglob("*")) if file.is_file() and not _hidden(file.relative_to(found)))


def _hidden(path: Path) -> bool:
    """What Spark leaves alone: markers, checkpoints and the like."""
    return any(part.startswith((".", "_")) and "=" not in part for part in path.parts)


def _one_format(names: Iterable[str], path: str) -> str:
    formats = {_format_of(name) for name in names}
    if len(formats) == 1 and (only := formats.pop()) is not None:
        return only
    seen = "no known ending" if None in formats or not formats else f"{' and '.join(sorted(filter(None, formats)))} files"
    raise PipelineError(f"{path} has {seen}: say which to read with --format {'|'.join(FORMATS)}")


def _format_of(name: str) -> str | None:
    """By the ending of a file's name, or of a glob."""
    endings = [ending.lower() for ending in PurePosixPath(name).suffixes]
    if endings and endings[-1] in _COMPRESSED:
        endings.pop()
    return _FORMAT_OF.get(endings[-1]) if endings else None
