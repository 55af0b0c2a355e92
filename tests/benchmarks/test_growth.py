"""What counts as growth of a figure that is watched for long."""

from benchmarks.harness.growth import WINDOWS, Watched, grows


def watched(*values: float) -> Watched:
    return Watched("worker", "MiB", [float(second) for second in range(len(values))], list(values))


def test_a_figure_that_fills_up_first_does_not_grow() -> None:
    assert not watched(10, 40, 90, *[100] * 15).grows


def test_a_slow_leak_grows() -> None:
    assert watched(*[100 + 2 * second for second in range(60)]).grows


def test_a_peak_does_not_matter() -> None:
    assert not watched(*[100] * 55, 900, *[100] * 4).grows


def test_noise_within_a_tenth_and_the_slack_does_not_matter() -> None:
    assert not grows([0.0, 100.0, 130.0, 100.0, 110.0, 118.0], 8.0)
    assert grows([0.0, 100.0, 130.0, 100.0, 110.0, 118.1], 8.0)


def test_too_few_samples_say_nothing() -> None:
    assert not watched(*range(WINDOWS - 1)).grows
