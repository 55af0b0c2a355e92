from math import ceil

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fila_cluster.analysis.rates import difference, mean, merged, quantile
from fila_proto_zmq.commands import Histogram


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
    assert merged([one, other]) == Histogram([10], [4, 6], 80)
    assert one == Histogram([10], [1, 2], 30)
    assert merged([]) is None


@given(st.lists(st.integers(0, 400), min_size=1), st.floats(0, 1))
def test_a_quantile_is_in_the_bucket_of_the_value_of_its_rank(values: list[int], q: float):
    bounds = [100, 200, 300, 400]
    counts = [sum(low < value <= high for value in values) for low, high in zip([-1, 100, 200, 300], bounds, strict=True)]
    found = quantile(Histogram(bounds, [*counts, 0], sum(values)), q)
    assert found is not None
    at_rank = sorted(values)[max(0, ceil(len(values) * q) - 1)]
    assert abs(found - at_rank) <= 100
