"""Stored records as Arrow columns: each column against the record taken apart the ordinary way."""

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pyspark.sql.pandas.types import to_arrow_schema

from fila_cluster.spark.schema import ARROW_SCHEMA, READ_SCHEMA, record_batch
from fila_proto_zmq.errors import InvalidFrameError
from fila_proto_zmq.ids import format_id, high_half, low_half
from fila_proto_zmq.record import EXTENDED, Extension, Record, open_envelope, pack_record, seal_envelope, unpack_record

EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


def packed(payload: bytes = b"p", headers: dict[str, str] | None = None, number: int = 1, **fields: Any) -> bytes:
    """A record; ``fields`` are those of its extension, and ``attempts`` and ``priority``."""
    attempts, priority = fields.pop("attempts", 0), fields.pop("priority", 0)
    envelope = seal_envelope(payload, headers)
    return pack_record(
        Record(attempts, priority, high_half(1_700_000_000_123, 3), low_half(number), Extension(**fields), envelope)
    )


def rows(records: list[bytes], **columns: Any) -> list[dict[str, Any]]:
    defaults: dict[str, Any] = {
        "states": "pending", "fairness_keys": "default", "weights": 1, "throttle_keys": [], "due_ms": 0
    }  # fmt: skip
    batch = record_batch("orders", records=records, **defaults | columns)
    batch.validate(full=True)
    assert batch.schema == ARROW_SCHEMA
    return [row | {"headers": None if row["headers"] is None else dict(row["headers"])} for row in batch.to_pylist()]


def test_the_arrow_schema_is_the_one_that_spark_expects() -> None:
    assert to_arrow_schema(READ_SCHEMA, timezone="UTC").equals(ARROW_SCHEMA)


def test_a_plain_message() -> None:
    (row,) = rows([packed(b"hello", {"a": "1"}, number=7)])
    assert row == {
        "id": format_id(high_half(1_700_000_000_123, 3), low_half(7)),
        "queue": "orders",
        "state": "pending",
        "fairness_key": "default",
        "weight": 1,
        "throttle_keys": [],
        "priority": 0,
        "cost": 1.0,
        "attempts": 0,
        "headers": {"a": "1"},
        "payload": b"hello",
        "error": "",
        "reason": None,
        "source_queue": None,
        "enqueued_at": EPOCH + timedelta(milliseconds=1_700_000_000_123),
        "due_at": None,
    }


def test_no_records_are_an_empty_batch() -> None:
    assert rows([]) == []


def test_what_only_some_records_carry_is_in_its_row() -> None:
    dead = packed(b"dead", error="boom", reason="failed", source_queue="orders", attempts=3, priority=-5)
    got = rows([packed(), dead, packed(cost_milli=2500), packed(b"", lease_ms=5)])
    assert [row["error"] for row in got] == ["", "boom", "", ""]
    assert [row["reason"] for row in got] == [None, "failed", None, None]
    assert [row["source_queue"] for row in got] == [None, "orders", None, None]
    assert [row["cost"] for row in got] == [1.0, 1.0, 2.5, 1.0]
    assert [(row["attempts"], row["priority"]) for row in got] == [(0, 0), (3, -5), (0, 0), (0, 0)]
    assert [row["payload"] for row in got] == [b"p", b"dead", b"p", b""]


def test_columns_that_differ_from_row_to_row() -> None:
    got = rows(
        [packed(), packed()],
        states=["delayed", "leased"],
        fairness_keys=["a", "ü"],
        weights=[1, 7],
        throttle_keys=[["x", "y"], []],
        due_ms=[1_700_000_000_999, 0],
    )
    assert [row["state"] for row in got] == ["delayed", "leased"]
    assert [(row["fairness_key"], row["weight"]) for row in got] == [("a", 1), ("ü", 7)]
    assert [row["throttle_keys"] for row in got] == [["x", "y"], []]
    assert [row["due_at"] for row in got] == [EPOCH + timedelta(milliseconds=1_700_000_000_999), None]


def test_a_single_value_holds_for_all_rows() -> None:
    got = rows([packed()] * 3, throttle_keys=[["x"]], weights=9, due_ms=5)
    assert [(row["throttle_keys"], row["weight"], row["due_at"]) for row in got] == [
        (["x"], 9, EPOCH + timedelta(milliseconds=5))
    ] * 3


texts = st.text(st.characters(codec="utf-8"), max_size=6)
messages = st.builds(
    packed,
    payload=st.binary(max_size=40),
    headers=st.none() | st.dictionaries(texts, texts, max_size=3),
    number=st.integers(0, 2**62 - 1),
    attempts=st.integers(0, 2**31 - 1),
    priority=st.integers(-(2**31), 2**31 - 1),
    error=texts,
    cost_milli=st.integers(1, 10_000),
    metadata=st.binary(max_size=9),
)


@given(st.lists(messages, max_size=12))
def test_any_records_say_the_same_as_columns_and_one_by_one(records: list[bytes]) -> None:
    for data, row in zip(records, rows(records), strict=True):
        record = unpack_record(data)
        assert (row["headers"] or {}, row["payload"]) == open_envelope(record.envelope)
        assert row["id"] == format_id(record.id_high, record.id_low)
        assert (row["attempts"], row["priority"]) == (record.attempts, record.priority)
        assert (row["error"], row["cost"]) == (record.extension.error, record.extension.cost_milli / 1000)


# --- bad input --------------------------------------------------------------------------------------------------------


def with_envelope(envelope: bytes) -> bytes:
    return packed()[:26] + envelope


@pytest.mark.parametrize("headers", [b"\xc1", b"\x93\x01\x02\x03", b"\x81\xa1a\x01", b"\x81\xa1a\xa1\xff"])
def test_headers_that_are_no_map_of_strings_are_null_and_spoil_nothing_else(headers: bytes) -> None:
    got = rows([packed(b"x", {"k": "v"}), with_envelope(len(headers).to_bytes(4, "big") + headers + b"pay"), packed()])
    assert [row["headers"] for row in got] == [{"k": "v"}, None, {}]
    assert [row["payload"] for row in got] == [b"x", b"pay", b"p"]


@pytest.mark.parametrize(
    "damaged",
    [
        b"",
        packed()[:25],
        packed()[:26],
        packed()[:28],
        with_envelope(b"\x00\x00\x00\x09short"),
        with_envelope(b"\xff\xff\xff\xff"),
        (256 + EXTENDED).to_bytes(2, "big") + packed()[2:26] + b"\x00\x00\x00\x09\x80",
    ],
)
def test_damaged_records_are_a_typed_error(damaged: bytes) -> None:
    with pytest.raises(InvalidFrameError, match="damaged message record"):
        rows([packed(), damaged, packed()])


def test_records_of_a_later_layout_are_refused() -> None:
    with pytest.raises(InvalidFrameError, match="layout 2"):
        rows([packed(), b"\x02" + packed()[1:]])


def test_a_column_of_another_length_is_refused() -> None:
    with pytest.raises(ValueError, match="same length"):
        rows([packed()], fairness_keys=["a", "b"])
