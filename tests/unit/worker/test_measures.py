"""Histograms, and how fast a queue delivers lately."""

import pytest

from fila_worker.core.measures import KNOWN_MS_MIN, SPAN_MS, CountedHistogram, DeliveryRate


def delivering(
    per_second: int, seconds: float, pace: DeliveryRate | None = None, now_ms: int = 1_000_000
) -> tuple[DeliveryRate, int]:
    """A pace after a while of this rate, noted every tenth of a second; and the time then."""
    pace = pace or DeliveryRate()
    for _ in range(round(seconds * 10)):
        now_ms += 100
        pace.note(per_second // 10, now_ms)
    return pace, now_ms


def test_nothing_was_delivered() -> None:
    assert DeliveryRate().per_second(1_000_000) == 0


@pytest.mark.parametrize("seconds", [2, 10, 600])
@pytest.mark.parametrize("per_second", [10, 5000])
def test_a_steady_rate_is_known_soon(per_second: int, seconds: int) -> None:
    pace, now_ms = delivering(per_second, seconds)
    assert pace.per_second(now_ms) == pytest.approx(per_second, rel=0.08)


def test_a_first_batch_is_not_taken_for_a_rate() -> None:
    pace = DeliveryRate()
    pace.note(500, 1_000_000)
    assert pace.per_second(1_000_000) <= 500 * 1000 / KNOWN_MS_MIN * 1.1


def test_a_change_shows_within_its_span() -> None:
    pace, now_ms = delivering(100, 60)
    pace, now_ms = delivering(1000, 3 * SPAN_MS / 1000, pace, now_ms)
    assert pace.per_second(now_ms) == pytest.approx(1000, rel=0.06)


def test_silence_fades_and_is_forgotten() -> None:
    pace, now_ms = delivering(100, 60)
    assert pace.per_second(now_ms + SPAN_MS) == pytest.approx(100 / 2.718, rel=0.05)
    assert pace.per_second(now_ms + 20 * SPAN_MS) == 0
    pace, now_ms = delivering(50, 5, pace, now_ms + 20 * SPAN_MS)
    assert pace.per_second(now_ms) == pytest.approx(50, rel=0.08), (
        "what was long ago does not count as time without deliveries"
    )


def test_a_clock_that_goes_back_breaks_nothing() -> None:
    pace, now_ms = delivering(100, 10)
    pace.note(10, now_ms - 5000)
    assert pace.per_second(now_ms - 5000) > 0


def test_a_histogram_counts_up_to_and_with_its_bounds():
    histogram = CountedHistogram((10, 100))
    for value in (0, 10, 11, 100, 101):
        histogram.observe(value)
    histogram.observe_often(50, 3)
    assert (histogram.counts, histogram.total) == ([2, 5, 1], 372)
    told = histogram.wire()
    histogram.observe(1)
    assert (told.bounds, told.counts, told.total) == ([10, 100], [2, 5, 1], 372)
