"""The report as one HTML file, without scripts, fonts and network; its pictures are SVG, drawn by matplotlib.

All texts from outside (queues, tenants, errors) are escaped by Jinja2; only the pictures are markup. These have marker
colours, which become CSS variables of the page, for light and dark screens and print. Names of tenants and errors are data:
matplotlib escapes them, and never reads them as its markup (``$…$``).
"""

import math
import re
import warnings
from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import UTC, datetime
from io import StringIO
from typing import Any, NamedTuple, TypeAlias

import matplotlib as mpl
from jinja2 import Environment, PackageLoader
from markupsafe import Markup
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import FixedLocator, FuncFormatter, MaxNLocator, MultipleLocator, NullLocator, PercentFormatter

from fila_cluster.spark.report.content import SERIES_SHOWN, Count, Dwell, Failures, QueueReport, ReportHistory, TenantShare

SERIES = 6
"""Colours for series; the last one is for the rest."""
_WIDTH_IN = 9.0
_ROW_IN = 0.3
_MARKERS = {"ink": "#0a0001", "muted": "#0a0002", "grid": "#0a0003", "surface": "#0a0004"} | {
    f"series-{number}": f"#0b000{number}" for number in range(1, SERIES + 1)
}
_STYLE: Any = {
    "svg.fonttype": "none",
    "font.family": "sans-serif",
    "font.size": 10,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.spines.left": False,
    "axes.edgecolor": _MARKERS["grid"],
    "axes.labelcolor": _MARKERS["muted"],
    "text.color": _MARKERS["ink"],
    "xtick.color": _MARKERS["grid"],
    "ytick.color": _MARKERS["grid"],
    "xtick.labelcolor": _MARKERS["muted"],
    "ytick.labelcolor": _MARKERS["ink"],
    "grid.color": _MARKERS["grid"],
    "axes.grid": True,
    "axes.axisbelow": True,
    "text.parse_math": False,
    "legend.frameon": False,
}
_TICKS_S = (1, 5, 15, 60, 300, 900, 1_800, 3_600, 3 * 3_600, 6 * 3_600, 86_400, 7 * 86_400, 30 * 86_400)
_MAGNITUDES_S = (0.001, 0.01, 0.1, 1, 10, 60, 600, 3_600, 6 * 3_600, 86_400, 7 * 86_400, 30 * 86_400)
_BETWEEN_S = (0.002, 0.005, 0.02, 0.05, 0.2, 0.5, 2, 5, 20, 30, 120, 300, 1_200, 1_800, 2 * 3_600, 12 * 3_600, 2 * 86_400)
_HEADER = re.compile(r"^.*?(?=<svg)", re.DOTALL)
_LABEL_LENGTH = 34
_LEGEND_LENGTH = 80
_Draw: TypeAlias = Callable[[list[int], list[int], str, str], Any]
FLOWS = {
    "enqueued": ("enqueued", "series-1"),
    "delivered": ("delivered", "series-4"),
    "dead_lettered": ("dead-lettered", "series-2"),
}
LEVELS = {"pending": ("pending", "series-1"), "in_flight": ("in flight", "series-3"), "delayed": ("delayed", "series-5")}
"""Series of a history, with label and colour."""
OTHERS = "all others"
TOGETHER = "all tenants"


def failures_over_time(failures: Failures) -> str:
    """Return dead letters over time, a bar for each step, stacked by reason."""
    kinds = [reason.name or OTHERS for reason in failures.by_reason]
    starts = [datetime.fromisoformat(count.name or "") for count in failures.by_time]
    with mpl.rc_context(_STYLE):
        axes = _axes(2.6)
        axes.grid(visible=False, axis="x")
        at, width = [start.timestamp() for start in starts], failures.bucket_s * 0.86
        _stack(
            kinds,
            failures.by_time,
            lambda bottom, heights, colour, label: axes.bar(
                at,
                heights,
                width,
                bottom,
                align="edge",
                color=colour,
                label=label,
                edgecolor=_MARKERS["surface"],
                linewidth=0.5,
            ),
        )
        tick_s = _tick_s(at[-1] - at[0])
        axes.xaxis.set_major_locator(MultipleLocator(tick_s))
        axes.xaxis.set_major_formatter(FuncFormatter(lambda second, _: _moment(second, tick_s)))
        axes.yaxis.set_major_locator(MaxNLocator(4, integer=True))
        axes.set_xlim(at[0] - failures.bucket_s, max(at[-1] + 2 * failures.bucket_s, at[0] + 8 * failures.bucket_s))
        _legend(axes, kinds)
        return _svg(axes, "over-time")


