"""Rows of files as messages: the column for each field.

A file's columns have the types of its format: everything in CSV is text, JSON has no binary. So each is cast to the type
of the writer; a value that can't be cast fails the job with the value in the error. Lists in a text column are separated by
commas. A whole row as payload is JSON with all its columns, nulls included, in the order of the file.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass, field

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F  # noqa: N812 # its usual name
from pyspark.sql.types import ArrayType, BinaryType, DataType, MapType, StringType, StructType

from fila_cluster.spark.columns import OPTIONS
from fila_cluster.spark.pipelines.session import PipelineError

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
    """The columns that make a message.

    ``payload``: a column, ``*`` for the whole row as JSON, None for a column of that name, else the row. ``tenant``: the
    column of fairness keys. ``tenant_pattern``: for lines of text instead, a regular expression (Java's) with one group.
    """

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
