"""Plots of a result: bars for each table, and the charts of lines. They are SVG, which stays small and sharp on a page."""

import math
from collections.abc import Callable
from io import StringIO
from pathlib import Path
from typing import Any, Literal

import matplotlib as mpl
from matplotlib.axes import Axes
from matplotlib.axis import Axis
from matplotlib.figure import Figure as Picture
from matplotlib.ticker import FuncFormatter, LogLocator, NullLocator

from benchmarks.harness.report.results import Chart, Figure, Result
from benchmarks.harness.report.spread import spread

WIDTH_IN = 8.0
ROW_IN = 0.24
LOG_TIMES_MIN = 5
BARS_MIN, BARS_MAX = 4, 60
"""A table with fewer or more cells has no picture of bars."""
STYLE: Any = {
    "svg.fonttype": "none",
    "svg.hashsalt": "fila",
    "font.family": "sans-serif",
    "font.size": 9,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.grid": True,
    "axes.axisbelow": True,
    "grid.color": "#dddddd",
    "legend.frameon": False,
    "text.parse_math": False,
}


def pictures(result: Result) -> dict[str, str]:
    """Return the pictures of a result as SVG, by title."""
    made = {title: bars(title, figures) for title, figures in result.tables().items() if _comparable(figures)}
    return made | {chart.title: lines(chart) for chart in result.charts}


def save(result: Result, folder: Path, stem: str) -> list[Path]:
    """Write the pictures of a result. Return their paths."""
    paths = []
    for number, svg in enumerate(pictures(result).values(), 1):
        path = folder / f"{stem}-{number}.svg"
        path.write_text(svg)
        paths.append(path)
    return paths


def _comparable(figures: list[Figure]) -> bool:
    """Tell whether bars say something: all cells have one unit, and there are several, but not too many."""
    return len({figure.unit for figure in figures}) == 1 and BARS_MIN <= len(figures) <= BARS_MAX


def bars(title: str, figures: list[Figure]) -> str:
    """Draw a bar for each cell, from the least to the greatest value as a thin line; cells of a column have one colour."""
    rows, columns = _names(figures, "row"), _names(figures, "column")
    with mpl.rc_context(STYLE):
        axes = _axes(ROW_IN * (len(rows) * (len(columns) + 1)) + 0.9)
        for place, column in enumerate(columns):
            _bars_of(axes, [each for each in figures if each.column == column], rows, place, len(columns))
        middles = [number * (len(columns) + 1) + (len(columns) - 1) / 2 for number in range(len(rows))]
        axes.set_yticks(middles, rows)
        axes.invert_yaxis()
        axes.grid(visible=False, axis="y")
        axes.set_xlabel(figures[0].unit or "count")
        axes.xaxis.set_major_formatter(FuncFormatter(_short))
        return _svg(axes, title, legend=len(columns) > 1)


def _bars_of(axes: Axes, figures: list[Figure], rows: list[str], place: int, columns: int) -> None:
    spreads = [spread(figure.values) for figure in figures]
    at = [rows.index(figure.row) * (columns + 1) + place for figure in figures]
    around = [[each.median - each.low for each in spreads], [each.high - each.median for each in spreads]]
    axes.barh(
        at,
        [each.median for each in spreads],
        0.9,
        xerr=around,
        color=f"C{place % 10}",
        label=figures[0].column,
        error_kw={"elinewidth": 0.8, "ecolor": "#333333"},
    )


def _names(figures: list[Figure], of: str) -> list[str]:
    return list(dict.fromkeys(getattr(figure, of) for figure in figures))


def lines(chart: Chart) -> str:
    """Draw a line for each series."""
    place: Callable[[float], float] = _percentile_place if chart.x_percentiles else float
    with mpl.rc_context(STYLE):
        axes = _axes(3.6)
        for series in chart.series:
            axes.plot([place(x) for x in series.x], series.y, marker=".", label=series.name)
        axes.xaxis.set_major_formatter(FuncFormatter(_short))
        axes.yaxis.set_major_formatter(FuncFormatter(_short))
        if chart.x_log:
            _logarithmic(axes, "x", [x for series in chart.series for x in series.x])
        if not (chart.y_log and _logarithmic(axes, "y", [y for series in chart.series for y in series.y])):
            axes.set_ylim(bottom=0)
        if chart.x_percentiles:
            axes.set_xticks([place(x) for x in (0, 50, 90, 99, 99.9, 99.99)], ["0", "50", "90", "99", "99.9", "99.99"])
        axes.set_xlabel(chart.x_label)
        axes.set_ylabel(chart.y_label)
        return _svg(axes, chart.title, legend=len(chart.series) > 1)


def _logarithmic(axes: Axes, which: Literal["x", "y"], values: list[float]) -> bool:
    """Make an axis logarithmic, with labels at 1, 2 and 5 of each decade, if its values differ enough. Return whether it
    is."""
    if min(values, default=0) <= 0 or max(values) < LOG_TIMES_MIN * min(values):
        return False
    axes.set_xscale("log") if which == "x" else axes.set_yscale("log")
    axis: Axis = axes.xaxis if which == "x" else axes.yaxis
    axis.set_major_locator(LogLocator(subs=(1.0, 2.0, 5.0)))
    axis.set_major_formatter(FuncFormatter(_short))
    axis.set_minor_locator(NullLocator())
    return True


def _percentile_place(percentile: float) -> float:
    """Return how many nines a percentile has: 90 is 1, 99 is 2."""
    return -math.log10(max(1e-6, 1 - percentile / 100))


def _short(value: float, _: object) -> str:
    for size, letter in ((1e6, "M"), (1e3, "k")):
        if abs(value) >= size:
            return f"{value / size:g}{letter}"
    return f"{value:g}"


def _axes(height_in: float) -> Axes:
    return Picture(figsize=(WIDTH_IN, height_in), layout="constrained").subplots()


def _svg(axes: Axes, title: str, *, legend: bool) -> str:
    axes.set_title(title, loc="left")
    picture, text = axes.get_figure(), StringIO()
    assert isinstance(picture, Picture)
    if legend:
        picture.legend(fontsize=8, loc="outside lower center", ncols=3)
    picture.savefig(text, format="svg", metadata={"Date": None, "Creator": None})
    return "\n".join(line.rstrip() for line in text.getvalue().splitlines()) + "\n"
