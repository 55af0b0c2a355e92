"""Filters that the broker applies, so that Spark never sees the other rows: on queue, fairness key and state.

Only filters that name values are taken (``=``, ``in``, ``<=>``), with the same meaning for Spark and the broker. Spark
applies the others itself. These columns are never null, so a comparison with null finds nothing, and ``is not null``
everything.

Spark up to 4.3 keeps the plan for a filter with the *loaded* DataFrame, and uses it for all other queries on it too, or for
another scan of it in the same query: after ``df.where("state = 'leased'").count()``, ``df.count()`` counts the leased ones.
(Observed; later versions keep it with the scan.) So there no filter is pushed unless the option ``pushdown`` says that the
DataFrame is loaded for a single scan. The options ``fairness_key`` and ``state`` filter at the broker in any version.
"""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from fnmatch import fnmatchcase
from typing import Any, Final, Self

from pyspark.sql.datasource import DataSourceReader

from fila_cluster.client import Client, QueueInfo, checks
from fila_cluster.client.forwarding import held_queues
from fila_cluster.spark.options import text_of
from fila_proto_zmq.errors import InvalidArgumentError, QueueNotFoundError
from fila_proto_zmq.names import whole_queue

COLUMNS: Final = ("queue", "fairness_key", "state")
STATES: Final = ("pending", "delayed", "leased")

VALUES_MAX: Final = 1000
"""Values of one filter that are sent along with each request for a page."""

_EQUAL: Final = ("EqualTo", "EqualNullSafe")
_IN: Final = "In"
_NOT_NULL: Final = "IsNotNull"


def is_asked_for(options: Mapping[str, str]) -> bool:
    """Return the option ``pushdown``; by default, whether this version of Spark keeps plans with scans."""
    text = (text_of(options, "pushdown") or "").lower()
    if text not in {"", "true", "false"}:
        raise InvalidArgumentError(f"option pushdown: {text!r} is not valid, use true or false")
    return text == "true" if text else hasattr(DataSourceReader, "pushLimit")  # these came together


class PushedFilters:
    """The filters of a query, which go to the executors: the wanted values of each column, None without a filter."""

    def __init__(self) -> None:
        self.values: dict[str, frozenset[str]] = {}

    @classmethod
    def of_options(cls, options: Mapping[str, str]) -> Self:
        """Make it of the options ``fairness_key`` and ``state``: a filter that is part of the DataFrame."""
        wanted = cls()
        for column in ("fairness_key", "state"):
            text = text_of(options, column)
            if text is not None:
                wanted.values[column] = frozenset([text])
        state = text_of(options, "state")
        if state not in {None, *STATES}:
            raise InvalidArgumentError(f"option state: {state!r} is not valid, use one of {', '.join(STATES)}")
        return wanted

    def push(self, filters: Iterable[Any]) -> Iterator[Any]:
        """Take over the filters that the broker can apply; yield the others."""
        for each in filters:
            column = _column(each)
            if column is None:
                yield each
            elif type(each).__name__ != _NOT_NULL:
                values = _values(each)
                self.values[column] = values & self.values.get(column, values)

    def of(self, column: str) -> list[str] | None:
        """Return the wanted values of a column, in order; None: all."""
        values = self.values.get(column)
        return None if values is None else sorted(values)

    def wants(self, column: str, value: str) -> bool:
        """Return whether rows with this value are wanted."""
        values = self.values.get(column)
        return values is None or value in values


def _column(each: Any) -> str | None:
    """Return the column of a filter; None if the broker can't apply it. Filters are recognized by the names of their classes,
    which exist since PySpark 4.1; nothing is pushed before."""
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


_WILD: Final = "*?["
DEAD_LETTERS: Final = ".dlq"


@dataclass(frozen=True, slots=True)
class Selection:
    """Names of queues, and patterns as in a shell. Goes to the executors with their tasks."""

    names: tuple[str, ...]
    patterns: tuple[str, ...] = ()

    @classmethod
    def of(cls, text: str | None) -> Self:
        """Read it from the option's text."""
        words = [word.strip() for word in (text or "").split(",") if word.strip()]
        if not words:
            raise InvalidArgumentError(
                'option queue: name the queue to read, .option("queue", "orders"); patterns: "orders*"'
            )
        patterns = tuple(word for word in words if set(word) & set(_WILD))
        return cls(tuple(checks.queue_name(word) for word in words if word not in patterns), patterns)

    def __contains__(self, name: str) -> bool:
        return name in self.names or any(fnmatchcase(name, pattern) for pattern in self.patterns)

    def is_drained(self, name: str) -> bool:
        """Like ``in``, for readers that take messages out: dead letter queues must be named as such."""
        if name in self.names:
            return True
        wanted = [pattern for pattern in self.patterns if fnmatchcase(name, pattern)]
        return any(pattern.endswith(DEAD_LETTERS) for pattern in wanted) if name.endswith(DEAD_LETTERS) else bool(wanted)

    @property
    def prefix(self) -> str:
        """The common beginning of all its names."""
        heads = [pattern[: min(pattern.index(mark) for mark in _WILD if mark in pattern)] for pattern in self.patterns]
        words = [*self.names, *heads]
        first, last = min(words), max(words)
        return first[
            : next((at for at, (a, b) in enumerate(zip(first, last, strict=False)) if a != b), min(len(first), len(last)))
        ]


def meant(client: Client, selection: Selection, *, to_drain: bool) -> list[QueueInfo]:
    """Return the selected queues, in the order of their names, each partition of a queue as one.

    ``to_drain``: for a reader that takes messages out of them. :class:`QueueNotFoundError` if a named one does not exist; a
    pattern may match none.
    """
    is_meant = selection.is_drained if to_drain else selection.__contains__
    infos = [info for info in held_queues(client, selection.prefix) if is_meant(whole_queue(info.name))]
    missing = set(selection.names) - {whole_queue(info.name) for info in infos}
    if missing:
        name = min(missing)
        raise QueueNotFoundError(
            f"no queue {name!r}: create it with `fila-cluster queue create {name}` or create_queue()", details={"queue": name}
        )
    return infos
