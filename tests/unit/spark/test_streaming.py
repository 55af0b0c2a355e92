"""A stream's batches: their parts are dealt to tasks, and the parts of a reservation are joined."""

import pickle

from hypothesis import given, settings
from hypothesis import strategies as st

from fila_cluster.spark.options import BrokerAccess
from fila_cluster.spark.schema import READ_SCHEMA
from fila_cluster.spark.streaming import (
    BYTES_AT_ONCE,
    ROWS_AT_ONCE,
    ROWS_PER_PARTITION,
    ROWS_PER_PARTITION_MIN,
    TASKS_MIN,
    ReservationReader,
    ReservedPart,
    divide,
    joined,
)
from fila_proto_zmq.commands import LeaseBatch

HELD = st.dictionaries(
    st.sampled_from(["a", "b", "c"]),
    st.lists(st.integers(1, 500), min_size=1, max_size=40).map(lambda counts: list(enumerate(counts))),
)


@settings(deadline=None)
@given(HELD)
def test_every_part_goes_to_one_task_and_tasks_are_of_about_the_same_size(held: dict[str, list[tuple[int, int]]]) -> None:
    tasks = divide(held)
    dealt = [(queue, part) for pieces in tasks for queue, parts in pieces for part in parts]
    assert sorted(dealt) == sorted((queue, part) for queue, pieces in held.items() for part, _ in pieces)
    sizes = [sum(held[queue][part][1] for queue, parts in pieces for part in parts) for pieces in tasks]
    total = sum(sizes)
    assert len(tasks) <= max(TASKS_MIN, -(-total // ROWS_PER_PARTITION))
    assert len(tasks) <= max(1, -(-total // ROWS_PER_PARTITION_MIN))
    assert all(size <= total / len(tasks) + 500 for size in sizes)


def test_nothing_is_no_task() -> None:
    assert divide({}) == []


def test_what_goes_to_the_executors_can_go_there() -> None:
    part = ReservedPart(BrokerAccess("tcp://h:1"), "spark/a/1", (("q", (0, 1)),))
    reader = ReservationReader({"endpoint": "tcp://127.0.0.1:1", "queue": "q"}, READ_SCHEMA)
    assert pickle.loads(pickle.dumps(part)) == part
    assert pickle.loads(pickle.dumps(reader)).getDefaultReadLimit().max_rows == 10_000


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
