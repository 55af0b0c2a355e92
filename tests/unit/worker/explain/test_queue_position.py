"""Where messages stand in line, in memory and on disk; and the bounded look at what lies there."""

from unittest.mock import patch

import pytest

from fila_proto_zmq.commands import Browse, Browsed
from fila_proto_zmq.record import record_id
from fila_worker.core.explain import estimates
from fila_worker.core.explain.estimates import QueuePosition, place_in_line
from fila_worker.core.inspect.backlog import find
from fila_worker.core.model import lanes
from fila_worker.core.model.lanes import sample
from fila_worker.core.settings import ShardSettings
from tests.support.shard.shard import ADMIN, ShardHarness, finished


def line(buffer_bytes: int) -> ShardHarness:
    """300 messages of one key with two priorities, in two lanes; every tenth is leased."""
    shard = ShardHarness(settings=ShardSettings(buffer_bytes=buffer_bytes))
    shard.create("q")
    for number in range(30):
        keys = [["mail"]] if number % 3 == 0 else []
        shard.enqueue(*[b"m"] * 10, priority=-(number % 2), throttle_keys=keys)  # type: ignore[arg-type]
    shard.receive(30)
    return shard


def in_order(shard: ShardHarness) -> list[tuple[int, int]]:
    page = shard.ask(Browse(1000, state="pending"), "q", ADMIN)
    assert isinstance(page, Browsed)
    return [record_id(each.record) for each in page.messages]


def place_of(shard: ShardHarness, message: tuple[int, int]) -> QueuePosition:
    found = finished(find(shard.shard, shard.shard.queues["q"], *message))
    return place_in_line(shard.shard, found.lane, found.key)


@pytest.mark.parametrize("buffer_bytes", [0, 2000, 1 << 20])
def test_every_place_is_right_wherever_the_line_lies(buffer_bytes: int) -> None:
    shard = line(buffer_bytes)
    found = [place_of(shard, message) for message in in_order(shard)]
    assert [(place.ahead, place.exact) for place in found] == [(index, True) for index in range(270)]


def test_messages_with_the_same_throttle_keys_are_counted_apart() -> None:
    shard = line(1 << 20)
    last = in_order(shard)[-1]
    same = shard.shard.queues["q"].keys["default"].lanes[()].pending
    assert place_of(shard, last).in_lane == same - 1


def test_far_behind_it_is_about_right() -> None:
    shard = line(0)
    with patch.object(estimates, "READ_MAX", 20):
        found = [place_of(shard, message) for message in in_order(shard)]
    assert all(place.exact == (place.ahead == index) for index, place in enumerate(found[:10]))
    assert not found[-1].exact
    assert all(0 <= place.ahead < 270 for place in found)


def test_a_sample_is_bounded_by_count_and_bytes() -> None:
    items = [(b"%d" % number, b"x" * 100) for number in range(10)]
    assert sample(iter(items), 10) == (items, True)
    assert sample(iter(items), 4) == (items[:4], False)
    with patch.object(lanes, "SAMPLE_BYTES_MAX", 250):
        assert sample(iter(items), 10) == (items[:3], False)
    assert sample(iter([]), 0) == ([], True)
