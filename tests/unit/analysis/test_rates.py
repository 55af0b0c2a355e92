"""Rates and quantiles of two looks."""

from math import ceil

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fila_cluster.figures import quantile
from fila_cluster.ops.analysis.partitions import summed, with_whole_queues
from fila_cluster.ops.analysis.rates import ClusterRates, Rates, difference, mean, per_second, rates
from fila_proto_zmq.commands import Histogram, Metrics
from tests.unit.analysis.looks import STARTED_MS, look, of_queues, queue, shard, worker


def test_without_a_look_before_nothing_is_known():
    assert rates(of_queues(queue()), None, 1.0) == ClusterRates(None, {}, {})


def test_samples_of_the_same_moment_have_no_rate():
    assert rates(of_queues(queue()), of_queues(queue()), 0.0) == ClusterRates(None, {}, {})


def test_each_counter_has_its_rate():
    before = queue(enqueued=10, delivered=20, acked=30, nacked=40, expired=50, dead_lettered=60, redriven=70)
    now = queue(enqueued=12, delivered=24, acked=36, nacked=48, expired=60, dead_lettered=72, redriven=84)
    pace = rates(of_queues(now), of_queues(before), 2.0)
    assert pace.queues == {"orders": Rates(1, 2, 3, 4, 5, 6, 7)}
    assert pace.total == Rates(1, 2, 3, 4, 5, 6, 7)


def test_the_total_is_without_dead_letter_queues():
    before = of_queues(queue("a"), queue("a.dlq"), queue("b"))
    now = of_queues(queue("a", acked=4), queue("a.dlq", acked=8), queue("b", acked=2))
    pace = rates(now, before, 2.0)
    assert pace.queues["a.dlq"].acked == 4
    assert pace.total == Rates(acked=3)


def test_a_restarted_worker_has_no_rates_and_there_is_no_total():
    before = look(worker("worker-0", shard(0, queue("a", acked=9)), cpu_ms=900), worker("worker-1", shard(1, queue("b"))))
    restarted = worker("worker-0", shard(0, queue("a", acked=20)), started_ms=STARTED_MS + 1, cpu_ms=1000)
    pace = rates(look(restarted, worker("worker-1", shard(1, queue("b", acked=5)))), before, 1.0)
    assert pace.queues == {"b": Rates(acked=5)}
    assert list(pace.workers) == ["worker-1"]
    assert pace.total is None


def test_a_worker_that_is_down_spoils_no_total():
    before = look(worker("worker-0", shard(0, queue("a"))), worker("worker-1", shard(1, queue("b"))))
    now = look(worker("worker-0", shard(0, queue("a", acked=2))), down=("worker-1",))
    assert rates(now, before, 1.0).total == Rates(acked=2)


def partitioned(*acked: int, started_ms: int = STARTED_MS) -> Metrics:
    """A queue with a partition on each of two workers; the second may be silent."""
    workers = []
    for number, count in enumerate(acked):
        partition = queue(f"big@{number}", acked=count)
        partition.info.shard = number
        workers.append(worker(f"worker-{number}", shard(number, partition), started_ms=started_ms if number else STARTED_MS))
    return with_whole_queues(look(*workers, down=("worker-1",) if len(acked) == 1 else ()))


def test_a_queue_with_partitions_has_their_sum():
    pace = rates(partitioned(12, 26), partitioned(10, 20), 2.0)
    assert pace.queues == {"big@0": Rates(acked=1), "big@1": Rates(acked=3), "big": Rates(acked=4)}
    assert pace.total == Rates(acked=4)


@pytest.mark.parametrize(
    "now", [partitioned(12, 5, started_ms=STARTED_MS + 1), partitioned(12, 26, started_ms=STARTED_MS + 1)]
)
def test_a_queue_with_a_partition_that_counts_anew_has_no_rate(now: Metrics):
    pace = rates(now, partitioned(10, 20), 2.0)
    assert (pace.queues, pace.total) == ({"big@0": Rates(acked=1)}, None)


