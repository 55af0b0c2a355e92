"""Parts of a reservation, joined."""

from hypothesis import given
from hypothesis import strategies as st

from fila_cluster.spark.streaming import BYTES_AT_ONCE, ROWS_AT_ONCE, joined
from fila_proto_zmq.commands import LeaseBatch

TEXT = st.sampled_from(["a", "b"])
KEYS = st.sampled_from([[], ["x"], ["x", "y"]])


@st.composite
def parts(draw):
    records = draw(st.lists(st.binary(max_size=3), min_size=1, max_size=4))
    count = len(records)
    throttle_keys = st.just([]) | st.lists(KEYS, min_size=1, max_size=1) | st.lists(KEYS, min_size=count, max_size=count)
    return LeaseBatch(
        lease=1, leased_ms=2, expires_ms=3,
        fairness_key=draw(TEXT | st.lists(TEXT, min_size=count, max_size=count)),
        weight=draw(st.integers(1, 2) | st.lists(st.integers(1, 2), min_size=count, max_size=count)),
        records=records, throttle_keys=draw(throttle_keys),
    )  # fmt: skip


def rows(batch):
    count = len(batch.records)
    keys = batch.fairness_key if isinstance(batch.fairness_key, list) else [batch.fairness_key] * count
    weights = batch.weight if isinstance(batch.weight, list) else [batch.weight] * count
    throttle_keys = batch.throttle_keys if len(batch.throttle_keys) == count else (batch.throttle_keys or [[]]) * count
    return list(zip(keys, weights, throttle_keys, batch.records, strict=True))


@given(st.lists(parts(), max_size=5))
def test_each_row_keeps_what_is_known_of_it(given_parts):
    assert [row for batch in joined(given_parts) for row in rows(batch)] == [
        row for part in given_parts for row in rows(part)
    ]
    assert len(list(joined(given_parts))) == min(1, len(given_parts))


def part(count, size=1):
    return LeaseBatch(0, 0, 0, "k", 1, [bytes(size)] * count)


def test_what_all_rows_share_stays_one_value():
    (batch,) = joined([part(2), part(3)])
    assert (batch.fairness_key, batch.weight, batch.throttle_keys) == ("k", 1, [])


def test_many_rows_and_large_ones_come_in_several_batches():
    assert [len(batch.records) for batch in joined([part(500)] * 10)] == [ROWS_AT_ONCE, 1000]
    assert [len(batch.records) for batch in joined([part(1, BYTES_AT_ONCE // 2)] * 3)] == [2, 1]


def test_nothing_is_no_batch():
    assert list(joined([])) == []
    assert list(joined([part(0)])) == []
