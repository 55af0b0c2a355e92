"""The report as one HTML file that needs nothing else: no scripts, no fonts, no network.

Everything that came from outside (queues, tenants, errors) is escaped by Jinja2; the pictures alone are markup, made by
:mod:`.plots`.
"""

from jinja2 import Environment, PackageLoader
from markupsafe import Markup

from fila_cluster.spark.report import plots
from fila_cluster.spark.report.figures import SERIES_SHOWN, Report


def page(report: Report) -> str:
    """The HTML."""
    environment = Environment(loader=PackageLoader(__package__, ""), autoescape=True, trim_blocks=True, lstrip_blocks=True)
    environment.filters["number"] = "{:,}".format
    environment.filters["percent"] = "{:.1%}".format
    environment.filters["duration"] = plots.duration
    drawn = {name: Markup(svg) for name, svg in _drawn(report).items()}  # matplotlib's, which escapes
    return environment.get_template("page.html").render(
        report=report, plots=drawn, others=plots.OTHERS, together=plots.TOGETHER, totals=report.totals
    )


def _drawn(report: Report) -> dict[str, str]:
    """Only of what there is."""
    failures = report.failures
    drawn = {}
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
