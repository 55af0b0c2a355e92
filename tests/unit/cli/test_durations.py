"""Durations as people type them."""

import click
import pytest

from fila_cluster.cli.parameters import DURATION


@pytest.mark.parametrize(
    ("text", "seconds"),
    [("0", 0), ("1500", 1.5), ("500ms", 0.5), ("30s", 30), ("1.5s", 1.5), ("5m", 300), ("2h", 7200)],
)
def test_what_a_duration_is(text: str, seconds: float):
    assert DURATION.convert(text, None, None) == seconds


@pytest.mark.parametrize("text", ["", "s", "-1", "-5s", "5 s", "1d", "5M", "1e3", "ten", "٣s"])
def test_what_a_duration_is_not(text: str):
    with pytest.raises(click.BadParameter, match="500ms, 30s, 5m, 2h"):
        DURATION.convert(text, None, None)
