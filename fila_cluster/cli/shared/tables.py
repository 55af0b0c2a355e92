"""The look of tables: no frames, numbers to the right, only long texts wrapped."""

from rich.table import Table
from rich.text import Text


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
