import pytest
from hypothesis import given
from hypothesis import strategies as st
from rich.cells import cell_len

from fila_cluster.ops.top import columns


@pytest.mark.parametrize(
    ("number", "text"),
    [
        (None, "–"),
        (0, "0"),
        (9_999, "9,999"),
        (10_000, "10.0k"),
        (123_456, "123k"),
        (999_499, "999k"),
        (999_500, "1.00M"),
        (12_345_678, "12.3M"),
        (5_000_000_000, "5.00G"),
    ],
)
def test_counts(number: int | None, text: str):
    assert columns.counted(number) == text


@pytest.mark.parametrize(
    ("rate", "text"),
    [(None, "–"), (0.0, "0"), (0.25, "0.2"), (9.94, "9.9"), (9.96, "10"), (1234.4, "1,234"), (23_456.0, "23.5k")],
)
def test_rates(rate: float | None, text: str):
    assert columns.rated(rate) == text


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (None, "–"),
        (0.0, "0.0s"),
        (9.94, "9.9s"),
        (59.0, "59s"),
        (119.0, "119s"),
        (120.0, "2m"),
        (7200.0, "2h"),
        (200_000.0, "2d"),
    ],
)
def test_ages(seconds: float | None, text: str):
    assert columns.aged(seconds) == text


@pytest.mark.parametrize(
    ("ns", "text"), [(None, "–"), (80_000.0, "80µs"), (1_240_000.0, "1.2ms"), (300e6, "300ms"), (999.6e6, "1.0s")]
)
def test_spans(ns: float | None, text: str):
    assert columns.lasted(ns) == text


@pytest.mark.parametrize(
    ("size", "text"), [(None, "–"), (512, "512B"), (2048, "2.0K"), (345 * 2**20, "345M"), (2 * 2**30, "2.0G")]
)
def test_sizes(size: int | None, text: str):
    assert columns.sized(size) == text


@pytest.mark.parametrize(
    ("part", "text"),
    [(None, "–"), (0.0, "0%"), (0.0001, "<0.1%"), (0.001, "0.1%"), (0.0994, "9.9%"), (0.3333, "33%"), (1.0, "100%")],
)
def test_parts(part: float | None, text: str):
    assert columns.shared(part) == text


def test_a_sparkline_has_its_highest_value_full_and_zeros_blank():
    assert columns.sparkline([0, 1, 50, 100], 10) == " ▁▄▇"
    assert columns.sparkline([100, 0, 0, 70], 2) == " ▇"
    assert columns.sparkline([], 5) == ""


def test_a_few_messages_are_no_peak():
    assert columns.sparkline([0, 1, 2], 10) == " ▁▂"


def test_what_would_move_the_cursor_is_not_printed():
    assert columns.printable("a\x1b[2Jb\nc") == "a�[2Jb�c"
    assert columns.printable("Größe 大") == "Größe 大"


@given(st.integers(0, 10**12 - 1))
def test_a_count_has_six_cells_at_most(number: int):
    assert len(columns.counted(number)) <= 6


@given(st.floats(0, 999 * 86_400))
def test_an_age_has_four_cells_at_most(seconds: float):
    assert len(columns.aged(seconds)) <= 4


@given(st.text())
def test_anything_becomes_one_line(text: str):
    shown = columns.printable(text)
    assert shown.isprintable() or not shown
    assert cell_len(shown) >= 0
