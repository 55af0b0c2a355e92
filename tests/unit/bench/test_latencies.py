"""Percentiles and histograms of durations."""

from random import Random

import pytest

from fila_cluster.run.bench.latencies import Latencies


def test_percentiles_are_those_of_the_sorted_values():
    values = [Random(3).randrange(100, 1000) for _ in range(1000)]
    latencies = Latencies()
    latencies.add(values)
    ordered = sorted(values)
    expected = {"p50": ordered[499], "p90": ordered[899], "p99": ordered[989], "p999": ordered[998], "max": ordered[-1]}
    figures = latencies.figures_s()
    assert figures.pop("mean") == pytest.approx(sum(values) / 1e9)
    assert figures == {name: value / 1e6 for name, value in expected.items()}


def test_no_values_have_no_percentiles():
    assert Latencies().figures_s() == {}
    assert Latencies().histogram() == []


def test_many_different_values_take_a_bounded_memory_and_keep_three_digits():
    latencies = Latencies()
    for first in range(0, 200_000, 1000):
        latencies.add(range(first, first + 1000))
    counts = latencies.counts()
    assert len(counts) < 3_000
    assert sum(counts.values()) == 200_000
    assert latencies.figures_s()["p90"] == pytest.approx(0.18, rel=0.001)


def test_merged_counts_are_those_of_all():
    one, other = Latencies(), Latencies()
    one.add([1, 5])
    other.add([5, 700])
    one.merge(other.counts())
    assert one.counts() == {1: 1, 5: 2, 700: 1}


def test_bins_have_round_bounds_without_gaps():
    latencies = Latencies()
    latencies.add([0, 1, 9, 10, 99])
    assert latencies.histogram() == [(0, 1, 1), (1, 2, 1), (2, 5, 0), (5, 10, 1), (10, 20, 1), (20, 50, 0), (50, 100, 1)]


def test_longer_than_any_bound_is_in_the_last_bin():
    latencies = Latencies()
    latencies.add([10**12])
    ((_, _, count),) = latencies.histogram()
    assert count == 1
