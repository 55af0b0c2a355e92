"""How numbers look to people."""

import pytest

from fila_cluster.figures import aged, counted, ranged, sized


def test_counts():
    assert counted(1_234_567) == "1,234,567"
    assert [counted(number, "dead letter") for number in (0, 1, 1200)] == [
        "0 dead letters",
        "1 dead letter",
        "1,200 dead letters",
    ]


@pytest.mark.parametrize(("number", "text"), [(0, "0 B"), (2048, "2 KiB"), (300 << 20, "300 MiB"), (5 << 30, "5.0 GiB")])
def test_sizes(number: int, text: str):
    assert sized(number) == text


@pytest.mark.parametrize(
    ("seconds", "text"), [(0.04, "0.0 s"), (90, "90.0 s"), (300, "5 m"), (7200, "2 h"), (900_000, "10 d")]
)
def test_ages(seconds: float, text: str):
    assert aged(seconds) == text


@pytest.mark.parametrize(("numbers", "text"), [([], ""), ([3], "3"), ([0, 1, 2, 3, 7], "0–3, 7"), ([4, 2, 0], "0, 2, 4")])
def test_ranges(numbers: list[int], text: str):
    assert ranged(numbers) == text
