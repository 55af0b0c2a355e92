"""What a shard counts by fairness key: the busiest keys, and the others together."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fila_proto_zmq.commands import (
    OTHER_KEYS,
)
from fila_worker.core.metrics import meter, top_keys
from fila_worker.core.metrics.top_keys import KEYS_SHOWN
from tests.support.shard.shard import ShardHarness
from tests.unit.worker.metrics.reports import metrics_of


def test_only_the_busiest_keys_are_shown_and_the_others_together(shard: ShardHarness):
    for index in range(30):
        shard.enqueue(*[b"x"] * (index + 1), key=f"k{index:02}")
    told = metrics_of(shard)
    assert sorted(key.fairness_key for key in told.keys) == [f"k{index:02}" for index in range(30 - KEYS_SHOWN, 30)]
    assert told.known_keys == 30
    shard.receive(300)
    told = metrics_of(shard)
    assert told.other_delivered + sum(key.delivered for key in told.keys) == told.delivered == 300


def test_a_key_with_the_others_name_is_one_of_them(shard: ShardHarness):
    shard.enqueue(b"x", b"y", key=OTHER_KEYS)
    shard.receive()
    told = metrics_of(shard)
    assert told.keys == []
    assert told.other_delivered == 1


def test_fair_shares_are_by_weight_among_the_keys_that_could_deliver(shard: ShardHarness):
    shard.enqueue(*[b"x"] * 9, key="a", weight=3)
    shard.enqueue(*[b"x"] * 9, key="b")
    shard.enqueue(b"x", key="idle")
    shard.ack([got for got in shard.receive(8) if got.key == "idle"])
    assert {key.fairness_key: key.fair_share for key in metrics_of(shard).keys} == {"a": 0.75, "b": 0.25, "idle": 0}


def test_many_keys_are_examined_piece_by_piece(shard: ShardHarness, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(meter, "KEYS_LOOKED_AT_MAX", 20)
    shard.create("other")
    for index in range(100):
        shard.enqueue(b"x", key=f"k{index:02}")
    shard.enqueue(*[b"x"] * 5, key="the last, and the busiest")
    looks = 0
    while "the last, and the busiest" not in {key.fairness_key for key in metrics_of(shard).keys}:
        looks += 1
        assert looks <= 12
    told = metrics_of(shard)
    assert len(told.keys) == KEYS_SHOWN
    assert told.known_keys == 101
    share = next(key.fair_share for key in told.keys)
    assert share == pytest.approx(1 / 101)


@given(st.lists(st.tuples(st.integers(0, 7), st.integers(1, 6), st.booleans()), min_size=1, max_size=30))
def test_what_is_counted_by_key_never_goes_back(steps: list[tuple[int, int, bool]]) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(top_keys, "KEYS_SHOWN", 3)
        patch.setattr(meter, "KEYS_LOOKED_AT_MAX", 4)
        shard = ShardHarness(checked=False)
        shard.create("q")
        shown: dict[str, int] = {}
        others = 0
        for key, count, told in steps:
            shard.enqueue(*[b"x"] * count, key=f"k{key}")
            shard.ack(shard.receive(count))
            if not told:
                continue
            now = metrics_of(shard)
            assert now.other_delivered >= others
            others = now.other_delivered
            for each in now.keys:
                assert each.delivered >= shown.get(each.fairness_key, 0)
            shown = {each.fairness_key: each.delivered for each in now.keys}
            assert others + sum(shown.values()) <= now.delivered


def test_with_few_keys_each_has_all_it_was_delivered_at_any_time(shard: ShardHarness):
    for index in range(KEYS_SHOWN):
        shard.enqueue(*[b"x"] * 3, key=f"k{index}")
        shard.ack(shard.receive(3))
        told = metrics_of(shard)
        assert {key.delivered for key in told.keys} == {3}
        assert told.other_delivered == 0
