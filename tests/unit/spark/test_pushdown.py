"""Which filters the broker takes over, and that it lets through what Spark would."""

import pickle
from typing import Any

import pytest
from pyspark.sql.datasource import (
    DataSourceReader,
    EqualNullSafe,
    EqualTo,
    Filter,
    GreaterThan,
    In,
    IsNotNull,
    IsNull,
    Not,
    StringContains,
    StringStartsWith,
)

from fila_cluster.spark.browsing import BrowseReader, FilteringReader, browse_reader
from fila_cluster.spark.pushdown import VALUES_MAX, PushedFilters
from fila_cluster.spark.schema import READ_SCHEMA
from fila_proto_zmq.errors import InvalidArgumentError


def pushed(*filters: Filter) -> tuple[PushedFilters, list[Any]]:
    wanted = PushedFilters()
    return wanted, list(wanted.push(filters))


@pytest.mark.parametrize(
    ("taken", "values"),
    [
        (EqualTo(("state",), "leased"), ["leased"]),
        (EqualNullSafe(("state",), "leased"), ["leased"]),
        (In(("state",), ("pending", "leased", "pending")), ["leased", "pending"]),
        (In(("state",), ("pending", None)), ["pending"]),
        (EqualTo(("state",), None), []),
        (EqualNullSafe(("state",), None), []),
        (In(("state",), ()), []),
        (IsNotNull(("state",)), None),
    ],
)
def test_what_names_values_is_taken(taken: Filter, values: list[str] | None) -> None:
    wanted, left = pushed(taken)
    assert left == []
    assert wanted.of("state") == values


@pytest.mark.parametrize("column", ["queue", "fairness_key", "state"])
def test_three_columns_are_taken(column: str) -> None:
    wanted, left = pushed(EqualTo((column,), "x"))
    assert (left, wanted.of(column)) == ([], ["x"])
    assert (wanted.wants(column, "x"), wanted.wants(column, "y")) == (True, False)


@pytest.mark.parametrize(
    "left",
    [
        EqualTo(("priority",), 0),
        EqualTo(("headers", "queue"), "x"),
        EqualTo(("queue", "x"), "x"),
        EqualTo(("queue",), 5),
        GreaterThan(("fairness_key",), "a"),
        StringStartsWith(("queue",), "orders"),
        StringContains(("queue",), "orders"),
        Not(EqualTo(("state",), "leased")),
        IsNull(("state",)),
        In(("fairness_key",), tuple(map(str, range(VALUES_MAX + 1)))),
    ],
)
def test_everything_else_is_left_to_spark(left: Filter) -> None:
    wanted, rest = pushed(left)
    assert len(rest) == 1
    assert rest[0] is left
    assert wanted.values == {}


def test_filters_on_one_column_hold_together() -> None:
    left = EqualTo(("cost",), 1.0)
    wanted, rest = pushed(
        In(("fairness_key",), ("a", "b", "c")), left, In(("fairness_key",), ("c", "b", "x")), EqualTo(("queue",), "q")
    )
    assert rest == [left]
    assert (wanted.of("fairness_key"), wanted.of("queue"), wanted.of("state")) == (["b", "c"], ["q"], None)
    assert pushed(EqualTo(("queue",), "a"), EqualTo(("queue",), "b"))[0].of("queue") == []


def test_it_travels_to_the_executors() -> None:
    wanted, _ = pushed(EqualTo(("queue",), "q"))
    assert pickle.loads(pickle.dumps(wanted)).of("queue") == ["q"]


def test_options_narrow_the_data_frame_in_any_version() -> None:
    wanted = PushedFilters.of_options({"Fairness_Key": "a, b", "state": "leased"})
    assert (wanted.of("fairness_key"), wanted.of("state"), wanted.of("queue")) == (["a, b"], ["leased"], None)
    assert list(wanted.push([EqualTo(("state",), "pending")])) == []
    assert wanted.of("state") == [], "a filter comes on top"
    assert PushedFilters.of_options({}).of("state") is None
    with pytest.raises(InvalidArgumentError, match="option state: 'dead' is not valid, use one of pending, delayed, leased"):
        PushedFilters.of_options({"state": "dead"})


# --- whether at all ---------------------------------------------------------------------------------------------------


def made(**options: str) -> BrowseReader:
    return browse_reader({"queue": "q"} | options, READ_SCHEMA)


def is_filtering(reader: BrowseReader) -> bool:
    return isinstance(reader, FilteringReader)


def test_spark_is_asked_for_filters_only_where_it_keeps_them_apart(monkeypatch: pytest.MonkeyPatch) -> None:
    assert not is_filtering(made()), "this version does not"
    monkeypatch.setattr(DataSourceReader, "pushLimit", lambda self, limit: False, raising=False)
    assert is_filtering(made())
    assert not is_filtering(made(pushdown="false"))


def test_the_option_decides() -> None:
    assert is_filtering(made(pushdown="True"))
    assert not is_filtering(made(Pushdown="false"))
    with pytest.raises(InvalidArgumentError, match="option pushdown: 'yes' is not valid"):
        made(pushdown="yes")


def test_without_it_spark_sees_no_filters_taken() -> None:
    assert made().pushFilters.__func__ is DataSourceReader.pushFilters  # type: ignore[attr-defined]
