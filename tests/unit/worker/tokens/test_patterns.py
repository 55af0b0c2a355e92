"""Limits by patterns: each throttle key that begins so has a bucket of its own, and one that is full takes no memory."""

from collections import Counter

import pytest

from fila_proto_zmq.commands import DeleteQueue, PutConfig
from fila_router.core.tokens import token_bank
from tests.support.shard.cluster_of_shards import ClusterOfShards, Delivery, worst_excess

RATE, BURST = 20, 4


def tenants(count: int = 1, names: str = "abc", backlog: int = 100, pattern: str = "t:*") -> ClusterOfShards:
    """Shards whose messages have throttle keys ``t:a`` and so on, all under one pattern."""
    cluster = ClusterOfShards(count)
    for shard in range(count):
        cluster.create(shard)
        cluster.consume(shard)
    cluster.run(10_000)  # the bank is no new one
    if pattern:
        cluster.limit(pattern, RATE, BURST)
    for shard in range(count):
        for name in names:
            cluster.enqueue(shard, backlog, f"t:{name}", name)
    return cluster


def by_key(deliveries: list[Delivery]) -> Counter[str]:
    return Counter(each.got.key for each in deliveries)


@pytest.mark.parametrize("count", [1, 2])
def test_each_key_has_the_limit_for_itself(count: int) -> None:
    cluster = tenants(count)
    assert by_key(cluster.run(10)) == dict.fromkeys("abc", BURST), "a new bucket is full"
    cluster.run(1_990)
    for name, delivered in by_key(cluster.deliveries).items():
        assert worst_excess(cluster.deliveries, f"t:{name}", RATE) <= BURST
        assert 0.9 * RATE * 2 <= delivered <= BURST + 2 * RATE


def test_an_entry_of_the_key_wins_and_the_pattern_holds_again_without_it() -> None:
    cluster = tenants(names="ab")
    cluster.limit("t:a", 0, 0)
    cluster.run(1_000)
    assert by_key(cluster.deliveries)["a"] == 0
    cluster.limit("t:a", None, None)
    found = by_key(cluster.run(1_000))
    assert 0.9 * RATE <= found["a"] <= BURST + RATE
    assert worst_excess(cluster.deliveries, "t:a", RATE) <= BURST


def test_a_longer_pattern_comes_and_goes() -> None:
    cluster = tenants(names="ab")
    cluster.run(1_000)
    cluster.limit("t:a*", 2 * RATE, BURST)
    found = by_key(cluster.run(1_000))
    assert (found["a"] > 1.8 * RATE, found["b"] <= RATE + 1) == (True, True)
    cluster.limit("t:a*", None, None)
    cluster.run(20)
    found = by_key(cluster.run(1_000))
    assert found["a"] <= RATE + 1


def test_without_its_pattern_a_key_has_no_limit() -> None:
    cluster = tenants(names="ab")
    cluster.run(500)
    cluster.limit("t:*", None, None)
    cluster.run(20)
    assert by_key(cluster.deliveries) == {"a": 100, "b": 100}


def test_a_pattern_limits_keys_that_had_no_limit() -> None:
    cluster = tenants(names="ab", pattern="", backlog=0)
    cluster.enqueue(0, 3, "t:a u", "a")
    cluster.limit("u", 1000, 1000)  # the bank has an account of both keys
    cluster.enqueue(0, 3, "t:a u", "a")
    cluster.run(100)
    cluster.limit("t:*", RATE, BURST)
    cluster.enqueue(0, 100, "t:a u", "a")
    cluster.run(1_000)
    late = [each for each in cluster.deliveries if each.now_ms > 1_000_000 + 10_100]
    assert worst_excess(late, "t:a", RATE) <= BURST
    assert len(late) >= 0.9 * RATE


