"""Which columns of a DataFrame a write takes, and which it refuses while it is planned."""

import pytest
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
from fila_cluster.spark.columns import FIELDS, Columns

TEXT, WHOLE = StringType(), LongType()
GOOD = {
    "payload": BinaryType(), "headers": MapType(TEXT, TEXT), "fairness_key": TEXT, "weight": ShortType(),
    "throttle_keys": ArrayType(TEXT), "priority": IntegerType(), "cost": DecimalType(5, 2), "delay_ms": WHOLE,
    "ttl_ms": WHOLE, "dedup_id": TEXT, "queue": TEXT,
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
        ("queue", BinaryType(), "has to be string"),
    ],
)
def test_types_that_do_not_fit(field, kind, told):
    with pytest.raises(InvalidArgumentError) as caught:
        Columns.of(schema(**{"payload": TEXT} | {field: kind}), {})
    assert f"column {field!r}" in str(caught.value)
    assert told in str(caught.value)
