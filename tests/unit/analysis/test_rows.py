"""What two looks say, row by row."""

import pytest

from fila_cluster.client.views import KeyStats, QueueInfo, QueueStats
from fila_cluster.ops.analysis.rates import rates
from fila_cluster.ops.analysis.rows import DEPTHS_KEPT, KnownQueues, QueueRow, key_rows, queue_rows, worker_rows
from fila_cluster.ops.top.poller import summary
from fila_proto_zmq.commands import Metrics, QueueMetrics, RouterMetrics
from tests.unit.analysis.looks import STARTED_MS, hooks, look, of_queues, queue, shard, worker


def rows_of(now: Metrics, before: Metrics | None = None, memory: KnownQueues | None = None) -> dict[str, QueueRow]:
    memory = memory or KnownQueues()
    memory.note(now, [])
    return {row.name: row for row in queue_rows(now, [], rates(now, before, 2.0), memory)}


def test_a_queue_with_its_rates_and_its_dead_letters():
    before = of_queues(queue(enqueued=10, delivered=8, acked=2))
    now = of_queues(
        queue(pending=3, in_flight=2, delayed=1, oldest_ms=1500, enqueued=20, delivered=14, acked=4),
        queue("orders.dlq", pending=7),
    )
    row = rows_of(now, before)["orders"]
    assert (row.pending, row.in_flight, row.delayed, row.depth) == (3, 2, 1, 6)
    assert (row.enqueued_per_s, row.delivered_per_s, row.acked_per_s) == (5, 3, 1)
    assert (row.oldest_pending_age, row.consumers, row.dead_letters, row.depths) == (1.5, 1, 7, (6,))


def test_what_is_not_known_is_none():
    row = rows_of(of_queues(queue()))["orders"]
    assert (row.enqueued_per_s, row.oldest_pending_age, row.dead_letters) == (None, None, None)


@pytest.mark.parametrize(
    ("told", "state"),
    [
        (queue(), "idle"),
        (queue(delayed=3), "idle"),
        (queue(delivered=5), "active"),  # nothing is left waiting
        (queue(pending=1), "active"),
        (queue(in_flight=1), "active"),
        (queue(pending=1, consumers=0), "unread"),
        (queue(pending=1, consumers=0, delivered=5), "active"),  # read now and then
        (queue(pending=1, consumers=0, paused=True), "paused"),
        (queue(pending=1, paused=True, hooks=hooks(failed=3, breaker_open=True)), "breaker"),
    ],
)
def test_states(told: QueueMetrics, state: str):
    assert rows_of(of_queues(told), of_queues(queue()))["orders"].state == state


def test_queues_that_are_left_out_have_no_rates():
    now, memory = of_queues(queue("shown"), left_out=2), KnownQueues()
    left_out = [QueueInfo("more", 3, 2, 1, 6, 1, False, False, 0), QueueInfo("more.dlq", 4, 0, 0, 4, 0, False, True, 0)]
    memory.note(now, left_out)
    rows = {row.name: row for row in queue_rows(now, left_out, rates(now, None, 1.0), memory)}
    assert list(rows) == ["more", "more.dlq", "shown"]
    more = rows["more"]
    assert (more.state, more.pending, more.depth, more.dead_letters, more.enqueued_per_s) == ("active", 3, 6, 4, None)


def test_queues_of_a_shard_that_does_not_answer_keep_their_names_and_no_number():
    memory = KnownQueues()
    zero, one = worker("worker-0", shard(0, queue("a", pending=5))), worker("worker-1", shard(1, queue("b")))
    rows_of(look(zero, one), memory=memory)
    rows = rows_of(look(one, down=("worker-0",)), memory=memory)
    assert rows["a"] == QueueRow("a", "down", 0, is_dead_letter=False)
    assert rows["b"].pending == 0
    silent = look(zero, one)
    del silent.workers[0]
    assert rows_of(silent, memory=memory)["a"] == QueueRow("a", "silent", 0, is_dead_letter=False)


