"""Columns of a DataFrame: which of them a write takes, and their values."""

import json
from datetime import UTC, date, datetime
from decimal import Decimal

import pyarrow as pa
import pytest
from pyspark.sql import Row
from pyspark.sql.types import (
    ArrayType,
    BinaryType,
    DecimalType,
    DoubleType,
    IntegerType,
    LongType,
    MapType,
    NullType,
    ShortType,
    StringType,
    StructType,
)

from fila_cluster.errors import InvalidArgumentError
from fila_cluster.spark.columns import FIELDS, ROWS_AT_ONCE, Columns, of_arrow, of_rows

TEXT, WHOLE = StringType(), LongType()
GOOD = {
    "payload": BinaryType(), "headers": MapType(TEXT, TEXT), "fairness_key": TEXT, "weight": ShortType(),
    "throttle_keys": ArrayType(TEXT), "priority": IntegerType(), "cost": DecimalType(5, 2), "delay_ms": WHOLE,
    "ttl_ms": WHOLE, "dedup_id": TEXT, "dedup_mode": TEXT, "max_attempts": IntegerType(), "queue": TEXT,
}  # fmt: skip


def schema(**columns):
    built = StructType()
    for name, kind in columns.items():
        built = built.add(name, kind)
    return built


def test_every_field_has_a_column_of_its_name():
    assert tuple(GOOD) == FIELDS
    assert Columns.of(schema(**GOOD), {}) == Columns({field: field for field in FIELDS})


def test_text_payloads_and_columns_of_nothing_but_null():
    columns = Columns.of(schema(payload=TEXT, headers=NullType(), weight=NullType()), {})
    assert set(columns.names) == {"payload", "headers", "weight"}


def test_unknown_columns_are_refused_by_name():
    with pytest.raises(InvalidArgumentError, match=r"unknown columns 'tenant', 'when': a row's columns are payload, headers"):
        Columns.of(schema(payload=TEXT, tenant=TEXT, when=WHOLE), {})
    with pytest.raises(InvalidArgumentError, match="unknown column 'Payload'"):
        Columns.of(schema(payload=TEXT, Payload=TEXT), {})


def test_options_name_columns():
    columns = Columns.of(schema(body=TEXT, tenant=TEXT, cost=WHOLE), {"payload": "body", "Fairness_Key": "tenant"})
    assert columns == Columns({"payload": "body", "fairness_key": "tenant", "cost": "cost"})


def test_one_column_may_be_two_fields():
    columns = Columns.of(schema(payload=TEXT), {"fairness_key": "payload"})
    assert columns.names == {"payload": "payload", "fairness_key": "payload"}


def test_an_option_that_names_no_column_says_how_to_give_one_value_to_all():
    with pytest.raises(InvalidArgumentError, match=r"option fairness_key='acme' names a column that is not there .*lit"):
        Columns.of(schema(payload=TEXT), {"fairness_key": "acme"})


def test_the_whole_row_as_payload():
    everything = schema(payload=WHOLE, queue=WHOLE, tenant=TEXT, when=DoubleType())
    assert Columns.of(everything, {"payload": "*"}) == Columns({}, whole_row=True)
    assert Columns.of(everything, {"payload": "*", "fairness_key": "tenant"}) == Columns({"fairness_key": "tenant"}, True)


def test_there_has_to_be_a_payload():
    with pytest.raises(InvalidArgumentError, match="there is no column 'payload'"):
        Columns.of(schema(fairness_key=TEXT), {})


def test_a_column_that_is_there_twice_is_refused():
    with pytest.raises(InvalidArgumentError, match="2 columns 'payload'"):
        Columns.of(StructType().add("payload", TEXT).add("payload", TEXT), {})


@pytest.mark.parametrize(
    ("field", "kind", "told"),
    [
        ("payload", WHOLE, "is bigint, but a message's payload has to be binary or string"),
        ("payload", NullType(), "is void"),
        ("headers", MapType(TEXT, WHOLE), "is map<string,bigint>, but headers has to be map<string,string>"),
        ("headers", TEXT, "map<string,string>"),
        ("fairness_key", WHOLE, "has to be string"),
        ("weight", DoubleType(), "a whole number"),
        ("throttle_keys", TEXT, "array<string>"),
        ("throttle_keys", ArrayType(WHOLE), "array<string>"),
        ("priority", TEXT, "a whole number"),
        ("cost", TEXT, "a number"),
        ("delay_ms", DoubleType(), "a whole number"),
        ("ttl_ms", TEXT, "a whole number"),
        ("dedup_id", WHOLE, "has to be string"),
        ("dedup_mode", WHOLE, "has to be string"),
        ("max_attempts", TEXT, "a whole number"),
        ("queue", BinaryType(), "has to be string"),
    ],
)
def test_types_that_do_not_fit(field, kind, told):
    with pytest.raises(InvalidArgumentError) as caught:
        Columns.of(schema(**{"payload": TEXT} | {field: kind}), {})
    assert f"column {field!r}" in str(caught.value)
    assert told in str(caught.value)