def test_a_partition_that_is_silent_takes_its_part_and_comes_back_without_a_jump():
    assert rates(partitioned(12), partitioned(10, 20), 2.0).queues["big"] == Rates(acked=1)
    assert "big" not in rates(partitioned(14, 26), partitioned(12), 2.0).queues


def test_a_new_queue_has_counted_from_nothing():
    assert rates(of_queues(queue("new", enqueued=6)), of_queues(), 2.0).queues == {"new": Rates(enqueued=3)}


def test_a_queue_that_was_not_shown_before_has_no_rate():
    assert rates(of_queues(queue("busy", enqueued=6)), of_queues(left_out=1), 2.0).queues == {}


def test_a_queue_that_was_made_again_has_no_rate():
    assert rates(of_queues(queue(enqueued=1)), of_queues(queue(enqueued=9)), 1.0).queues == {}


def test_a_worker_s_load_is_what_it_did_between_the_looks():
    before = look(worker("worker-0", shard(0, commits=3), shard(1, commits=1), cpu_ms=1000, turns=5))
    now = look(worker("worker-0", shard(0, commits=4), shard(1, commits=8), cpu_ms=2000, turns=15))
    load = rates(now, before, 4.0).workers["worker-0"]
    assert load.cpu_share == 0.25
    assert load.turn_ns == Histogram([100, 200], [0, 10, 0], 0)
    assert load.commit_ns == Histogram([100, 200], [8, 0, 0], 0)


def test_rates_by_name_are_of_what_both_looks_have():
    assert per_second({"a": 9, "new": 5, "again": 1}, {"a": 5, "gone": 1, "again": 2}, 2.0) == {"a": 2.0}
    assert per_second({"a": 9}, {"a": 5}, 0.0) == {}


@pytest.mark.parametrize(
    ("q", "value"),
    [(0.0, 10.0), (0.25, 15.0), (0.5, 20.0), (0.75, 25.0), (1.0, 30.0)],
)
def test_values_are_spread_evenly_in_their_bucket(q: float, value: float):
    assert quantile(Histogram([10, 20, 30], [0, 2, 2, 0], 80), q) == value


def test_of_what_exceeds_all_bounds_only_that_is_known():
    assert quantile(Histogram([10, 20], [1, 0, 9], 0), 0.99) == 20


def test_of_nothing_there_is_neither_quantile_nor_mean():
    nothing = Histogram([10], [0, 0], 0)
    assert quantile(nothing, 0.5) is None
    assert mean(nothing) is None


def test_the_mean_is_exact():
    assert mean(Histogram([10], [3, 1], 100)) == 25


def test_a_difference_is_what_was_observed_since():
    before, now = Histogram([10, 20], [1, 2, 3], 100), Histogram([10, 20], [1, 5, 4], 190)
    assert difference(now, before) == Histogram([10, 20], [0, 3, 1], 90)


def test_there_is_no_difference_to_a_count_that_started_over():
    assert difference(Histogram([10], [1, 0], 5), Histogram([10], [2, 0], 9)) is None
    assert difference(Histogram([10], [1, 0], 5), Histogram([11], [0, 0], 0)) is None


def test_histograms_are_merged_and_left_as_they_were():
    one, other = Histogram([10], [1, 2], 30), Histogram([10], [3, 4], 50)
    assert summed([one, other]) == Histogram([10], [4, 6], 80)
    assert one == Histogram([10], [1, 2], 30)
    assert summed([]) is None


@given(st.lists(st.integers(0, 400), min_size=1), st.floats(0, 1))
def test_a_quantile_is_in_the_bucket_of_the_value_of_its_rank(values: list[int], q: float):
    bounds = [100, 200, 300, 400]
    counts = [sum(low < value <= high for value in values) for low, high in zip([-1, 100, 200, 300], bounds, strict=True)]
    found = quantile(Histogram(bounds, [*counts, 0], sum(values)), q)
    assert found is not None
    at_rank = sorted(values)[max(0, ceil(len(values) * q) - 1)]
    assert abs(found - at_rank) <= 100
