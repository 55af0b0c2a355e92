"""Tokens in trouble: limits that change, shards and routers that come and go, frames that are lost, consumers that leave."""

from collections import Counter
from collections.abc import Callable

import pytest

from fila_proto_zmq.commands import Cancel, DeleteQueue, Delivered, Pause, PurgeQueue, Receive, Unsubscribe
from fila_proto_zmq.ids import parse_id
from tests.support.cluster_of_shards import ClusterOfShards, Delivery, worst_excess
from tests.support.shard import ADMIN, opened

RATE, BURST = 100, 10


def cluster_of(count: int = 2, **options: float) -> ClusterOfShards:
    """Shards with a queue each, and a limit on the throttle key ``t``."""
    cluster = ClusterOfShards(count, **options)  # type: ignore[arg-type]
    for shard in range(count):
        cluster.create(shard)
    cluster.limit("t", RATE, BURST)
    return cluster


def busy_cluster(count: int = 2, **options: float) -> ClusterOfShards:
    """One whose shards all have messages and consumers for the same tokens, and had for a second."""
    cluster = cluster_of(count, **options)
    for shard in range(count):
        cluster.enqueue(shard, 2000, "t")
        cluster.consume(shard)
    cluster.run(1000)
    return cluster


def cost_of(deliveries: list[Delivery]) -> float:
    return sum(each.cost for each in deliveries)


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
    assert len(cluster.deliveries) == 4000


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
    assert len(cluster.deliveries) >= 0.8 * 4 * RATE


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


# --- tokens that nobody can use ---------------------------------------------------------------------------------------


def leave(cluster: ClusterOfShards) -> None:
    cluster.shards[0].ask(Unsubscribe(1), "q", b"consumer 0")


def die(cluster: ClusterOfShards) -> None:
    cluster.shards[0].goodbye(b"consumer 0")


def delete(cluster: ClusterOfShards) -> None:
    cluster.shards[0].ask(DeleteQueue(), "q", ADMIN)


def purge(cluster: ClusterOfShards) -> None:
    cluster.shards[0].ask(PurgeQueue(), "q", ADMIN)


def pause(cluster: ClusterOfShards) -> None:
    cluster.shards[0].ask(Pause(), "q", ADMIN)


def pause_key(cluster: ClusterOfShards) -> None:
    cluster.shards[0].ask(Pause(True, "default"), "q", ADMIN)


@pytest.mark.parametrize("stop", [leave, die, delete, purge, pause, pause_key])
@pytest.mark.parametrize("after_ms", [0, 1, 2, 3, 4, 5, 9])
def test_a_queue_that_stops_in_the_middle_leaves_all_tokens_to_others(
    stop: Callable[[ClusterOfShards], None], after_ms: int
) -> None:
    cluster = busy_cluster()
    cluster.run(after_ms)
    stop(cluster)
    cluster.run(100)
    seen = len(cluster.deliveries)
    assert len(cluster.run(2000)) >= 0.9 * 2 * RATE
    assert {each.shard for each in cluster.deliveries[seen:]} == {1}
    assert worst_excess(cluster.deliveries, "t", RATE) <= BURST


def test_many_waiting_keys_of_a_queue_that_nobody_reads_are_in_nobodys_way() -> None:
    cluster = cluster_of(1)
    cluster.create(0, "p")
    for number in range(200):
        cluster.enqueue(0, 5, "t", key=str(number))
    consumer = cluster.consume(0, prefetch=1, hold_ms=10)
    cluster.run(50)
    cluster.shards[0].ask(Unsubscribe(1), "q", consumer.client)
    cluster.enqueue(0, 2000, "t", queue="p")
    cluster.consume(0, "p")
    cluster.run(10_000)  # for so long somebody may come back
    assert len(cluster.run(1000)) >= 0.9 * RATE


def test_a_paused_queue_goes_on_with_its_tokens_when_it_is_resumed() -> None:
    cluster = busy_cluster(1)
    pause(cluster)
    assert len(cluster.run(1000)) == 0
    cluster.shards[0].ask(Pause(False), "q", ADMIN)
    assert 0.9 * RATE <= len(cluster.run(1000)) <= RATE + BURST


def test_a_busy_queue_without_a_throttle_does_not_make_its_shard_hoard_tokens() -> None:
    cluster = busy_cluster()
    cluster.create(0, "busy")
    cluster.enqueue(0, 10_000, queue="busy")
    cluster.consume(0, "busy", prefetch=20, hold_ms=5)
    leave(cluster)
    cluster.run(100)
    assert len(cluster.run(2000)) >= 0.9 * 2 * RATE


