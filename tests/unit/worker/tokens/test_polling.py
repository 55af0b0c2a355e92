"""Receives that do not wait: they get what the bucket allows now, which only the bank knows."""

from collections import Counter

from fila_proto_zmq.commands import Delivered, Receive
from tests.support.shard.cluster_of_shards import ClusterOfShards
from tests.support.shard.shard import opened
from tests.unit.worker.tokens.throttled import BURST, RATE, cluster_of


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
    cluster.enqueue(0, 300, "t")
    count = 0
    while cluster.now_ms < 1_000_000 + 2000:
        count += poll(cluster)
        cluster.run(20)
    assert 0.9 * 2 * RATE <= count <= BURST + 2.1 * RATE


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
