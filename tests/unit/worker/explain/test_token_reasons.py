"""Why a message waits for tokens: the first reason names each situation, with its numbers."""

import re

import pytest

from fila_proto_zmq.commands import (
    Explain,
    Pause,
    QueueOptions,
    UpdateQueue,
    Verb,
)
from fila_worker.core.effects import ClientCall
from fila_worker.core.explain.backlog_reasons import LIMITED_LANES_MAX, LIMITS_SHOWN
from fila_worker.core.explain.explain import explain
from tests.support.shard.cluster_of_shards import ClusterOfShards
from tests.support.shard.explained import codes, first, ids, these, why
from tests.support.shard.shard import ADMIN, ShardHarness


def throttled(rate: float, burst: float, messages: int, *, key: str = "default", throttles: str = "t") -> ClusterOfShards:
    """One shard whose bucket ``t`` was just emptied by a consumer that takes what it can get."""
    cluster = ClusterOfShards(1)
    cluster.create(0)
    cluster.limit("t", rate, burst)
    cluster.limit("slow", rate / 10, 1)
    cluster.enqueue(0, messages, throttles, key=key)
    cluster.consume(0, hold_ms=5)
    cluster.run(20)
    return cluster


def test_throttled() -> None:
    cluster = throttled(5, 10, 30)
    shard = cluster.shards[0]
    waiting = [each for each in ids(shard) if why(shard, each).state == "pending"]
    assert len(waiting) == 20
    told = why(shard, waiting[0])
    details = first(told, "throttled")
    assert these(details, ["throttle_key", "burst", "rate", "cost", "throttle_keys"]) == ["t", 10.0, 5.0, 1.0, ["t"]]
    assert 0 <= details["tokens"] < 0.2
    assert 150 <= details["wait_ms"] <= 200
    assert told.reasons[0].until_ms == told.estimated_ms == shard.now_ms + details["wait_ms"]
    assert re.fullmatch(r"throttled by t: 0\.[01] of 10 tokens, 5/s, the next one in 0\.[12] s", told.reasons[0].text)
    last = why(shard, waiting[-1])
    assert (codes(last), last.position) == (["throttled", "behind"], 19)
    assert last.estimated_ms == pytest.approx(shard.now_ms + 4000, abs=60)
    assert first(why(shard, key="default"), "throttled")["wait_ms"] == details["wait_ms"]
    assert these(first(why(shard), "throttled"), ["keys", "messages", "throttle_key"]) == [1, 20, "t"]


def test_the_estimate_of_a_throttled_message_holds() -> None:
    cluster = throttled(5, 10, 30)
    shard = cluster.shards[0]
    message = ids(shard)[-1]
    estimated_ms = why(shard, message).estimated_ms
    cluster.run(estimated_ms - cluster.now_ms - 50)
    assert message in ids(shard)
    cluster.run(150)
    assert message not in ids(shard)


def test_of_several_throttle_keys_the_last_is_named() -> None:
    cluster = throttled(50, 10, 5, throttles="t slow")
    told = why(cluster.shards[0], ids(cluster.shards[0])[0])
    details = first(told, "throttled")
    assert these(details, ["throttle_key", "burst", "rate", "throttle_keys"]) == ["slow", 1.0, 5.0, ["slow", "t"]]


def test_a_rate_of_zero_has_no_end() -> None:
    cluster = throttled(0, 3, 5)
    told = why(cluster.shards[0], key="default")
    assert first(told, "throttled")["wait_ms"] is None
    assert (told.reasons[0].until_ms, told.estimated_ms) == (0, 0)
    assert told.reasons[0].text == "throttled by t: 0.0 of 3 tokens, 0/s, none will come"


def test_a_bucket_that_lets_nothing_through_has_no_estimate() -> None:
    cluster = throttled(0, 0, 2)
    shard = cluster.shards[0]
    told = why(shard, ids(shard)[0])
    assert told.reasons[0].text == "throttled by t: 0.0 of 0 tokens, 0/s, none will come"
    assert (told.reasons[0].until_ms, told.estimated_ms) == (0, 0)


def test_a_cost_above_what_is_there() -> None:
    cluster = ClusterOfShards(1)
    cluster.create(0)
    cluster.limit("t", 10, 10)
    cluster.enqueue(0, 2, "t", cost_milli=8000)
    cluster.consume(0, hold_ms=1)
    cluster.run(100)
    told = why(cluster.shards[0], ids(cluster.shards[0])[0])
    assert these(first(told, "throttled"), ["cost", "burst"]) == [8.0, 10.0]
    assert "the 8 that it costs in 0.5 s" in told.reasons[0].text


def test_a_cost_above_the_burst_waits_for_a_full_bucket() -> None:
    cluster = ClusterOfShards(1)
    cluster.create(0)
    cluster.limit("t", 10, 10)
    cluster.enqueue(0, 2, "t", cost_milli=30_000)
    cluster.consume(0, hold_ms=1)
    cluster.run(100)
    shard = cluster.shards[0]
    told = why(shard, ids(shard)[0])
    details = first(told, "throttled")
    assert (details["cost"], round(details["tokens"])) == (30.0, -19), "owed for the one before"
    assert details["wait_ms"] == pytest.approx(2900, abs=20)
    assert told.estimated_ms == shard.now_ms + details["wait_ms"]