TWO = Columns.named({"payload": "body", "fairness_key": "tenant"})
WHOLE_ROW = Columns.named({"payload": "*", "fairness_key": "tenant"})


def values(rows, columns=TWO):
    (only,) = of_rows(rows, columns)
    return {field: list(column) for field, column in only.items()}


def test_arrow_columns():
    batch = pa.RecordBatch.from_pydict({"tenant": ["t", None], "body": [b"a", b"b"], "other": [1, 2]})
    assert list(of_arrow([batch, batch], TWO)) == [{"payload": [b"a", b"b"], "fairness_key": ["t", None]}] * 2


def test_arrow_rows_as_json():
    maps = pa.array([[("k", "v")]], pa.map_(pa.string(), pa.string()))
    columns = {"tenant": pa.array(["t"]), "price": pa.array([Decimal("1.50")]), "when": pa.array([datetime(2026, 1, 2, tzinfo=UTC)]),
               "day": pa.array([date(2026, 1, 2)]), "tags": maps, "nothing": pa.nulls(1), "ä": pa.array([[1, 2]])}  # fmt: skip
    (only,) = of_arrow([pa.RecordBatch.from_pydict(columns)], WHOLE_ROW)
    assert only["fairness_key"] == ["t"]
    assert json.loads(only["payload"][0]) == {
        "tenant": "t", "price": 1.5, "when": "2026-01-02T00:00:00Z", "day": "2026-01-02", "tags": {"k": "v"},
        "nothing": None, "ä": [1, 2],
    }  # fmt: skip


def test_rows_and_dicts():
    assert values([Row(tenant="t", body=b"a", other=1), Row(tenant=None, body=b"b", other=2)]) == {
        "payload": [b"a", b"b"], "fairness_key": ["t", None]
    }  # fmt: skip
    mixed = [{"body": b"a", "tenant": "t"}, Row(other=1, body=b"b", tenant="u"), Row(tenant="v", body=b"c")]
    assert values(mixed) == {"payload": [b"a", b"b", b"c"], "fairness_key": ["t", "u", "v"]}


def test_rows_as_json():
    rows = [Row(tenant="t", inner=Row(x=1, y=[Row(z=2)])), {"tenant": "u", "n": 1}]
    assert [json.loads(payload) for payload in values(rows, WHOLE_ROW)["payload"]] == [
        {"tenant": "t", "inner": {"x": 1, "y": [{"z": 2}]}},
        {"tenant": "u", "n": 1},
    ]


@pytest.mark.parametrize(
    "rows",
    [
        [Row(body=b"a")],
        [{"body": b"a"}],
        [{"body": b"a", "tenant": "t"}, {"body": b"a"}],
        [Row(body=b"a", tenant=1), Row(body=b"a")],
    ],
)
def test_a_row_that_lacks_a_column(rows):
    with pytest.raises(InvalidArgumentError, match="a row has no column 'tenant', it has body"):
        values(rows)


@pytest.mark.parametrize("row", [b"bare", (b"a", "t"), None])
def test_a_row_without_columns(row):
    with pytest.raises(InvalidArgumentError, match=r"which has no columns: map the RDD to Row or dict"):
        values([row])


def lengths(rows):
    return [len(part["payload"]) for part in of_rows(rows, TWO)]


def test_many_rows_come_in_parts_and_none_in_none():
    assert lengths({"body": b"x", "tenant": "t"} for _ in range(2 * ROWS_AT_ONCE)) == [16, 128, ROWS_AT_ONCE, 856]
    assert lengths([]) == []


def test_large_rows_come_in_small_parts():
    assert lengths({"body": bytes(3_000_000), "tenant": "t"} for _ in range(22)) == [16, 2, 2, 2]
    assert lengths([{"body": bytes(9_000_000), "tenant": "t"}] * 18) == [16, 1, 1]


def test_arrow_batches_come_in_parts():
    batch = pa.RecordBatch.from_pydict({"tenant": ["t"] * 1500, "body": [str(number) for number in range(1500)]})
    parts = list(of_arrow([batch], TWO))
    assert [len(part["payload"]) for part in parts] == [ROWS_AT_ONCE, 500]
    assert [payload for part in parts for payload in part["payload"]] == [str(number).encode() for number in range(1500)]


def test_a_row_that_json_cannot_say():
    with pytest.raises(InvalidArgumentError, match=r"a row cannot be written as JSON: .*complex"):
        values([{"tenant": "t", "number": 1j}], WHOLE_ROW)
