"""Throttles in trouble: limits that change, shards and routers that come and go, frames that are lost."""

from collections import Counter
from collections.abc import Callable

import pytest

from tests.support.shard.cluster_of_shards import ClusterOfShards, worst_excess
from tests.unit.worker.tokens.throttled import BURST, RATE, busy_cluster, cluster_of

# --- limits that change -----------------------------------------------------------------------------------------------


def test_a_higher_rate_is_felt_at_once() -> None:
    cluster = busy_cluster()
    cluster.limit("t", 1000, BURST)
    assert len(cluster.run(1000)) >= 900


def test_a_lower_rate_is_felt_at_once() -> None:
    cluster = busy_cluster()
    cluster.limit("t", 10, BURST)
    assert len(cluster.run(1000)) <= 10 + BURST


def test_a_limit_that_goes_frees_what_waits_for_it() -> None:
    cluster = busy_cluster()
    cluster.limit("t", None)
    cluster.run(100)
    assert len(cluster.deliveries) == 1200


def test_a_limit_that_comes_holds_what_was_free() -> None:
    cluster = cluster_of()
    cluster.enqueue(0, 2000, "late")
    cluster.consume(0, prefetch=10, hold_ms=10)
    cluster.run(100)
    cluster.limit("late", RATE, BURST)
    assert RATE * 0.9 <= len(cluster.run(1000)) <= RATE + BURST


def test_a_limit_on_a_second_key_of_a_message_holds_it_too() -> None:
    cluster = cluster_of(1)
    cluster.enqueue(0, 1000, "t other")
    cluster.consume(0)
    cluster.run(100)
    cluster.limit("other", 10, 1)
    assert 9 <= len(cluster.run(1000)) <= 11
    cluster.limit("other", None)
    assert 90 <= len(cluster.run(1000)) <= 110


def test_a_limit_that_comes_and_goes_while_a_key_is_parked_is_followed() -> None:
    cluster = cluster_of(1)
    cluster.enqueue(0, 50, "new")
    cluster.shards[0].shard.park({"new": cluster.now_ms + 1000}, cluster.now_ms)
    cluster.consume(0)
    cluster.limit("new", RATE, BURST)
    cluster.run(990)
    assert len(cluster.deliveries) == 0
    cluster.run(110)
    assert BURST + 8 <= len(cluster.deliveries) <= BURST + 10
    cluster.limit("new", None)
    cluster.run(10)
    assert len(cluster.deliveries) == 50


# --- sessions and frames ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("trouble", [ClusterOfShards.restart, ClusterOfShards.new_session])
def test_a_shard_that_is_lost_and_returns_leaves_the_limit_as_it_is(trouble: Callable[[ClusterOfShards, int], None]) -> None:
    cluster = busy_cluster(count=3, loss=0.02)
    for round_ in range(6):
        trouble(cluster, round_ % 3)
        cluster.resubscribe(cluster.consumers[round_ % 3])
        cluster.run(500)
    assert worst_excess(cluster.deliveries, "t", RATE) <= BURST
    assert len(cluster.deliveries) >= 0.8 * 3.5 * RATE


def test_a_new_router_starts_with_empty_buckets_and_holds_the_limit() -> None:
    cluster = busy_cluster()
    before = len(cluster.deliveries)
    cluster.restart_bank()
    cluster.run(1000)
    assert worst_excess(cluster.deliveries, "t", RATE) <= BURST
    assert len(cluster.deliveries) - before >= 0.9 * RATE


@pytest.mark.parametrize("seed", range(5))
def test_lost_frames_never_raise_the_limit_nor_stop_anybody(seed: int) -> None:
    cluster = cluster_of(3, loss=0.3, seed=seed)
    for shard in range(3):
        cluster.enqueue(shard, 50, "t")
        cluster.consume(shard)
    cluster.run(120_000)
    assert worst_excess(cluster.deliveries, "t", RATE) <= BURST
    assert Counter(each.shard for each in cluster.deliveries) == dict.fromkeys(range(3), 50)


def test_the_last_word_of_a_shard_is_repeated_so_that_its_tokens_are_not_lost_to_the_others() -> None:
    cluster = cluster_of()
    cluster.limit("t", RATE, 1)
    cluster.enqueue(0, 1, "t")
    cluster.consume(0)
    cluster.run(1)
    cluster.loss = 1
    cluster.run(100)
    assert len(cluster.deliveries) == 1, "it was granted, spent, and the report was lost"
    cluster.loss = 0
    cluster.enqueue(1, 1, "t")
    cluster.consume(1)
    assert len(cluster.run(2000)) == 1


def test_a_busy_throttle_does_not_keep_another_from_repeating_what_was_lost() -> None:
    cluster = cluster_of(1)
    cluster.limit("u", RATE, BURST)
    cluster.loss = 1
    cluster.enqueue(0, 5, "u")
    cluster.consume(0)
    cluster.run(10)
    cluster.loss = 0
    cluster.enqueue(0, 1000, "t")
    cluster.run(2000)
    assert Counter(each.got.throttle_keys for each in cluster.deliveries)[("u",)] == 5


def test_a_shard_at_rest_is_left_alone() -> None:
    cluster = cluster_of()
    cluster.enqueue(0, 5, "t")
    cluster.consume(0)
    cluster.run(60_000)
    frames = cluster.frames
    cluster.run(3600_000)
    assert cluster.frames == frames


def test_a_shard_that_waits_long_seldom_repeats_itself() -> None:
    cluster = cluster_of()
    cluster.limit("t", 0, 1)
    cluster.enqueue(0, 5, "t")
    cluster.consume(0)
    cluster.run(1)
    cluster.loss = 1
    frames = cluster.frames
    cluster.run(60_000)
    assert cluster.frames - frames <= 20
