"""Queues with several partitions, as one row each."""

from fila_cluster.ops.analysis.partitions import WholeQueue, with_whole_queues
from fila_cluster.ops.analysis.rates import all_queues, rates
from fila_cluster.ops.analysis.rows import KnownQueues, partition_rows, queue_rows
from fila_proto_zmq.commands import Histogram, KeyMetrics, Metrics, PartitionLeft, QueueMetrics, QueueMove
from tests.unit.analysis.looks import hooks, look, queue, shard, worker


def on_shards(*queues: QueueMetrics, first: int = 0) -> Metrics:
    for number, each in enumerate(queues, first):
        each.info.shard = number
    return look(worker("worker-0", *(shard(each.info.shard, each) for each in queues)))


def whole(*queues: QueueMetrics) -> QueueMetrics:
    (joined,) = all_queues(with_whole_queues(on_shards(*queues)))
    assert isinstance(joined, WholeQueue)
    return joined


def test_counters_without_partitions_stay_as_they_are():
    told = on_shards(queue("a"), queue("b"))
    assert with_whole_queues(told) is told


def test_numbers_are_added_up_and_ages_are_the_greatest():
    one = queue("big@2", pending=3, oldest_ms=100, acked=5, rejected={"A": 1}, settle_ms=Histogram([10], [1, 2], 30))
    other = queue(
        "big@10", pending=4, oldest_ms=900, acked=6, rejected={"A": 2, "B": 1}, settle_ms=Histogram([10], [3, 0], 9)
    )
    third = queue("big@3", hooks=hooks(failed=2, breaker_open=True), paused=True)
    joined = whole(one, other, third)
    assert (joined.info.name, joined.info.pending, joined.info.paused, joined.info.shard) == ("big", 7, False, 0)
    assert (joined.oldest_pending_ms, joined.acked, joined.rejected) == (900, 11, {"A": 3, "B": 1})
    assert joined.settle_ms == Histogram([10], [4, 2], 39)
    assert joined.dwell_ms is None
    assert joined.hooks is not None
    assert (joined.hooks.failed, joined.hooks.breaker_open) == (2, True)
    assert [each.info.name for each in joined.partitions] == ["big@2", "big@3", "big@10"]  # type: ignore[attr-defined]


def test_a_key_s_share_counts_among_all_partitions():
    """Consumers take from partitions by the weights of their keys."""
    first = queue("big@0", keys=[KeyMetrics("a", 1, 9, 2, 0.25), KeyMetrics("b", 3, 1, 2, 0.75)], known_keys=2)
    second = queue("big@1", keys=[KeyMetrics("c", 4, 5, 5, 1.0)], known_keys=1)
    joined = whole(first, second)
    assert {key.fairness_key: key.fair_share for key in joined.keys} == {"a": 0.125, "b": 0.375, "c": 0.5}
    assert joined.known_keys == 3


def test_a_key_of_several_partitions_is_one():
    parts = [queue(f"big@{number}", keys=[KeyMetrics("a", 2, 3, 4, 1.0)], known_keys=1) for number in range(2)]
    joined = whole(*parts)
    assert joined.keys == [KeyMetrics("a", 2, 6, 8, 1.0)]
    assert joined.known_keys == 1
    assert parts[0].keys == [KeyMetrics("a", 2, 3, 4, 1.0)], "the partition keeps its own"


def test_the_rows_of_its_partitions():
    def told(*delivered: int) -> Metrics:
        keys = [KeyMetrics("a", 1, 9, 2, 1.0)], [KeyMetrics("b", 1, 1, 2, 0.25)], []
        parts = [
            queue(f"big@{number}", pending=number, oldest_ms=500, delivered=count, keys=keys[number])
            for number, count in enumerate(delivered)
        ]
        return with_whole_queues(on_shards(*parts))

    now = told(10, 40, 0)
    rows = partition_rows(now, "big", rates(now, told(0, 10, 0), 10.0))
    assert [(row.partition, row.shard, row.worker, row.pending) for row in rows] == [
        (0, 0, "worker-0", 0),
        (1, 1, "worker-0", 1),
        (2, 2, "worker-0", 2),
    ]
    assert [(row.delivered_per_s, row.share, row.share_due) for row in rows] == [(1, 0.25, 0.2), (3, 0.75, 0.8), (0, 0, None)]
    assert [row.oldest_pending_age for row in rows] == [None, 0.5, 0.5]
    assert partition_rows(now, "big@1", rates(now, None, 0)) == []


def test_rows_say_how_far_a_change_of_their_number_has_come():
    def part(number: int, *left: PartitionLeft) -> QueueMetrics:
        return queue(f"big@{number}", move=QueueMove(3, 4, 1, [0], [1, 2], list(left)))

    now = with_whole_queues(on_shards(part(0), part(1, PartitionLeft(1, 1, 30, 2)), part(2), part(3)))
    moves = [row.move for row in partition_rows(now, "big", rates(now, None, 0))]
    assert moves == ["drained", "to send on: 30; leased: 2", "not known: no answer", ""]


def test_its_row_and_that_of_its_dead_letters():
    told = with_whole_queues(
        on_shards(queue("big@0", pending=1), queue("big@1", pending=2), queue("big.dlq@0"), queue("big.dlq@1", pending=4))
    )
    known = KnownQueues()
    known.note(told, [])
    rows = queue_rows(told, [], rates(told, None, 0), known)
    assert [(row.name, row.pending, row.dead_letters, row.is_dead_letter) for row in rows] == [
        ("big", 3, 4, False),
        ("big.dlq", 4, None, True),
    ]