def counts(entries: Sequence[Count], kinds: Sequence[str], name: str) -> str:
    """Return bars from the left, one for each entry, stacked by ``kinds``; the rest has the last colour."""
    with mpl.rc_context(_STYLE):
        axes = _rows([entry.name or OTHERS for entry in entries])
        places = range(len(entries))
        _stack(
            kinds,
            entries,
            lambda left, widths, colour, label: axes.barh(
                places, widths, 0.68, left, color=colour, label=label, edgecolor=_MARKERS["surface"], linewidth=0.5
            ),
        )
        longest = max(entry.count for entry in entries)
        for place, entry in zip(places, entries, strict=True):
            axes.text(
                entry.count + longest * 0.01, place, f"{entry.count:,}", va="center", color=_MARKERS["muted"], fontsize=9
            )
        axes.set_xlim(0, longest * 1.1)
        axes.xaxis.set_major_locator(MaxNLocator(5, integer=True))
        axes.xaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:,.0f}"))
        _legend(axes, kinds)
        return _svg(axes, name)


def dwell(entries: Sequence[Dwell], name: str) -> str:
    """Return bars from the median to the 99th percentile of each tenant's times, on a scale of magnitudes."""
    with mpl.rc_context(_STYLE):
        axes = _rows([entry.fairness_key or TOGETHER for entry in entries])
        places = range(len(entries))
        least_s = 0.001
        p50, p90, p99 = ([max(least_s, getattr(entry, name)) for entry in entries] for name in ("p50_s", "p90_s", "p99_s"))
        axes.hlines(places, p50, p99, color=_MARKERS["grid"], linewidth=5, capstyle="round")
        dots = {"p50": (p50, "series-1"), "p90": (p90, "series-3"), "p99": (p99, "series-2")}
        for label, (values, colour) in dots.items():
            axes.scatter(values, places, 46, _MARKERS[colour], label=label, zorder=3, edgecolors=_MARKERS["surface"])
        axes.set_xscale("log")
        low, high = min(p50), max(p99)
        axes.set_xlim(low / 2, high * 2)
        axes.xaxis.set_major_locator(FixedLocator(_duration_ticks_s(low / 2, high * 2)))
        axes.xaxis.set_minor_locator(NullLocator())
        axes.xaxis.set_major_formatter(FuncFormatter(lambda value, _: duration(value)))
        _legend(axes, list(dots))
        return _svg(axes, name)


def shares(entries: Sequence[TenantShare]) -> str:
    """Return a bar for the share that each tenant got, and a line across it for its entitlement."""
    with mpl.rc_context(_STYLE):
        axes = _rows([entry.fairness_key or OTHERS for entry in entries])
        places = range(len(entries))
        axes.barh(places, [entry.share for entry in entries], 0.6, color=_MARKERS["series-1"], label="delivered")
        axes.scatter(
            [entry.entitled for entry in entries],
            places,
            190,
            _MARKERS["ink"],
            marker="|",
            linewidths=2.5,
            zorder=3,
            label="entitled by weight",
        )
        axes.set_xlim(0, 1.08 * max(max(entry.share, entry.entitled) for entry in entries))
        axes.xaxis.set_major_locator(MaxNLocator(6))
        axes.xaxis.set_major_formatter(PercentFormatter(1, decimals=None))
        _legend(axes, ["delivered", "entitled by weight"])
        return _svg(axes, "shares")


def flows(history: ReportHistory) -> str:
    """Return messages a second over time: a line for each of :data:`FLOWS`."""
    with mpl.rc_context(_STYLE):
        axes, at, rows = _along_time(history, FLOWS)
        for (label, marker), row in zip(FLOWS.values(), rows, strict=True):
            axes.plot(at, row, color=_MARKERS[marker], label=label, linewidth=1.6)
        _from_zero(axes)
        _legend(axes, list(FLOWS))
        return _svg(axes, "flows")