def test_slow_consumers_of_other_shards_do_not_starve_a_ready_one() -> None:
    cluster = cluster_of(4)
    for shard in range(4):
        cluster.enqueue(shard, 1000, "t")
        cluster.enqueue(shard, 1000, key="unlimited")
    for shard in range(3):
        cluster.consume(shard, prefetch=2, hold_ms=400)
    cluster.consume(3)
    cluster.run(1000)
    assert len([each for each in cluster.run(4000) if each.got.throttle_keys]) >= 0.9 * 4 * RATE


def test_a_consumer_that_is_busy_with_other_keys_gets_throttled_messages_too() -> None:
    """However slowly it works: their tokens wait for its next credit."""
    cluster = cluster_of(2)
    cluster.enqueue(0, 500, "t", key="limited")
    cluster.enqueue(0, 2000, key="unlimited")
    cluster.consume(0, prefetch=4, hold_ms=300)
    counts = Counter(each.got.key for each in cluster.run(30_000))
    assert counts["limited"] >= 90, f"at least one at a time: {counts}"


def test_a_costly_message_that_is_cancelled_leaves_no_debt_and_keeps_nobody_waiting() -> None:
    cluster = cluster_of()
    cluster.limit("t", RATE, BURST)
    cluster.enqueue(1, 200, "t")
    cluster.consume(1)
    cluster.run(500)
    (costly,) = cluster.shards[0].enqueue(b"", cost_milli=1_000_000, throttle_keys=[["t"]])
    cluster.enqueue(0, 200, "t")
    cluster.consume(0)
    cluster.run(20)
    cluster.shards[0].ask(Cancel(*parse_id(costly)), "q", ADMIN)
    cluster.run(4000)
    assert len(cluster.deliveries) == 400
    assert worst_excess(cluster.deliveries, "t", RATE) <= BURST


# --- receives that do not wait ----------------------------------------------------------------------------------------


def poll(cluster: ClusterOfShards, count: int = 100, shard: int = 0) -> int:
    """How many messages a receive gets that does not wait; acked."""
    harness = cluster.shards[shard]
    request = harness.send(Receive(count, 0), "q", b"poller")
    for _ in range(1000):
        if request in harness.late:
            reply = harness.late.pop(request)
            assert isinstance(reply, Delivered)
            got = opened(reply)
            if got:
                harness.ack(got)
            return len(got)
        cluster.run(1)
    raise AssertionError("a receive that does not wait is never answered")


def test_a_receive_that_does_not_wait_gets_what_the_bucket_allows() -> None:
    cluster = cluster_of(1)
    cluster.enqueue(0, 100, "t")
    assert poll(cluster) == BURST
    cluster.run(100)
    assert 9 <= poll(cluster) <= 11


def test_a_receive_that_does_not_wait_is_answered_at_once_when_the_bucket_is_empty() -> None:
    cluster = cluster_of(1)
    cluster.limit("t", 1, 1)
    cluster.enqueue(0, 100, "t")
    assert poll(cluster) == 1
    before_ms = cluster.now_ms
    assert poll(cluster) == 0
    assert cluster.now_ms - before_ms <= 5


def test_a_receive_that_does_not_wait_is_answered_even_if_the_bank_is_silent() -> None:
    cluster = cluster_of(1, loss=1)
    cluster.enqueue(0, 100, "t")
    before_ms = cluster.now_ms
    assert poll(cluster) == 0
    assert cluster.now_ms - before_ms <= 300


def test_polling_uses_the_limit() -> None:
    cluster = cluster_of(1)
    cluster.enqueue(0, 1000, "t")
    count = 0
    while cluster.now_ms < 1_000_000 + 5000:
        count += poll(cluster)
        cluster.run(20)
    assert 0.9 * 5 * RATE <= count <= BURST + 5.1 * RATE


def test_a_poller_beside_a_backlog_without_limits_gets_throttled_messages_too() -> None:
    cluster = cluster_of(2)
    cluster.enqueue(0, 500, "t", key="limited")
    cluster.enqueue(0, 3000, key="unlimited")
    harness = cluster.shards[0]
    counts: Counter[str] = Counter()
    for _ in range(40):
        got = harness.receive(10, client=b"poller")
        counts.update(each.key for each in got)
        cluster.run(500)
        harness.ack(got)
    assert counts["limited"] >= 39, f"at least one at a time: {counts}"
