"""The report as one HTML file, without scripts, fonts and network.

All texts from outside (queues, tenants, errors) are escaped by Jinja2; only the pictures are markup, made by :mod:`.plots`.
"""

from collections.abc import Iterable
from typing import NamedTuple

from jinja2 import Environment, PackageLoader
from markupsafe import Markup

from fila_cluster.spark.report import plots
from fila_cluster.spark.report.content import SERIES_SHOWN, QueueReport, ReportHistory


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
    environment.filters["duration"] = plots.duration
    environment.filters["about"] = lambda number: "–" if number is None else f"{number:,.{1 if number < 100 else 0}f}"
    drawn = {name: Markup(svg) for name, svg in _drawn(report).items()}  # matplotlib's, which escapes
    return environment.get_template("page.html").render(
        report=report,
        plots=drawn,
        others=plots.OTHERS,
        together=plots.TOGETHER,
        totals=report.totals,
        extents=list(_extents(report.history)) if report.history else [],
    )


def _drawn(report: QueueReport) -> dict[str, str]:
    """Return the pictures of the present numbers."""
    failures = report.failures
    drawn = {}
    if report.history and _is_drawable(report.history):
        drawn["flows"] = plots.flows(report.history)
        drawn["levels"] = plots.levels(report.history)
    if failures.total:
        reasons = [count.name or plots.OTHERS for count in failures.by_reason]
        errors = [count.name or plots.OTHERS for count in failures.by_error if count.name][:SERIES_SHOWN]
        drawn["over_time"] = plots.failures_over_time(failures)
        drawn["errors"] = plots.counts(failures.by_error, reasons, "errors")
        drawn["tenants"] = plots.counts(failures.by_tenant, errors, "tenants")
        drawn["dwell"] = plots.dwell(failures.dwell, "dwell")
    if report.waiting:
        drawn["waiting"] = plots.dwell(report.waiting, "waiting")
    if report.shares:
        drawn["shares"] = plots.shares(report.shares)
    return drawn


def _is_drawable(history: ReportHistory) -> bool:
    """Return whether a line can be drawn: two moments, and a rate between them."""
    return len(set(history.times)) > 1 and any(number is not None for number in history.series["enqueued"])


def _extents(history: ReportHistory) -> Iterable[Extent]:
    for name, (label, _) in (plots.FLOWS | plots.LEVELS).items():
        numbers = history.series[name]
        if known := [number for number in numbers if number is not None]:
            yield Extent(
                f"{label} a second" if name in plots.FLOWS else label, numbers[-1], sum(known) / len(known), max(known)
            )
