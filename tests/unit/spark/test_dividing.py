"""A batch's parts, dealt to tasks."""

import pickle

from hypothesis import given, settings
from hypothesis import strategies as st

from fila_cluster.spark.options import Connection
from fila_cluster.spark.schema import READ_SCHEMA
from fila_cluster.spark.streaming import (
    ROWS_PER_PARTITION,
    ROWS_PER_PARTITION_MIN,
    TASKS_MIN,
    ReservationReader,
    ReservedPart,
    divide,
)

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
    part = ReservedPart(Connection("tcp://h:1"), "spark/a/1", (("q", (0, 1)),))
    reader = ReservationReader({"endpoint": "tcp://127.0.0.1:1", "queue": "q"}, READ_SCHEMA)
    assert pickle.loads(pickle.dumps(part)) == part
    assert pickle.loads(pickle.dumps(reader)).getDefaultReadLimit().max_rows == 10_000
