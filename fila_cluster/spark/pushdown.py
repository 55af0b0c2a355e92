"""Filters that the broker applies, so that Spark never sees the other rows: on queue, fairness key and state.

Only what names values is taken (``=``, ``in``, ``<=>``): exact, and the same to Spark and to the broker. The rest is left to Spark,
which filters what it gets. These columns are never null, so a comparison with null finds nothing, and ``is not null`` everything.

Spark up to 4.3 keeps what was planned for a filter with the *loaded* DataFrame, and uses it for all other queries on it too, or for
another scan of it in the same query: after ``df.where("state = 'leased'").count()``, ``df.count()`` counts the leased ones. (Seen; later
versions keep it with the scan.) A wrong answer is worse than a slow one, so there nothing is pushed unless the option ``pushdown`` says
that the DataFrame is loaded for a single scan. The options ``fairness_key`` and ``state`` filter at the broker in any version.
"""

from collections.abc import Iterable, Iterator, Mapping
from typing import Any, Final, Self

from pyspark.sql.datasource import DataSourceReader

from fila_cluster.spark.options import text_of
from fila_proto_zmq.errors import InvalidArgumentError

COLUMNS: Final = ("queue", "fairness_key", "state")
STATES: Final = ("pending", "delayed", "leased")

VALUES_MAX: Final = 1000
"""Values of one filter that are sent along with each request for a page."""

_EQUAL: Final = ("EqualTo", "EqualNullSafe")
_IN: Final = "In"
_NOT_NULL: Final = "IsNotNull"


def is_asked_for(options: Mapping[str, str]) -> bool:
    """Return what the option ``pushdown`` says; by default, whether this version of Spark keeps scans apart."""
    text = (text_of(options, "pushdown") or "").lower()
    if text not in {"", "true", "false"}:
        raise InvalidArgumentError(f"option pushdown: {text!r} will not do, use true or false")
    return text == "true" if text else hasattr(DataSourceReader, "pushLimit")  # these came together


class PushedFilters:
    """What a query wants: the values of each column, None where it has not said. Goes to the executors with their tasks."""

    def __init__(self) -> None:
        self.values: dict[str, frozenset[str]] = {}

    @classmethod
    def of_options(cls, options: Mapping[str, str]) -> Self:
        """Return what the options ``fairness_key`` and ``state`` say: a filter that is part of the DataFrame."""
        wanted = cls()
        for column in ("fairness_key", "state"):
            text = text_of(options, column)
            if text is not None:
                wanted.values[column] = frozenset([text])
        state = text_of(options, "state")
        if state not in {None, *STATES}:
            raise InvalidArgumentError(f"option state: {state!r} will not do, use one of {', '.join(STATES)}")
        return wanted

    def push(self, filters: Iterable[Any]) -> Iterator[Any]:
        """Take over what can be; the other filters are left."""
        for each in filters:
            column = _column(each)
            if column is None:
                yield each
            elif type(each).__name__ != _NOT_NULL:
                values = _values(each)
                self.values[column] = values & self.values.get(column, values)

    def of(self, column: str) -> list[str] | None:
        """Return the values that are wanted of a column, in order; None: all."""
        values = self.values.get(column)
        return None if values is None else sorted(values)

    def wants(self, column: str, value: str) -> bool:
        """Return whether rows with this value are wanted."""
        values = self.values.get(column)
        return values is None or value in values


def _column(each: Any) -> str | None:
    """Return the column that a filter is about; None if the broker can't apply it.

    It is told by its name: the classes exist since PySpark 4.1, and nothing is pushed before.
    """
    if type(each).__name__ not in {_NOT_NULL, _IN, *_EQUAL}:
        return None
    path: tuple[str, ...] = each.attribute
    if len(path) != 1 or path[0] not in COLUMNS:
        return None
    named = _named(each)
    fits = len(named) <= VALUES_MAX and all(value is None or isinstance(value, str) for value in named)
    return path[0] if fits else None


def _named(each: Any) -> tuple[Any, ...]:
    kind = type(each).__name__
    return tuple(each.value) if kind == _IN else (each.value,) if kind in _EQUAL else ()


def _values(each: Any) -> frozenset[str]:
    """Return the values that a filter lets through."""
    return frozenset(value for value in _named(each) if value is not None)
