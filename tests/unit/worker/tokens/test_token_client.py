"""Throttles: a limit that holds over all shards, is used up, and holds up its own messages only."""

from collections import Counter

import pytest

from fila_proto_zmq.commands import PurgeQueue
from tests.support.shard.cluster_of_shards import ClusterOfShards, Delivery, worst_excess
from tests.unit.worker.tokens.throttled import BURST, RATE, cluster_of


def keys_of(deliveries: list[Delivery]) -> Counter[str]:
    return Counter(each.got.key for each in deliveries)


def assert_limit_is_held_and_used(deliveries: list[Delivery], span_ms: int, rate: float = RATE, burst: float = BURST) -> None:
    assert worst_excess(deliveries, "t", rate) <= burst
    cost = sum(each.cost for each in deliveries)
    assert 0.9 * rate * span_ms / 1000 <= cost <= burst + rate * span_ms / 1000


# --- the limit --------------------------------------------------------------------------------------------------------


def test_a_full_bucket_goes_out_at_once_then_the_rate() -> None:
    cluster = cluster_of(1)
    cluster.enqueue(0, 1000, "t")
    cluster.consume(0)
    assert len(cluster.run(10)) in {BURST, BURST + 1}
    cluster.run(1990)
    assert_limit_is_held_and_used(cluster.deliveries, 2000)


def test_a_throttle_key_without_a_rate_limits_nothing() -> None:
    cluster = cluster_of(1)
    cluster.enqueue(0, 1000, "other")
    cluster.consume(0)
    cluster.run(1)
    assert len(cluster.deliveries) == 1000


@pytest.mark.parametrize("count", [2, 4])
def test_all_shards_share_one_limit(count: int) -> None:
    cluster = cluster_of(count)
    for shard in range(count):
        cluster.enqueue(shard, 1000, "t")
        cluster.consume(shard)
    assert_limit_is_held_and_used(cluster.run(2000), 2000)
    by_shard = Counter(each.shard for each in cluster.deliveries)
    assert max(by_shard.values()) <= 1.2 * min(by_shard.values())


def test_a_lone_shard_gets_all_of_a_limit_that_others_leave() -> None:
    cluster = cluster_of(3)
    cluster.enqueue(1, 20, "t")
    cluster.enqueue(2, 1000, "t")
    for shard in range(3):
        cluster.consume(shard)
    cluster.run(1000)
    assert_limit_is_held_and_used(cluster.run(2000), 2000)


def test_costs_are_charged_to_a_thousandth() -> None:
    cluster = cluster_of(1)
    cluster.enqueue(0, 3000, "t", cost_milli=250)
    cluster.consume(0)
    assert_limit_is_held_and_used(cluster.run(2000), 2000)
    assert 4 * 0.9 * 200 <= len(cluster.deliveries) <= 4 * 210


def test_tokens_for_a_cost_above_the_burst_pay_for_no_others_above_it() -> None:
    cluster = cluster_of(1, wire_ms=20)
    cluster.enqueue(0, 1, "t", cost_milli=70_000)
    cluster.consume(0)
    cluster.run(30)  # its tokens are on their way
    cluster.shards[0].ask(PurgeQueue())
    cluster.enqueue(0, 2, "t", cost_milli=25_000)
    times = [each.now_ms for each in cluster.run(1000)]
    assert len(times) == 2
    assert times[1] - times[0] >= 250, "15 owed, then 10 for a full bucket"


def test_a_cost_above_the_burst_waits_for_a_full_bucket_and_leaves_it_in_debt() -> None:
    cluster = cluster_of(1)
    cluster.enqueue(0, 2, "t", cost_milli=30_000)
    cluster.enqueue(0, 5, "t")
    cluster.consume(0)
    times = [each.now_ms - 1_000_000 for each in cluster.run(1000)]
    assert times[0] <= 2
    assert 300 <= times[1] <= 305, "20 owed, then 10 for a full bucket"
    assert 510 <= times[2] <= 530, "20 owed, then 1"


def test_limits_of_several_keys_are_charged_together_or_not_at_all() -> None:
    cluster = cluster_of(1)
    cluster.limit("slow", 10, 1)
    cluster.enqueue(0, 1000, "slow t slow", key="both")
    cluster.enqueue(0, 1000, "t", key="one")
    cluster.consume(0, prefetch=2000)
    assert_limit_is_held_and_used(cluster.run(5000), 5000)
    assert worst_excess(cluster.deliveries, "slow", 10) <= 1
    assert 45 <= keys_of(cluster.deliveries)["both"] <= 51


def test_a_limit_of_zero_lets_nothing_through_but_the_burst() -> None:
    cluster = cluster_of(1)
    cluster.limit("zero", 0, 3)
    cluster.enqueue(0, 10, "zero")
    cluster.consume(0)
    assert len(cluster.run(60_000)) == 3


# --- what is told of buckets ------------------------------------------------------------------------------------------


def tokens(cluster: ClusterOfShards, shard: int = 0) -> float:
    """What a shard says is in the bucket ``t``."""
    (bucket,) = cluster.shards[shard].stats().throttles
    assert bucket.key == "t"
    return bucket.tokens