def levels(history: ReportHistory) -> str:
    """Return the messages in the queue over time: :data:`LEVELS` on top of each other."""
    with mpl.rc_context(_STYLE):
        axes, at, rows = _along_time(history, LEVELS)
        labels, markers = zip(*LEVELS.values(), strict=True)
        axes.stackplot(at, *rows, colors=[_MARKERS[marker] for marker in markers], labels=labels, linewidth=0)
        _from_zero(axes)
        _legend(axes, list(LEVELS))
        return _svg(axes, "levels")


def duration(seconds: float) -> str:
    """Return a duration for people, with two digits at least: 4.2 ms, 12 s, 3.5 h."""
    units = ((86_400, "d"), (3_600, "h"), (60, "min"), (1, "s"))
    length_s, unit = next(((length_s, unit) for length_s, unit in units if seconds >= length_s), (0.001, "ms"))
    number = seconds / length_s
    return f"{number:.1f}".removesuffix(".0") + f" {unit}" if number < 10 else f"{number:.0f} {unit}"


# --- shared parts -----------------------------------------------------------------------------------------------------


def _axes(height_in: float) -> Axes:
    figure = Figure((_WIDTH_IN, height_in), layout="constrained")
    figure.patch.set_alpha(0)
    axes = figure.add_subplot()
    axes.patch.set_alpha(0)
    axes.tick_params(length=0)
    return axes


def _along_time(history: ReportHistory, names: Mapping[str, object]) -> tuple[Axes, list[float], list[list[float]]]:
    """Return axes over the history's time, that time in seconds, and the named series; NaN is a gap."""
    at = [moment.timestamp() for moment in history.times]
    rows = [[math.nan if number is None else number for number in history.series[name]] for name in names]
    axes = _axes(2.4)
    axes.grid(visible=False, axis="x")
    tick_s = _tick_s(at[-1] - at[0])
    axes.xaxis.set_major_locator(MultipleLocator(tick_s))
    axes.xaxis.set_major_formatter(FuncFormatter(lambda second, _: _moment(second, tick_s)))
    axes.yaxis.set_major_locator(MaxNLocator(4))
    axes.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:,.10g}"))
    axes.set_xlim(at[0], at[-1])
    return axes, at, rows


def _from_zero(axes: Axes) -> None:
    """Begin the axis at 0, after everything is drawn, so that heights can be compared."""
    axes.set_ylim(0, 1.05 * axes.dataLim.ymax or 1)


def _rows(names: Sequence[str]) -> Axes:
    """Return axes with a row for each name, the first one on top."""
    axes = _axes(0.75 + _ROW_IN * len(names))
    axes.grid(visible=False, axis="y")
    axes.set_yticks(range(len(names)), [_label(name) for name in names])
    axes.set_ylim(len(names) - 0.4, -0.6)
    return axes


def _stack(kinds: Sequence[str], entries: Sequence[Count], draw: _Draw) -> None:
    """Draw one layer for each kind, and one for the rest."""
    layers = [[entry.parts.get(kind, 0) for entry in entries] for kind in kinds]
    layers.append([entry.count - sum(known) for entry, *known in zip(entries, *layers, strict=True)])
    starts = [0] * len(entries)
    for number, (layer, label) in enumerate(zip(layers, [*kinds, OTHERS], strict=True)):
        if any(layer):
            colour = f"series-{SERIES if label == OTHERS else number + 1}"
            draw(starts, layer, _MARKERS[colour], _label(label))
        starts = [start + more for start, more in zip(starts, layer, strict=True)]


def _legend(axes: Axes, kinds: Sequence[str]) -> None:
    """Draw the legend above the plot, at the left, for several kinds."""
    handles, labels = axes.get_legend_handles_labels()
    if len(handles) > 1 or len(kinds) > 1:
        columns = 3 if sum(map(len, labels)) > _LEGEND_LENGTH else len(labels)
        axes.figure.legend(handles, labels, loc="outside upper left", ncols=columns, fontsize=9, handlelength=1.0)


