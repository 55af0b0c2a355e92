"""How queues are divided among tasks, and patience with a shard that has no room for a view."""

import pytest
from pyspark.sql.datasource import InputPartition

from fila_cluster.client.calls.reservations import KeyRange
from fila_cluster.spark.browsing import ROOM_WAIT_S, TASK_MESSAGES, interleaved, opened_in_time, pack, stretches_of
from fila_proto_zmq.commands import ViewedQueue
from fila_proto_zmq.errors import OverloadedError, ShardUnavailableError

# --- stretches --------------------------------------------------------------------------------------------------------

DIVIDED = ViewedQueue("q", 300, ["g", "p"])


def test_a_queue_is_read_in_its_ranges() -> None:
    assert list(stretches_of(DIVIDED, None)) == [
        (KeyRange("q", "", "g"), 100),
        (KeyRange("q", "g", "p"), 100),
        (KeyRange("q", "p", None), 100),
    ]


def test_a_queue_with_one_range_is_read_in_one() -> None:
    assert list(stretches_of(ViewedQueue("q", 7, []), None)) == [(KeyRange("q"), 7)]


def test_an_empty_queue_is_not_read() -> None:
    assert list(stretches_of(ViewedQueue("q", 0, []), None)) == []


@pytest.mark.parametrize(
    ("keys", "ranges"),
    [
        (["a"], [""]),
        (["g"], ["g"]),
        (["oz"], ["g"]),
        (["p", "z"], ["p"]),
        (["a", "z"], ["", "p"]),
        (["a", "h", "z"], ["", "g", "p"]),
        ([], []),
    ],
)
def test_ranges_without_a_wanted_key_are_not_read(keys: list[str], ranges: list[str]) -> None:
    assert [stretch.from_key for stretch, _ in stretches_of(DIVIDED, keys)] == ranges


# --- tasks ------------------------------------------------------------------------------------------------------------


def packed(*sizes: int) -> list[list[int]]:
    stretches = [(KeyRange(str(index)), size) for index, size in enumerate(sizes)]
    return [[int(stretch.queue) for stretch in task] for task in pack(stretches)]


def test_small_queues_share_a_task_and_large_ones_have_their_own() -> None:
    assert packed(10, 10, 10) == [[0, 1, 2]]
    assert packed(TASK_MESSAGES, 1) == [[0], [1]]
    assert packed(1, TASK_MESSAGES - 1, 1) == [[0, 1], [2]]
    assert packed(1, 5 * TASK_MESSAGES, 1, 1) == [[0], [1], [2, 3]]
    assert packed() == []


def test_tasks_of_different_shards_take_turns() -> None:
    parts = {name: InputPartition(name) for name in "abcdef"}
    shards = [[parts["a"], parts["b"], parts["c"]], [parts["d"]], [], [parts["e"], parts["f"]]]
    assert [part.value for part in interleaved(shards)] == ["a", "d", "e", "b", "f", "c"]


# --- patience ---------------------------------------------------------------------------------------------------------


class Shard:
    """Has room for a view after a while, on a clock of its own."""

    def __init__(self, room_at_s: float, retry_after: float | None) -> None:
        self.now_s = 0.0
        self.asked = 0
        self._room_at_s = room_at_s
        self._retry_after = retry_after

    def open(self) -> list[ViewedQueue]:
        self.asked += 1
        if self.now_s < self._room_at_s:
            raise OverloadedError("16 views are open", retry_after=self._retry_after)
        return [DIVIDED]

    def sleep(self, seconds: float) -> None:
        self.now_s += seconds

    def opened(self) -> list[ViewedQueue]:
        return opened_in_time(self.open, now=lambda: self.now_s, sleep=self.sleep)


def test_it_waits_for_room_as_long_as_the_broker_says() -> None:
    shard = Shard(40.0, 40.0)
    assert shard.opened() == [DIVIDED]
    assert (shard.now_s, shard.asked) == (40.0, 2)


@pytest.mark.parametrize("retry_after", [None, 7.0, 1000.0])
def test_it_does_not_wait_for_ever(retry_after: float | None) -> None:
    shard = Shard(float("inf"), retry_after)
    with pytest.raises(OverloadedError, match="16 views are open"):
        shard.opened()
    assert shard.now_s <= ROOM_WAIT_S


def test_other_errors_are_not_waited_out() -> None:
    def down() -> list[ViewedQueue]:
        raise ShardUnavailableError("down")

    with pytest.raises(ShardUnavailableError):
        opened_in_time(down, sleep=lambda _: pytest.fail("it slept"))
