"""Message ids: UUIDv7 that carry their shard and sort in enqueue order."""

import uuid

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fila_proto_zmq.errors import InvalidArgumentError
from fila_proto_zmq.ids import (
    enqueued_ms,
    format_id,
    format_run,
    high_half,
    low_half,
    parse_id,
    sequence,
    shard_of_id,
)
from fila_proto_zmq.limits import SHARDS_MAX
from tests.unit.protocol.vectors import ID, ID_TEXT

times = st.integers(0, 2**48 - 1)
shards = st.integers(0, SHARDS_MAX - 1)
sequences = st.integers(0, 2**62 - 1)


def test_golden_id() -> None:
    assert (high_half(1_730_000_000_000, 3), low_half(5)) == ID
    assert format_id(*ID) == ID_TEXT
    assert parse_id(ID_TEXT) == ID


@given(times, shards, sequences)
def test_an_id_contains_what_it_was_made_of(time_ms: int, shard: int, number: int) -> None:
    high, low = high_half(time_ms, shard), low_half(number)
    assert (enqueued_ms(high), shard_of_id(high), sequence(low)) == (time_ms, shard, number)
    assert parse_id(format_id(high, low)) == (high, low)


@given(times, shards, sequences)
def test_an_id_is_a_uuid_of_version_7(time_ms: int, shard: int, number: int) -> None:
    text = format_id(high_half(time_ms, shard), low_half(number))
    parsed = uuid.UUID(text)
    assert (str(parsed), parsed.version, parsed.variant) == (text, 7, uuid.RFC_4122)


@given(st.lists(st.tuples(times, st.integers(0, 1000)), min_size=2, max_size=20), shards)
def test_texts_of_one_shard_sort_in_enqueue_order(enqueues: list[tuple[int, int]], shard: int) -> None:
    enqueues.sort()
    texts = [format_id(high_half(time_ms, shard), low_half(number)) for time_ms, number in enqueues]
    assert texts == sorted(texts)


@given(times, shards, st.integers(0, 2**62 - 200), st.integers(0, 100))
def test_a_run_is_the_consecutive_ids(time_ms: int, shard: int, first: int, count: int) -> None:
    high, low = high_half(time_ms, shard), low_half(first)
    assert format_run(high, low, count) == [format_id(high, low + index) for index in range(count)]


def test_case_does_not_matter() -> None:
    assert parse_id(ID_TEXT.upper()) == ID


@pytest.mark.parametrize(
    "text",
    [
        "",
        "x",
        "orders",
        "00000000-0000-0000-0000-000000000000",
        str(uuid.UUID(int=0, version=4)),
        "0192cc09-1400-7003-0000-000000000005",
        ID_TEXT[:-1],
        ID_TEXT + "0",
        "1" + ID_TEXT,
        "7000-8000-0000-0000-0005",
        " " + ID_TEXT,
        "0x" + ID_TEXT,
        ID_TEXT.replace("-1400-", "_1400_"),
        "٠" + ID_TEXT[1:],
        "-" * 100_000,
        None,
        7,
        b"0192cc09-1400-7003-8000-000000000005",
    ],
    ids=lambda value: repr(value)[:40],
)
def test_what_is_no_id_of_ours_is_refused_with_the_value(text: object) -> None:
    with pytest.raises(InvalidArgumentError) as caught:
        parse_id(text)  # type: ignore[arg-type]
    assert repr(text) in str(caught.value)
