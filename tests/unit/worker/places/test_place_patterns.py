"""Concurrency by patterns: each throttle key that begins so has places of its own."""

from collections import Counter

import pytest

from fila_proto_zmq.commands import DeleteQueue, ListThrottles, ThrottleStats, joined_throttles
from fila_worker.core.effects import ClientCall
from fila_worker.core.manage.throttles import list_throttles
from tests.support.shard.placed_shards import PlacedShards
from tests.support.shard.shard import ADMIN


def tenants(most: int | None = 2, *shards: int) -> PlacedShards:
    """Messages of ``t:a`` and ``t:b`` on some shards, with consumers, under the pattern ``t:*``."""
    cluster = PlacedShards()
    cluster.limit("t:*", most)
    for shard in shards or (1, 2):
        for name in "ab":
            cluster.enqueue(shard, 20, f"t:{name}", fairness_key=name)
        cluster.consume(shard)
    return cluster


def leased(cluster: PlacedShards) -> tuple[int, int]:
    return cluster.leased("t:a"), cluster.leased("t:b")


def shown(cluster: PlacedShards, prefix: str = "") -> list[ThrottleStats]:
    """The list of throttle keys, as the router joins it."""
    stations = [cluster[shard] for shard in range(cluster.count)]
    return joined_throttles(
        list_throttles(station.shard, ClientCall(ADMIN, 1, "", station.now_ms), ListThrottles(prefix)) for station in stations
    ).throttles


def test_each_key_has_places_of_its_own_over_all_shards() -> None:
    assert leased(tenants()) == (2, 2)


def test_an_entry_of_the_key_wins_and_the_pattern_holds_again_without_it() -> None:
    cluster = tenants()
    cluster.limit("t:a", 5)
    assert leased(cluster) == (5, 2)
    cluster.limit("t:a", None)
    for shard in (1, 2):
        cluster.ack(shard, cluster.taken(shard))
    assert leased(cluster) == (2, 2)


def test_the_longest_pattern_holds() -> None:
    cluster = tenants(1)
    cluster.limit("t:a*", 4)
    assert leased(cluster) == (4, 1)
    cluster.limit("t:*", 3)
    assert leased(cluster) == (4, 3)


def test_without_its_pattern_a_key_has_no_limit() -> None:
    cluster = tenants()
    cluster.limit("t:*", None)
    assert leased(cluster) == (40, 40)


def test_a_pattern_begins_with_what_is_leased() -> None:
    cluster = tenants(None, 1)
    assert leased(cluster) == (20, 20)
    cluster.limit("t:*", 3)
    cluster.enqueue(2, 20, "t:a")
    cluster.consume(2)
    assert leased(cluster) == (20, 20)
    cluster.ack(1, cluster.taken(1))
    assert leased(cluster) == (3, 0)


def test_a_whole_config_with_other_patterns_holds_at_once() -> None:
    cluster = tenants()
    for shard in range(cluster.count):
        cluster[shard].restart()
    assert leased(cluster) == (2, 2)
    cluster.version += 1
    cluster.tell({"throttle:t:*:concurrency": None, "throttle:*:concurrency": "3"})
    for shard in (1, 2):
        cluster[shard].heartbeat(b"consumer %d" % shard)
        cluster.consume(shard)
    assert leased(cluster) == (3, 3)


def test_a_list_has_what_is_leased_and_waits_on_all_shards() -> None:
    cluster = tenants()
    cluster.limit("t:b", 7)
    assert shown(cluster) == [
        ThrottleStats("t:*", concurrency=2),
        ThrottleStats("t:a", concurrency=2, in_use=2, waiting=38),
        ThrottleStats("t:b", concurrency=7, in_use=7, waiting=33),
    ]
    got = cluster.taken(1)
    cluster.ack(1, got)
    acked = sum(each.throttle_keys == ("t:a",) for each in got)
    assert [(each.in_use, each.waiting) for each in shown(cluster, "t:a")] == [(2, 38 - acked)]


def test_the_statistics_of_a_queue_have_the_limits_of_patterns() -> None:
    cluster = tenants(2, 1)
    assert cluster[1].stats().throttles == [
        ThrottleStats(f"t:{name}", concurrency=2, in_use=2, waiting=18) for name in "ab"
    ]  # fmt: skip