def test_keys_of_a_queue_that_wait_for_different_reasons_are_listed_in_groups() -> None:
    cluster = throttled(0, 1, 3, key="a")
    cluster.enqueue(0, 4, "t", key="b")
    cluster.enqueue(0, 2, key="c")
    shard = cluster.shards[0]
    shard.ask(Pause(True, "c"), "q", ADMIN)
    cluster.enqueue(0, 5, key="c")
    cluster.run(100)
    told = why(shard)
    assert these(first(told, "throttled"), ["keys", "messages", "throttle_key"]) == [2, 6, "t"]
    assert codes(told) == ["throttled", "key_paused"]
    assert these(told.reasons[1].details, ["keys", "messages", "fairness_key"]) == [1, 5, "c"]
    assert told.reasons[0].text.startswith("2 fairness keys with 6 messages: for example 'a': throttled by t:")
    assert told.reasons[1].text.startswith("1 fairness key with 5 messages: fairness key 'c' is paused")


def test_a_retry_that_is_not_found_among_many_delayed_ones_is_a_cap_all_the_same() -> None:
    """It came before the cap, so it is not the first of its key."""
    shard = ShardHarness()
    shard.create()
    _, message = shard.enqueue(b"1", b"2", priority=5)
    shard.settle(Verb.RETRY, shard.receive(), after_ms=9000)
    shard.enqueue(*[b"m"] * 1001, delay_ms=60_000)
    shard.ask(UpdateQueue(QueueOptions(max_in_flight_per_key=1), ["max_in_flight_per_key"]))
    shard.subscribe(5)
    assert these(first(why(shard, message), "in_flight_cap"), ["in_flight", "retrying"]) == [1, 1]


def test_a_throttle_that_some_messages_of_a_key_wait_for_is_listed_last() -> None:
    cluster = throttled(0, 1, 5)
    cluster.shards[0].ask(Pause(True), "q", ADMIN)
    cluster.enqueue(0, 3)
    told = why(cluster.shards[0], key="default")
    assert codes(told) == ["queue_paused", "throttled"]


def test_messages_that_nothing_stops_now_are_limited_all_the_same() -> None:
    cluster = ClusterOfShards(1)
    cluster.create(0)
    cluster.limit("fast", 50, 10)
    cluster.limit("slow", 5, 10)
    cluster.enqueue(0, 30, "fast slow", key="a")
    cluster.enqueue(0, 8, "fast", key="b")
    cluster.enqueue(0, 7, key="free")
    cluster.run(20)
    told = why(cluster.shards[0])
    assert codes(told) == ["no_consumers", "limited"]
    limits = {"concurrency": None, "tokens": 10.0}
    assert told.reasons[1].details["limits"] == [
        {"throttle_key": "slow", "messages": 30, "rate": 5.0, **limits},
        {"throttle_key": "fast", "messages": 8, "rate": 50.0, **limits},
    ]
    assert told.reasons[1].details["messages"] == 38
    assert told.reasons[1].text == "throttle keys let messages through only so fast, most of them 'slow': 5/s"


def test_limits_of_very_many_lanes_are_looked_for_in_a_turn_of_their_own() -> None:
    cluster = ClusterOfShards(1)
    cluster.create(0)
    cluster.limit("t", 5, 10)
    for number in range(LIMITED_LANES_MAX + 3):
        cluster.enqueue(0, 1, "t", key=f"k{number}")
    cluster.run(20)
    steps = explain(cluster.shards[0].shard, ClientCall(ADMIN, 0, "q", cluster.now_ms), Explain())
    assert len([*steps]) == 1
    assert why(cluster.shards[0]).reasons[-1].details["messages"] == LIMITED_LANES_MAX


def test_very_many_limits_are_added_up() -> None:
    cluster = ClusterOfShards(1)
    cluster.create(0)
    for number in range(LIMITS_SHOWN + 2):
        cluster.limit(f"t{number}", 5, 10)
        cluster.enqueue(0, 3 if number < LIMITS_SHOWN else 2, f"t{number}", key=f"k{number}")
    cluster.run(20)
    limits = why(cluster.shards[0]).reasons[-1].details["limits"]
    assert len(limits) == LIMITS_SHOWN + 1
    assert limits[-1] == {"throttle_key": None, "messages": 4, "rate": 10.0, "tokens": 20.0, "concurrency": None}


def test_a_throttled_message_that_is_first_in_strict_order_holds_up_the_others() -> None:
    cluster = ClusterOfShards(1)
    cluster.create(0, max_in_flight_per_key=1)
    cluster.limit("t", 0, 1)
    cluster.enqueue(0, 2, "t")
    cluster.enqueue(0, 1)
    cluster.consume(0)
    cluster.run(100)
    shard = cluster.shards[0]
    head, free = ids(shard)
    told = why(shard, free)
    assert these(first(told, "ordered_behind"), ["message_id", "waits_for", "throttle_key"]) == [head, "tokens", "t"]
    assert first(why(shard, head), "throttled")["throttle_key"] == "t"
    assert first(why(shard, key="default"), "throttled")["throttle_key"] == "t"