def test_after_a_restart_of_the_bank_the_buckets_are_empty() -> None:
    cluster = tenants(names="a")
    cluster.run(100)
    cluster.restart_bank()
    restarted_ms = cluster.now_ms
    cluster.run(1_000)
    late = [each for each in cluster.deliveries if each.now_ms > restarted_ms + 2]
    assert worst_excess(cluster.deliveries, "t:a", RATE) <= BURST + 1
    assert len(late) <= RATE
    cluster.limit("t:*", RATE, 2 * BURST)  # a change makes them no fuller
    cluster.enqueue(0, 1, "t:new", "new")
    cluster.run(1)
    assert cluster.bank.buckets["t:new"].level < 2 * BURST * 1_000_000 or cluster.now_ms - restarted_ms > 400


def test_full_buckets_are_forgotten_and_keys_out_of_use_take_no_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("fila_worker.core.model.token_client.IDLE_THROTTLES_MAX", 0)
    names = [f"n{number}" for number in range(30)]
    cluster = tenants(names=names, backlog=2)  # type: ignore[arg-type]
    cluster.limit("t:n0", RATE, BURST)
    cluster.run(1_000)
    assert len(cluster.bank.buckets) == 30
    for _ in range(4):  # a quarter of them each time
        cluster.bank.sweep(cluster.now_ms)
    assert list(cluster.bank.buckets) == ["t:n0"], "a key with an entry of its own keeps its bucket"
    cluster.enqueue(0, 100, "t:n1", "n1")
    cluster.run(500)
    assert worst_excess(cluster.deliveries, "t:n1", RATE) <= BURST
    cluster.shards[0].ask(DeleteQueue(force=True))
    cluster.consumers.clear()
    cluster.run(10_000)
    client = cluster.shards[0].shard.token_client
    assert (set(client.by_key), set(client.levels), set(client.traffic)) == (set(), {"t:n0"}, {"t:n0"})


def test_a_bucket_in_debt_is_not_forgotten() -> None:
    cluster = tenants(names="a", backlog=BURST)
    cluster.run(20)
    for _ in range(4):
        cluster.bank.sweep(cluster.now_ms)
    assert "t:a" in cluster.bank.buckets


def test_an_account_that_waits_elsewhere_is_charged_by_a_bucket_that_was_forgotten() -> None:
    cluster = tenants(names="", pattern="")
    cluster.limit("t:*", 0.001, BURST)
    cluster.limit("slow", 1, 1)
    cluster.enqueue(0, 2, "slow", "x")
    cluster.run(100)
    cluster.enqueue(0, 20, "slow t:a", "x")
    cluster.run(100)
    for _ in range(4):
        cluster.bank.sweep(cluster.now_ms)
    assert "t:a" not in cluster.bank.buckets
    cluster.run(4_500)
    assert len(cluster.deliveries) in {4, 5}
    assert cluster.bank.buckets["t:a"].level < (BURST - 1) * 1_000_000


def test_beyond_the_bound_new_keys_wait_until_others_are_full(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(token_bank, "BUCKETS_MAX", 2)
    cluster = tenants(names="ab", backlog=BURST)
    cluster.run(10)
    cluster.enqueue(0, 1, "t:c", "c")
    cluster.run(100)
    assert by_key(cluster.deliveries) == {"a": BURST, "b": BURST}
    cluster.run(1_000)
    for _ in range(4):
        cluster.bank.sweep(cluster.now_ms)
    cluster.run(5_000)
    assert by_key(cluster.deliveries)["c"] == 1


def test_a_whole_config_may_bring_patterns() -> None:
    cluster = tenants(names="ab", pattern="")
    cluster.run(10)
    whole: dict[str, str | None] = {"throttle:t:*:rate": "0", "throttle:t:*:burst": "0"}
    cluster.bank.adopt({key: str(value) for key, value in whole.items()}, cluster.now_ms)
    for harness in cluster.shards:
        harness.shard.put_config(PutConfig(9, whole, True), cluster.now_ms)
    cluster.enqueue(0, 5, "t:c", "c")
    cluster.run(100)
    assert by_key(cluster.deliveries)["c"] == 0
