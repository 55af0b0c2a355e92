"""How tables look: no frames, numbers to the right, nothing wrapped that is not too long."""

from collections.abc import Iterable

from rich.table import Table
from rich.text import Text


def table(*columns: str) -> Table:
    """An empty table. A column whose name starts with ``#`` holds numbers."""
    made = Table(box=None, pad_edge=False, header_style="bold")
    for column in columns:
        number = column.startswith("#")
        made.add_column(column.lstrip("#"), justify="right" if number else "left", no_wrap=number, overflow="fold")
    return made


def counted(number: int) -> str:
    """A number for people: 1,234,567."""
    return f"{number:,}"


def sized(number_bytes: int) -> str:
    """A size for people."""
    size = float(number_bytes)
    for unit in ("B", "KiB", "MiB"):
        if size < 1024:
            return f"{size:.0f} {unit}"
        size /= 1024
    return f"{size:.1f} GiB"


def aged(seconds: float) -> str:
    """A duration for people."""
    for unit, length_s in (("d", 86_400), ("h", 3_600), ("m", 60)):
        if seconds >= 2 * length_s:
            return f"{seconds / length_s:.0f} {unit}"
    return f"{seconds:.1f} s"


def ranged(numbers: Iterable[int]) -> str:
    """Numbers with runs shortened: 0–3, 7."""
    runs: list[list[int]] = []
    for number in sorted(numbers):
        if runs and number == runs[-1][-1] + 1:
            runs[-1] = [runs[-1][0], number]
        else:
            runs.append([number])
    return ", ".join("–".join(map(str, run)) for run in runs)


def flagged(text: str, *, good: bool) -> Text:
    """A state, green or red where there are colours."""
    return Text(text, style="green" if good else "bold red")