def _label(name: str) -> str:
    """Return a short name, without invisible characters."""
    seen = "".join(letter if letter.isprintable() else "·" for letter in name) or "(empty)"
    return seen if len(seen) <= _LABEL_LENGTH else f"{seen[: _LABEL_LENGTH - 1]}…"


def _duration_ticks_s(low_s: float, high_s: float) -> list[float]:
    """Return durations for ticks: magnitudes, and those between where there are few."""
    ticks = [tick for tick in _MAGNITUDES_S if low_s <= tick <= high_s]
    return ticks if len(ticks) > 2 else [tick for tick in (*_MAGNITUDES_S, *_BETWEEN_S) if low_s <= tick <= high_s]


def _tick_s(span_s: float) -> int:
    """Return a usual step between ticks."""
    return next((step for step in _TICKS_S if span_s / step < 8), _TICKS_S[-1])


def _moment(second: float, tick_s: int) -> str:
    """Return a time as precise as the distance of the ticks."""
    form = "%H:%M:%S" if tick_s < 60 else "%H:%M" if tick_s < 86_400 else "%-d %b"
    return f"{datetime.fromtimestamp(second, UTC):{form}}"


def _svg(axes: Axes, name: str) -> str:
    """Return the picture as an element for a page. ``name`` makes its ids unique on the page."""
    text, figure = StringIO(), axes.figure
    assert isinstance(figure, Figure)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)  # letters that its font lacks: the browser's has them
        with mpl.rc_context({"svg.hashsalt": name}):
            figure.savefig(text, format="svg", metadata={"Date": None, "Creator": None}, transparent=True)
    svg = _HEADER.sub("", text.getvalue(), count=1)
    for variable, marker in _MARKERS.items():
        svg = svg.replace(marker, f"var(--{variable})")
    return svg


class Extent(NamedTuple):
    """A series in three numbers."""

    label: str
    last: float | None
    mean: float
    highest: float


def page(report: QueueReport) -> str:
    """Return the HTML."""
    environment = Environment(loader=PackageLoader(__package__, ""), autoescape=True, trim_blocks=True, lstrip_blocks=True)
    environment.filters["number"] = "{:,}".format
    environment.filters["percent"] = "{:.1%}".format
    environment.filters["duration"] = duration
    environment.filters["about"] = lambda number: "–" if number is None else f"{number:,.{1 if number < 100 else 0}f}"
    drawn = {name: Markup(svg) for name, svg in _drawn(report).items()}  # matplotlib's, which escapes
    return environment.get_template("page.html").render(
        report=report,
        plots=drawn,
        others=OTHERS,
        together=TOGETHER,
        totals=report.totals,
        extents=list(_extents(report.history)) if report.history else [],
    )


def _drawn(report: QueueReport) -> dict[str, str]:
    """Return the pictures of the present numbers."""
    failures = report.failures
    drawn = {}
    if report.history and _is_drawable(report.history):
        drawn["flows"] = flows(report.history)
        drawn["levels"] = levels(report.history)
    if failures.total:
        reasons = [count.name or OTHERS for count in failures.by_reason]
        errors = [count.name or OTHERS for count in failures.by_error if count.name][:SERIES_SHOWN]
        drawn["over_time"] = failures_over_time(failures)
        drawn["errors"] = counts(failures.by_error, reasons, "errors")
        drawn["tenants"] = counts(failures.by_tenant, errors, "tenants")
        drawn["dwell"] = dwell(failures.dwell, "dwell")
    if report.waiting:
        drawn["waiting"] = dwell(report.waiting, "waiting")
    if report.shares:
        drawn["shares"] = shares(report.shares)
    return drawn


def _is_drawable(history: ReportHistory) -> bool:
    """Return whether a line can be drawn: two moments, and a rate between them."""
    return len(set(history.times)) > 1 and any(number is not None for number in history.series["enqueued"])


def _extents(history: ReportHistory) -> Iterable[Extent]:
    for name, (label, _) in (FLOWS | LEVELS).items():
        numbers = history.series[name]
        if known := [number for number in numbers if number is not None]:
            yield Extent(f"{label} a second" if name in FLOWS else label, numbers[-1], sum(known) / len(known), max(known))
