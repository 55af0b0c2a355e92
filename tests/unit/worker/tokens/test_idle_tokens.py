"""Tokens that a shard cannot use, or not yet: the others get them, and nothing is remembered for ever."""

from collections import Counter
from collections.abc import Callable

import pytest

from fila_proto_zmq.commands import Cancel, DeleteQueue, Pause, PurgeQueue, QueueOptions, Unsubscribe, UpdateQueue
from fila_proto_zmq.ids import parse_id
from tests.support.shard.cluster_of_shards import ClusterOfShards, worst_excess
from tests.support.shard.shard import ADMIN, SHARDS
from tests.unit.worker.tokens.throttled import BURST, RATE, busy_cluster, cluster_of

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
    assert len(cluster.run(1000)) >= 0.9 * RATE
    assert {each.shard for each in cluster.deliveries[seen:]} == {1}
    assert worst_excess(cluster.deliveries, "t", RATE) <= BURST


def test_many_waiting_keys_of_a_queue_without_consumers_hold_up_no_other_queue() -> None:
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


def test_a_full_queue_leaves_all_tokens_to_others() -> None:
    cluster = cluster_of(1)
    cluster.create(0, "p")
    cluster.shards[0].ask(UpdateQueue(QueueOptions(max_in_flight=1), ["max_in_flight"]), "q", ADMIN)
    cluster.limit("t", 0, SHARDS)
    cluster.enqueue(0, 100, "t")
    cluster.consume(0, hold_ms=60_000)
    cluster.run(500)
    cluster.enqueue(0, 100, "t", queue="p")
    cluster.consume(0, "p")
    assert [each.queue for each in cluster.run(500)] == ["p"] * (SHARDS - 1)


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


def test_a_costly_message_that_is_cancelled_leaves_no_debt_and_holds_up_no_message() -> None:
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


# --- what is remembered -----------------------------------------------------------------------------------------------


def test_a_lane_that_is_always_busy_leaves_nothing_behind() -> None:
    cluster = cluster_of(1)
    cluster.limit("t", 20_000, 2000)
    consumer = cluster.consume(0, prefetch=50, hold_ms=1)
    for _ in range(20):
        cluster.enqueue(0, 300, "t")
        cluster.run(15)
    assert len(cluster.deliveries) > 4000
    throttling = cluster.shards[0].shard.token_client
    assert len(throttling._holds) <= 1
    assert len(throttling._repeats) <= 2000
    cluster.resubscribe(consumer, 1)
    cluster.run(60_000)
    assert (throttling._holds, throttling._repeats) == ([], [])


def test_throttles_whose_lanes_are_gone_are_forgotten_in_time() -> None:
    cluster = cluster_of(1)
    for number in range(30):
        queue = f"short-lived-{number}"
        cluster.create(0, queue)
        for key in range(50):
            cluster.enqueue(0, 1, f"key-{number}-{key} t", key=str(key), queue=queue)
        cluster.consume(0, queue)
        cluster.run(10)
        cluster.shards[0].ask(DeleteQueue(), queue, ADMIN)
    throttling = cluster.shards[0].shard.token_client
    assert len(throttling.throttles) <= 1001
    assert len(throttling.by_key) <= 1002
    cluster.new_session(0)
    assert (throttling.throttles, throttling.by_key) == ({}, {})
