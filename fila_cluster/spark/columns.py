"""The columns of a row for the fields of its message, and their values in the data that Spark hands to a task."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import Any, Final, Self, TypeAlias

import msgspec
import pyarrow as pa
from pyspark.sql import Row, types
from pyspark.sql.types import DataType, StructType

from fila_cluster.spark.frames import Values
from fila_cluster.spark.options import text_of
from fila_proto_zmq.commands import MESSAGE_OPTIONS
from fila_proto_zmq.errors import InvalidArgumentError
from fila_proto_zmq.limits import FRAME_BYTES_MAX

WHOLE_ROW: Final = "*"

_TEXT = (types.StringType,)
_WHOLE = (types.ByteType, types.ShortType, types.IntegerType, types.LongType)
_NUMBER = (*_WHOLE, types.FloatType, types.DoubleType, types.DecimalType)


def _is_map_of_text(kind: DataType) -> bool:
    return isinstance(kind, types.MapType) and isinstance(kind.keyType, _TEXT) and isinstance(kind.valueType, _TEXT)


def _is_list_of_text(kind: DataType) -> bool:
    return isinstance(kind, types.ArrayType) and isinstance(kind.elementType, _TEXT)


_Test: TypeAlias = Any  # a tuple of classes, or a function
_WHOLE_NUMBER: Final = (_WHOLE, "a whole number (int, bigint, …)")
_OF_KIND: Final[dict[str, tuple[_Test, str]]] = {
    "text": (_TEXT, "string"),
    "choice": (_TEXT, "string"),
    "texts": (_is_list_of_text, "array<string>"),
    "count": _WHOLE_NUMBER,
    "duration": _WHOLE_NUMBER,
    "number": (_NUMBER, "a number"),
}
OPTIONS: Final = {
    f"{name}_ms" if option.kind == "duration" else name: option.kind
    for name, option in MESSAGE_OPTIONS.items()
    if name not in {"deliver_at", "lease"}
}
"""The options of messages that a row may have, and the kind of each. Durations are milliseconds."""
_FITTING: Final[dict[str, tuple[_Test, str]]] = {
    "payload": ((types.BinaryType, *_TEXT), "binary or string"),
    "headers": (_is_map_of_text, "map<string,string>"),
    **{name: _OF_KIND[kind] for name, kind in OPTIONS.items()},
    "queue": (_TEXT, "string"),
}
FIELDS: Final = tuple(_FITTING)
"""The fields of a message in a row; only ``payload`` is required."""

NAMEABLE: Final = FIELDS[:-1]
"""Fields whose columns options may name. The option ``queue`` is a queue's name, not a column's."""


@dataclass(frozen=True, slots=True)
class Columns:
    """The column of each field. ``whole_row``: the payload is the whole row, as JSON."""

    names: Mapping[str, str]
    whole_row: bool = False

    @classmethod
    def named(cls, given: Mapping[str, str]) -> Self:
        """Make it of names of columns by field; for ``payload``, ``*`` means the whole row."""
        whole_row = given.get("payload") == WHOLE_ROW
        return cls({field: name for field, name in given.items() if not (whole_row and field == "payload")}, whole_row)

    @classmethod
    def of(cls, schema: StructType, options: Mapping[str, str]) -> Self:
        """Make it of a DataFrame's columns and a write's options; :class:`InvalidArgumentError` if they do not fit."""
        present = _without_repeats(schema.fieldNames())
        given = {field: name for field in NAMEABLE if (name := text_of(options, field)) is not None}
        same_names = () if given.get("payload") == WHOLE_ROW else (field for field in FIELDS if field in present)
        columns = cls.named({field: field for field in same_names} | given)
        columns._check_presence(present)
        for field, name in columns.names.items():
            _check_type(field, name, schema[name].dataType)
        return columns

    def _check_presence(self, present: Iterable[str]) -> None:
        for field, name in self.names.items():
            if name not in present:
                raise InvalidArgumentError(
                    f"option {field}={name!r} names a column that is not there (there are {', '.join(present)}); "
                    f"for one value for all rows add a column, df.withColumn({field!r}, lit(…))"
                )
        if self.whole_row:
            return
        unused = [name for name in present if name not in self.names.values()]
        if unused:
            raise InvalidArgumentError(
                f"unknown column{'s' if len(unused) > 1 else ''} {', '.join(map(repr, unused))}: a row's columns are "
                f"{', '.join(FIELDS)}; drop those that are not part of the message, or use option payload=* for rows as JSON"
            )
        if "payload" not in self.names:
            raise InvalidArgumentError(
                "there is no column 'payload': add one (binary or string), name one with option payload, "
                "or use payload=* for the whole row as JSON"
            )


def _without_repeats(names: list[str]) -> list[str]:
    for name in names:
        if names.count(name) > 1:
            raise InvalidArgumentError(f"there are {names.count(name)} columns {name!r}: rename or drop the others")
    return names


def _check_type(field: str, name: str, kind: DataType) -> None:
    test, wanted = _FITTING[field]
    fits = isinstance(kind, test) if isinstance(test, tuple) else test(kind)
    if fits or (isinstance(kind, types.NullType) and field != "payload"):
        return
    raise InvalidArgumentError(
        f"column {name!r} is {kind.simpleString()}, but {_article(field)} has to be {wanted}: cast it{_hint(field)}"
    )


def _article(field: str) -> str:
    return "headers" if field == "headers" else f"a message's {field}"


def _hint(field: str) -> str:
    return ", make it with to_json(…), or use option payload=* for the whole row" if field == "payload" else ""


ROWS_AT_ONCE: Final = 1000
"""Two frames: this much stays in the processor's cache, which saves a fifth of the time that rows of 1 KB take."""