def test_a_new_bucket_that_is_unused_is_shown_as_full() -> None:
    cluster = cluster_of(1)
    cluster.enqueue(0, 10, "t")
    assert tokens(cluster) == BURST


def test_a_bucket_that_is_changed_is_shown_with_the_tokens_it_had() -> None:
    cluster = cluster_of(1)
    cluster.limit("t", 0, 8)
    cluster.enqueue(0, 20, "t")
    cluster.limit("t", 0, 50)
    assert tokens(cluster) == 50  # nobody drew on it yet: it is still a new one
    cluster.limit("t", 0, 5)
    cluster.consume(0)
    assert len(cluster.run(100)) == 5
    cluster.limit("t", 0, 10)
    assert tokens(cluster) == 0
    cluster.limit("t", None)
    cluster.limit("t", 0, 7)
    assert tokens(cluster) == 7


def test_a_bucket_is_shown_as_empty_after_a_restart_and_fills_at_its_rate() -> None:
    cluster = cluster_of(1)
    cluster.limit("t", 10, 8)
    cluster.enqueue(0, 10, "t")
    cluster.restart(0)
    assert tokens(cluster) == 0
    cluster.run(500)
    assert tokens(cluster) == 5
    cluster.run(5000)
    assert tokens(cluster) == 8


# --- in nobody's way --------------------------------------------------------------------------------------------------


def test_a_throttled_message_blocks_no_other_message_of_its_fairness_key() -> None:
    cluster = cluster_of(1)
    cluster.limit("closed", 0, 1)
    for throttles in ("closed", "t", "", "t closed"):
        cluster.enqueue(0, 5, throttles)
    cluster.consume(0)
    cluster.run(1000)
    assert Counter(each.got.throttle_keys for each in cluster.deliveries) == {("closed",): 1, ("t",): 5, (): 5}


def test_throttled_messages_cost_their_key_no_share_of_the_others() -> None:
    cluster = cluster_of(1)
    cluster.limit("closed", 0, 1)
    cluster.enqueue(0, 500, "closed", key="a")
    for key in "ab":
        cluster.enqueue(0, 500, key=key)
    got = cluster.shards[0].receive(200)
    assert Counter(each.key for each in got) == {"a": 100, "b": 100}


@pytest.mark.parametrize("weights", [(1, 1), (1, 3), (2, 5)])
def test_keys_that_wait_for_the_same_tokens_share_them_by_weight(weights: tuple[int, int]) -> None:
    cluster = cluster_of(1)
    for key, weight in zip("ab", weights, strict=True):
        cluster.enqueue(0, 1000, "t", key=key, weight=weight)
    cluster.consume(0)
    counts = keys_of(cluster.run(5000))
    for key, weight in zip("ab", weights, strict=True):
        share = len(cluster.deliveries) * weight / sum(weights)
        assert abs(counts[key] - share) <= max(0.05 * share, weight), counts


@pytest.mark.parametrize("weights", [(1, 1), (1, 3), (5, 2)])
def test_so_do_keys_of_different_queues(weights: tuple[int, int]) -> None:
    cluster = cluster_of(1)
    cluster.create(0, "p")
    for queue, weight in zip("pq", weights, strict=True):
        cluster.enqueue(0, 1000, "t", queue=queue, weight=weight)
        cluster.consume(0, queue)
    cluster.run(5000)
    counts = Counter(each.queue for each in cluster.deliveries)
    for queue, weight in zip("pq", weights, strict=True):
        share = len(cluster.deliveries) * weight / sum(weights)
        assert abs(counts[queue] - share) <= max(0.05 * share, weight), counts


def test_what_a_key_used_while_no_other_waited_does_not_count() -> None:
    cluster = cluster_of(1)
    cluster.enqueue(0, 5000, "t", key="a")
    cluster.consume(0)
    cluster.run(5000)
    cluster.enqueue(0, 1000, "t", key="b")
    counts = keys_of(cluster.run(2000))
    assert abs(counts["a"] - counts["b"]) <= 0.05 * counts["a"] + 2, counts


def test_a_key_beside_busy_ones_without_a_throttle_gets_its_tokens() -> None:
    cluster = cluster_of(1)
    for key in "xyz":
        cluster.enqueue(0, 9000, key=key)
    cluster.enqueue(0, 1000, "t", key="a")
    cluster.consume(0, prefetch=50, hold_ms=10)
    counts = keys_of(cluster.run(2000))
    assert counts["a"] >= 0.9 * 2 * RATE, counts


def test_a_new_key_waits_for_the_bank_and_for_no_round_of_the_busy_ones() -> None:
    cluster = cluster_of(1)
    for number in range(100):
        cluster.enqueue(0, 50, key=str(number))
    cluster.consume(0, prefetch=1, hold_ms=1)
    cluster.run(150)
    cluster.enqueue(0, 5, "t", key="new")
    counts = keys_of(cluster.run(10))
    assert counts["new"] >= 1, counts
