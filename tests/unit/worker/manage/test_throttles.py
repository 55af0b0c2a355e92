"""The list of throttle keys: their limits, their tokens, and how many messages wait for them."""

import pytest

from fila_proto_zmq.commands import ListThrottles, PutConfig, ThrottleList, ThrottleStats, joined_throttles
from fila_worker.core.effects import ClientCall
from fila_worker.core.manage import throttles
from fila_worker.core.manage.throttles import list_throttles
from tests.support.shard.shard import ShardHarness
from tests.unit.worker.tokens.throttled import cluster_of

CONFIG: dict[str, str | None] = {
    "throttle:api:rate": "5", "throttle:api:burst": "8", "throttle:api:concurrency": "3", "throttle:tenant:a:concurrency": "2",
    "throttle:tenant:b:rate": "1", "throttle:tenant:b:rate_min": "0.5", "namespace:n:max_enqueues_per_minute": "1", "app": "x",
}  # fmt: skip


def listed(shard: ShardHarness, prefix: str = "", after: str = "") -> ThrottleList:
    call = ClientCall(b"operator", 1, "", shard.now_ms)
    return list_throttles(shard.shard, call, ListThrottles(prefix, after))


@pytest.fixture
def shard() -> ShardHarness:
    harness = ShardHarness()
    harness.shard.put_config(PutConfig(1, CONFIG), harness.now_ms)
    harness.turn()
    return harness


def test_each_key_with_a_limit_is_listed(shard: ShardHarness) -> None:
    assert listed(shard).throttles == [
        ThrottleStats("api", 5.0, 8.0, 8.0, 3, rate_in_force=5.0),
        ThrottleStats("tenant:a", concurrency=2),
        ThrottleStats("tenant:b", 1.0, 1.0, 1.0, rate_min=0.5, rate_in_force=1.0),
    ]


def test_pages_and_prefixes(shard: ShardHarness, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(throttles, "LIST_THROTTLES_MAX", 2)
    first = listed(shard)
    second = listed(shard, after=first.throttles[-1].key)
    assert [each.key for each in first.throttles + second.throttles] == ["api", "tenant:a", "tenant:b"]
    assert (first.next, second.next) == ("tenant:a", "")
    assert [each.key for each in listed(shard, "tenant:").throttles] == ["tenant:a", "tenant:b"]


def test_a_key_without_limits_is_listed_no_more(shard: ShardHarness) -> None:
    gone: dict[str, str | None] = {"throttle:api:rate": None, "throttle:tenant:a:concurrency": None}
    shard.shard.put_config(PutConfig(2, gone), shard.now_ms)
    assert [each.key for each in listed(shard).throttles] == ["api", "tenant:b"]
    shard.shard.put_config(PutConfig(3, {"throttle:api:burst": None, "throttle:api:concurrency": None}), shard.now_ms)
    assert [each.key for each in listed(shard).throttles] == ["tenant:b"]


def test_the_keys_are_the_same_after_a_restart(shard: ShardHarness) -> None:
    before = [each.key for each in listed(shard).throttles]
    shard.restart()
    assert [each.key for each in listed(shard).throttles] == before


def test_messages_that_wait_for_tokens_are_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    cluster = cluster_of(2)
    cluster.limit("t", 0, 2)
    for index in range(2):
        cluster.enqueue(index, 5, "t")
        cluster.enqueue(index, 3, "t u")
        cluster.consume(index)
    cluster.run(200)
    pages = [listed(shard) for shard in cluster.shards]
    (of_all,) = joined_throttles(pages).throttles
    assert (of_all.key, of_all.waiting, of_all.tokens) == ("t", 16 - 2, 0.0)
    monkeypatch.setattr(throttles, "LANES_COUNTED_MAX", 1)
    assert listed(cluster.shards[0]).throttles[0].waiting <= 5


def test_pages_of_shards_are_joined_up_to_where_one_may_lack_something() -> None:
    first = ThrottleList([ThrottleStats("a", 1.0, 1.0, 0.5, in_use=2, waiting=1), ThrottleStats("b", waiting=2)], "bb")
    second = ThrottleList([ThrottleStats("a", 1.0, 1.0, 0.25, in_use=3, waiting=4), ThrottleStats("b"), ThrottleStats("c")])
    assert joined_throttles([first, second]) == ThrottleList(
        [ThrottleStats("a", 1.0, 1.0, 0.25, in_use=5, waiting=5), ThrottleStats("b", waiting=2)], "bb"
    )
    assert joined_throttles([ThrottleList([], "a"), second]).next == "a"
    assert joined_throttles([]) == ThrottleList([])


def test_keys_in_use_under_a_pattern_are_listed() -> None:
    cluster = cluster_of(1)
    cluster.limit("t*", 4, 3)
    cluster.limit("tenant:b", 0, 0)
    for key in ("tenant:a", "tenant:b", "other"):
        cluster.enqueue(0, 2, key)
    (shard,) = cluster.shards
    rows = {each.key: (each.rate, each.burst, each.tokens) for each in listed(shard).throttles}
    assert rows == {
        "t": (100.0, 10.0, 10.0), "t*": (4.0, 3.0, None), "tenant:a": (4.0, 3.0, 3.0), "tenant:b": (0.0, 0.0, 0.0)
    }  # fmt: skip


def test_a_page_that_finds_nothing_says_where_the_next_one_begins(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(throttles, "LOOKS_MAX", 2)
    cluster = cluster_of(1)
    cluster.limit("z*", 4, 3)
    for key in ("a", "b", "c", "za"):
        cluster.enqueue(0, 1, key)
    (shard,) = cluster.shards
    found, after = [], ""
    while True:
        page = listed(shard, after=after)
        found += [each.key for each in page.throttles]
        if not page.next:
            break
        after = page.next
    assert found == ["t", "z*", "za"]