_ROWS_FIRST: Final = 16
"""The size of rows is unknown at first."""

_json = msgspec.json.Encoder(decimal_format="number").encode


def of_arrow(batches: Iterable[pa.RecordBatch], columns: Columns) -> Iterator[Values]:
    """Yield the values of Arrow batches, some thousand rows at a time."""
    for whole in batches:
        for start in range(0, whole.num_rows, ROWS_AT_ONCE):
            batch = whole.slice(start, ROWS_AT_ONCE)
            values: dict[str, Sequence[Any]] = {
                field: _plain(field, batch.column(name)).to_pylist() for field, name in columns.names.items()
            }
            if columns.whole_row:
                values["payload"] = _as_json(batch.to_pylist(maps_as_pydicts="strict"))
            yield values


def _plain(field: str, column: pa.Array) -> pa.Array:
    """Return a payload column as binary; text has the same bytes as its UTF-8."""
    if field == "payload" and pa.types.is_string(column.type):
        return column.cast(pa.binary())
    if field == "payload" and pa.types.is_large_string(column.type):
        return column.cast(pa.large_binary())
    return column


def of_rows(rows: Iterable[Any], columns: Columns) -> Iterator[Values]:
    """Yield the values of rows (``Row`` or dict), some thousand at a time, fewer where they are large."""
    rows = iter(rows)
    count = _ROWS_FIRST
    while chunk := list(islice(rows, count)):
        values: dict[str, Sequence[Any]] = _transposed(chunk, columns)
        if columns.whole_row:
            values["payload"] = _as_json(map(_as_dict, chunk))
        yield values
        size = sum(len(payload) for payload in values["payload"])  # all rows have one by now
        count = max(1, min(ROWS_AT_ONCE, 8 * count, FRAME_BYTES_MAX * len(chunk) // max(1, size)))


def _transposed(rows: Sequence[Any], columns: Columns) -> dict[str, Sequence[Any]]:
    fields = getattr(rows[0], "__fields__", None)
    if fields is None or any(getattr(row, "__fields__", None) != fields for row in rows):
        return {field: [_value(row, name) for row in rows] for field, name in columns.names.items()}
    lacking = [name for name in columns.names.values() if name not in fields]
    if lacking:
        raise _lacks(lacking[0], fields)
    values = list(zip(*rows, strict=True))
    return {field: values[fields.index(name)] for field, name in columns.names.items()}


def _value(row: Any, name: str) -> Any:
    if isinstance(row, Mapping):
        if name not in row:
            raise _lacks(name, row)
        return row[name]
    fields = getattr(row, "__fields__", None)
    if fields is None:
        raise InvalidArgumentError(
            f"a row is a {type(row).__name__}, which has no columns: map the RDD to Row or dict, "
            "for example rdd.map(lambda value: {'payload': value})"
        )
    if name not in fields:
        raise _lacks(name, fields)
    return row[name]


def _lacks(name: str, present: Iterable[Any]) -> InvalidArgumentError:
    return InvalidArgumentError(f"a row has no column {name!r}, it has {', '.join(map(str, present))}")


def _as_dict(row: Any) -> Any:
    return row.asDict(recursive=True) if isinstance(row, Row) else row


def _as_json(rows: Iterable[Any]) -> list[bytes]:
    try:
        return list(map(_json, rows))
    except (TypeError, ValueError) as wrong:
        raise InvalidArgumentError(f"a row cannot be written as JSON: {wrong}") from None
