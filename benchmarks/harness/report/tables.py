"""Tables of a result: for the terminal, and as Markdown."""

import math

from rich.console import Console
from rich.table import Table

from benchmarks.harness.report.results import Figure, Result
from benchmarks.harness.report.spread import Spread, spread


def text_of(value: float) -> str:
    """Return a number with about three digits."""
    if not math.isfinite(value):
        return str(value)
    value = float(f"{value:.3g}") if abs(value) < 100 else value
    if value == int(value) or abs(value) >= 100:
        return f"{value:,.0f}"
    digits = 1 if abs(value) >= 10 else 2 if abs(value) >= 1 else 3
    return f"{value:,.{digits}f}"


def cell(figure: Figure | None) -> str:
    """Return the median and, of several values, the least and the greatest."""
    if figure is None or not figure.values:
        return "–"
    found = spread(figure.values)
    shown = text_of(found.median) + (figure.unit if figure.unit in {"/s", "%", "×", ""} else f" {figure.unit}")
    return f"{shown} {_around(found)}" if len(figure.values) > 1 and found.low != found.high else shown


def _around(found: Spread) -> str:
    return f"({text_of(found.low)} … {text_of(found.high)})"


def grid(figures: list[Figure]) -> tuple[list[str], list[list[str]]]:
    """Return the columns of a table, and its rows; the first cell of a row is its name."""
    columns = list(dict.fromkeys(figure.column for figure in figures))
    found = {(figure.row, figure.column): figure for figure in figures}
    rows = list(dict.fromkeys(figure.row for figure in figures))
    return columns, [[row, *(cell(found.get((row, column))) for column in columns)] for row in rows]


def show(console: Console, result: Result) -> None:
    """Print a result."""
    for title, figures in result.tables().items():
        columns, rows = grid(figures)
        table = Table("", title=title, title_justify="left")
        for column in columns:
            table.add_column(column, justify="right")
        for row in rows:
            table.add_row(*row)
        console.print(table)
    for note in result.notes:
        console.print(note)
    if result.verified.sent:
        console.print(f"{result.verified.received:,} messages came, each once and as it was sent")
    for promise in result.promises:
        console.print(f"{'kept' if promise.kept else 'NOT KEPT'}: {promise.text}", style="" if promise.kept else "red")


def markdown(figures: list[Figure]) -> str:
    """Return a table as Markdown."""
    columns, rows = grid(figures)
    lines = [["", *columns], ["---", *("---:" for _ in columns)], *rows]
    return "\n".join(f"| {' | '.join(_escaped(text) for text in line)} |".replace("|  |", "| |") for line in lines)


def _escaped(text: str) -> str:
    return text.replace("|", "\\|").replace("\n", " ")
