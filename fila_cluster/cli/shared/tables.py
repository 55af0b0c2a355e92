"""The look of tables: no frames, numbers to the right, only long texts wrapped."""

from typing import TYPE_CHECKING

from rich.table import Table
from rich.text import Text

if TYPE_CHECKING:
    from collections.abc import Iterable

    from fila_cluster import ThrottleStats


def table(*columns: str) -> Table:
    """Return an empty table. A column ``#name`` holds numbers, ``=name`` texts to copy, which are not wrapped."""
    made = Table(box=None, pad_edge=False, header_style="bold")
    for column in columns:
        number = column.startswith("#")
        whole = number or column.startswith("=")
        made.add_column(column.lstrip("#="), justify="right" if number else "left", no_wrap=whole, overflow="fold")
    return made


def cut(text: str, most: int) -> str:
    """Return a text of at most so many characters."""
    return text if len(text) <= most else f"{text[: most - 1]}…"


def flagged(text: str, *, good: bool) -> Text:
    """Return a state, green or red where there are colours."""
    return Text(text, style="green" if good else "bold red")


def throttle_table(throttles: "Iterable[ThrottleStats]") -> Table:
    """Return the table of throttle keys."""
    rows = table("throttle key", "#tokens/s", "#burst", "#tokens now", "#in use", "#waiting")
    for throttle in throttles:
        bucket = ("–" if each is None else f"{each:.10g}" for each in (throttle.burst, throttle.tokens))
        places = "–" if throttle.concurrency is None else f"{throttle.in_use:,} of {throttle.concurrency:,}"
        rows.add_row(throttle.key, rate_text(throttle), *bucket, places, f"{throttle.waiting:,}")
    return rows


def rate_text(throttle: "ThrottleStats") -> str:
    """Return the rate of a throttle key, and before it the rate in force if deferrals have lowered it."""
    if throttle.rate is None:
        return "–"
    lowered = throttle.rate_in_force is not None and throttle.rate_in_force < throttle.rate
    return f"{throttle.rate_in_force:.10g} of {throttle.rate:.10g}" if lowered else f"{throttle.rate:.10g}"