def test_queues_that_were_deleted_are_forgotten():
    memory = KnownQueues()
    rows_of(of_queues(queue("a"), queue("b")), memory=memory)
    assert list(rows_of(of_queues(queue("b")), memory=memory)) == ["b"]
    assert memory.depths("a") == ()


def test_memory_keeps_the_last_depths():
    memory = KnownQueues()
    for depth in range(DEPTHS_KEPT + 5):
        memory.note(of_queues(queue(pending=depth)), [])
    assert memory.depths("orders") == tuple(range(5, DEPTHS_KEPT + 5))


def test_workers_that_answer_and_one_that_is_down():
    before = look(worker("worker-0", shard(0, commits=1), cpu_ms=100, turns=1), down=("worker-1",))
    now = look(worker("worker-0", shard(0, commits=5), cpu_ms=1100, turns=101), down=("worker-1",))
    up, down = worker_rows(now, rates(now, before, 2.0))
    assert (up.name, up.pid, up.state, up.shards, up.cpu) == ("worker-0", 40, "up", [0], 0.5)
    assert (up.turn_p50_ns, up.turn_p99_ns, up.commit_p99_ns) == (150, 199, 99)
    assert (down.state, down.cpu, down.turn_p99_ns, up.queues, down.queues) == ("down", None, None, 1, None)


def test_the_cluster_in_numbers():
    now = look(
        worker("worker-0", shard(0, queue("a", pending=1, in_flight=2, delayed=3), queue("b"), queue("a.dlq", pending=9))),
        down=("worker-1",),
    )
    now.router = RouterMetrics(STARTED_MS, 0, 0, 0, 0, {}, {}, {})
    pace = rates(now, now, 1.0)
    seen = summary(now, pace, list(rows_of(now).values()), STARTED_MS + 5000)
    assert (seen.version, seen.uptime_s) == ("1.2.3", 5)
    assert (seen.workers_up, seen.workers, seen.shards_up, seen.shards) == (1, 2, 1, 2)
    assert (seen.queues, seen.pending, seen.in_flight, seen.delayed, seen.depth, seen.dead_letters) == (2, 1, 2, 3, 6, 9)
    assert seen.rates == pace.total


# --- fairness keys ----------------------------------------------------------------------------------------------------


def stats(*keys: KeyStats) -> QueueStats:
    return QueueStats("orders", 0, 0, 0, 0, 0, False, False, 0, 0.0, 1000, 0, 0, 0, 0, 0, 0, list(keys), [])


def key(name: str, *, weight: int = 1, pending: int = 0, delivered: int = 0, paused: bool = False) -> KeyStats:
    return KeyStats(name, weight, pending, 0, 0, 0.0, delivered, paused)


def test_shares_by_weight_and_as_they_were():
    before = stats(key("big", delivered=100), key("small", delivered=50), key("idle", delivered=7))
    now = stats(
        key("small", weight=1, pending=5, delivered=60),
        key("big", weight=3, pending=5, delivered=130),
        key("idle", weight=9, delivered=7),
        key("paused", weight=5, pending=5, paused=True),
    )
    big, idle, paused, small = key_rows(now, before, 10.0)
    assert (big.delivered_per_s, big.share_due, big.share) == (3, 0.75, 0.75)
    assert (small.delivered_per_s, small.share_due, small.share) == (1, 0.25, 0.25)
    assert (idle.delivered_per_s, idle.share_due, idle.share) == (0, None, 0)
    assert (paused.delivered_per_s, paused.share_due, paused.share, paused.paused) == (None, None, None, True)


def test_without_a_look_before_shares_are_due_and_nothing_else_is_known():
    (row,) = key_rows(stats(key("only", pending=1, delivered=5)), None, 0.0)
    assert (row.share_due, row.delivered_per_s, row.share) == (1, None, None)


def test_while_nothing_is_delivered_no_key_has_a_share():
    same = stats(key("only", pending=1, delivered=5))
    (row,) = key_rows(same, same, 1.0)
    assert (row.delivered_per_s, row.share) == (0, None)
