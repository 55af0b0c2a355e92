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
    rows = table("throttle key", "#tokens/s", "#burst", "#tokens now", "#concurrency", "#waiting")
    for each in throttles:
        numbers = (each.rate, each.burst, each.tokens, each.concurrency)
        rows.add_row(each.key, *("–" if number is None else f"{number:.10g}" for number in numbers), f"{each.waiting:,}")
    return rows