@pytest.mark.parametrize("kept", [0, 5])
def test_keys_out_of_use_take_no_memory(kept: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("fila_worker.core.places.bank.KEYS_KEPT_MAX", kept)
    monkeypatch.setattr("fila_worker.core.model.token_client.IDLE_THROTTLES_MAX", 0)
    cluster = PlacedShards()
    cluster.limit("t:*", 1)
    for shard in (1, 2):
        cluster.consume(shard)
    for number in range(40):
        for shard in (1, 2):
            cluster.enqueue(shard, 2, f"t:{number}")
        while cluster.leased(f"t:{number}"):
            for shard in (1, 2):
                cluster.ack(shard, cluster.taken(shard))
                cluster[shard].heartbeat(b"consumer %d" % shard)
        cluster.pass_time(10)
    assert [cluster[shard].counts() for shard in (1, 2)] == [(0, 0, 0)] * 2
    assert len(cluster.bank.keys) <= kept + 5
    for shard in (1, 2):  # with the lanes, which may be used again
        cluster[shard].ask(DeleteQueue(force=True), "q", ADMIN)
        cluster[shard].create("other")
        cluster.consume(shard, queue="other")
    for _ in range(30):
        for shard in (1, 2):
            cluster.enqueue(shard, 1, "t:last", queue="other")
            cluster.ack(shard, cluster.taken(shard), "other")
    for shard in range(cluster.count):
        state = cluster[shard].shard
        assert max(len(state.places.keys), len(state.places.lines), len(state.token_client.traffic)) <= 10
        state.check()


def test_a_key_that_the_bank_has_forgotten_is_opened_again_and_its_limit_holds(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("fila_worker.core.places.bank.KEYS_KEPT_MAX", 0)
    cluster = tenants(1, 1)
    for _ in range(20):
        cluster.ack(1, cluster.taken(1))
        cluster[1].heartbeat(b"consumer 1")
    assert cluster[1].counts() == (0, 0, 0)
    cluster.pass_time(100)
    cluster.enqueue(1, 1)  # some work
    for each in range(5):
        cluster.enqueue(1, 1, f"t:{each}", fairness_key="z")
        cluster.ack(1, cluster.taken(1))
        cluster.pass_time(100)
    assert "t:a" not in cluster.bank.keys
    for shard in (1, 2):
        cluster.enqueue(shard, 5, "t:a")
    cluster.consume(2)
    assert cluster.leased("t:a") == 1


def many_tenants(count: int, each: int) -> PlacedShards:
    cluster = PlacedShards()
    cluster.limit("t:*", 1)
    for number in range(count):
        cluster.enqueue(1, each, f"t:{number}", fairness_key=str(number))
    return cluster


def test_a_change_of_one_key_looks_at_no_other_and_one_of_a_pattern_at_some_a_turn(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("fila_worker.core.places.bank.GRANTS_MAX", 5)
    cluster = many_tenants(40, 3)
    cluster.consume(1, prefetch=1000)
    cluster.pass_time(1000)
    assert cluster[1].counts() == (80, 40, 0)
    looked, limit, follow = Counter[str](), cluster.bank._limit, cluster.bank._follow_some
    turns: list[int] = []
    monkeypatch.setattr(cluster.bank, "_limit", lambda name: looked.update([name]) or limit(name))
    cluster.limit("t:7", 3)
    assert set(looked) <= {"t:7"}
    assert cluster.leased("t:7") == 3

    def counted() -> None:
        looked.clear()
        follow()
        turns.append(len(looked))

    monkeypatch.setattr(cluster.bank, "_follow_some", counted)
    cluster.limit("t:*", 2)
    cluster.pass_time(1000)
    assert 1 <= max(turns) <= 5
    assert cluster[1].counts() == (120 - 81, 81, 0)


def test_no_more_tenants_want_places_than_consumers_take_messages() -> None:
    cluster = many_tenants(300, 1)
    cluster.consume(1, prefetch=10)
    assert cluster[1].counts() == (290, 10, 0)
    assert len(cluster.bank.keys) <= 40
    for _ in range(29):
        cluster.ack(1, cluster.taken(1))
    assert cluster[1].counts() == (0, 10, 0)


def test_wants_that_a_new_bank_hears_again_are_no_more_than_before() -> None:
    cluster = many_tenants(9, 1)
    cluster.stopped.add(0)
    cluster.consume(1, prefetch=1)
    assert cluster[1].counts() == (9, 0, 0)
    cluster.stopped.clear()
    cluster[0].restart()
    cluster.pass_time(3000)
    assert cluster[1].counts() == (8, 1, 0)
