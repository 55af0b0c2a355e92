"""Which columns of a row say what about its message, judged while the write is planned.

A message's fields are found in columns of the same names, unless an option names another: ``.option("fairness_key", "tenant")``.
A column that would go unused is refused by name, as is a type that does not fit, before any task starts. With
``payload=*`` the payload is the whole row as a JSON object; then only columns that options name are fields too.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Final, Self, TypeAlias

from pyspark.sql import types
from pyspark.sql.types import DataType, StructType

from fila_cluster.spark.options import text_of
from fila_proto_zmq.errors import InvalidArgumentError

WHOLE_ROW: Final = "*"

_TEXT = (types.StringType,)
_WHOLE = (types.ByteType, types.ShortType, types.IntegerType, types.LongType)
_NUMBER = (*_WHOLE, types.FloatType, types.DoubleType, types.DecimalType)


def _is_map_of_text(kind: DataType) -> bool:
    return isinstance(kind, types.MapType) and isinstance(kind.keyType, _TEXT) and isinstance(kind.valueType, _TEXT)


def _is_list_of_text(kind: DataType) -> bool:
    return isinstance(kind, types.ArrayType) and isinstance(kind.elementType, _TEXT)


_Test: TypeAlias = Any  # a tuple of classes, or a function
_FITTING: Final[dict[str, tuple[_Test, str]]] = {
    "payload": ((types.BinaryType, *_TEXT), "binary or string"),
    "headers": (_is_map_of_text, "map<string,string>"),
    "fairness_key": (_TEXT, "string"),
    "weight": (_WHOLE, "a whole number (int, bigint, …)"),
    "throttle_keys": (_is_list_of_text, "array<string>"),
    "priority": (_WHOLE, "a whole number (int, bigint, …)"),
    "cost": (_NUMBER, "a number"),
    "delay_ms": (_WHOLE, "a whole number (int, bigint, …)"),
    "ttl_ms": (_WHOLE, "a whole number (int, bigint, …)"),
    "dedup_id": (_TEXT, "string"),
    "queue": (_TEXT, "string"),
}
FIELDS: Final = tuple(_FITTING)
"""What a row can say about its message; ``payload`` is the one that it must."""

NAMEABLE: Final = FIELDS[:-1]
"""Fields whose columns options may name. The option ``queue`` is a queue's name, not a column's."""


@dataclass(frozen=True, slots=True)
class Columns:
    """The column of each field that there is. ``whole_row``: the payload is all of the row, as JSON."""

    names: Mapping[str, str]
    whole_row: bool = False

    @classmethod
    def named(cls, given: Mapping[str, str]) -> Self:
        """From what names columns field by field; of ``payload`` it may say that it is the whole row."""
        whole_row = given.get("payload") == WHOLE_ROW
        return cls({field: name for field, name in given.items() if not (whole_row and field == "payload")}, whole_row)

    @classmethod
    def of(cls, schema: StructType, options: Mapping[str, str]) -> Self:
        """From a DataFrame's columns and a write's options; :class:`InvalidArgumentError` says what does not fit."""
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
                f"{', '.join(FIELDS)}; drop what is no part of the message, or use option payload=* for rows as JSON"
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
