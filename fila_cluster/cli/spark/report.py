"""``fila-cluster spark report``."""

from collections.abc import Sequence
from dataclasses import asdict
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

import click

from fila_cluster.cli.shared.invocation import Invocation
from fila_cluster.cli.shared.tables import table
from fila_cluster.cli.spark.running import plainly, spark, spark_flags
from fila_cluster.figures import aged, counted, paced

if TYPE_CHECKING:
    from rich.table import Table

    from fila_cluster import Client
    from fila_cluster.ops.analysis.history import HalfHour
    from fila_cluster.spark.report.content import QueueReport

SHOWN = 5
"""Rows of a list in the terminal; the page shows more."""

DASHBOARD_DEFAULT = "http://127.0.0.1:8555"


def _dashboard(ctx: click.Context, param: click.Parameter, value: str | None) -> str | None:
    """Return the address without a slash at the end; HOST:PORT alone is accepted, as for ``up``."""
    if value is None:
        return None
    url = value if "://" in value else f"http://{value}"
    if not _is_plain_url(url):
        raise click.BadParameter(f"{value!r} is not the address of a dashboard: write http://HOST:PORT", ctx, param)
    return url.rstrip("/")


def _is_plain_url(url: str) -> bool:
    try:
        parts = urlsplit(url)
        has_host = bool(parts.hostname) and parts.port != 0
    except ValueError:
        return False
    return parts.scheme in ("http", "https") and has_host and not (parts.query or parts.fragment or parts.username)


@click.command()
@click.argument("queue")
@click.option(
    "--to",
    type=click.Path(path_type=Path, dir_okay=False),
    metavar="FILE.html",
    help="The page with plots. Default: QUEUE-report.html here, and none with --json.",
)
@click.option(
    "--dashboard",
    metavar="URL",
    callback=_dashboard,
    help=f"Whose last half hour to show. Default: {DASHBOARD_DEFAULT}, if it is there.",
)
@spark_flags
@click.pass_obj
def report_command(
    invocation: Invocation, queue: str, to: Path | None, dashboard: str | None, master: str | None, verbose: bool
) -> None:
    """Count QUEUE's dead letters by error, tenant and time, how long its messages wait, and what each tenant gets.

    With the last half hour of the dashboard. Nothing is taken out of the queue, and no payload is shown.
    """
    with plainly():
        from fila_cluster.spark.report.measures import gather, source_queue  # noqa: PLC0415 # needs pyspark

        queue = source_queue(queue)
        if to is None and not invocation.as_json:
            to = Path(f"{queue.replace('/', '-')}-report.html")
        if to is not None:
            _check_writable(to)
        with invocation.connect() as client:
            client.queue_stats(queue)  # unknown queues and wrong endpoints, before Spark starts
            remembered = _ask(dashboard, queue, client)
            with spark("report", master, verbose=verbose) as running:
                report = gather(running, queue, client, remembered)
    if to is not None:
        _write(report, to)
    invocation.show(_plain(asdict(report)), *_tables(report), *([f"\n{to}"] if to else []))


def _ask(dashboard: str | None, queue: str, client: "Client") -> "HalfHour | str":
    """Return a dashboard's history, or why it is missing; an error only if the named address is not a dashboard."""
    from fila_cluster.spark.report.lately import (  # noqa: PLC0415 # quick --help
        NoHistoryError,
        WrongDashboardError,
        ask_half_hour,
    )

    workers = {worker.name: worker.pid for worker in client.cluster_status().workers}
    try:
        return ask_half_hour(dashboard or DASHBOARD_DEFAULT, queue, workers)
    except NoHistoryError as error:
        return str(error)
    except WrongDashboardError as error:
        if dashboard is not None:
            raise click.ClickException(str(error)) from None
        return f"{error} (--dashboard URL names another)"


def _check_writable(to: Path) -> None:
    if not to.parent.is_dir():
        raise click.ClickException(f"cannot write {to}: there is no directory {to.parent}")


def _write(report: "QueueReport", to: Path) -> None:
    from fila_cluster.spark.report.page import page  # noqa: PLC0415 # needs matplotlib

    try:
        to.write_text(page(report), encoding="utf-8")
    except OSError as error:
        raise click.ClickException(f"cannot write {to}: {error.strerror}") from None


def _plain(value: Any) -> Any:
    """Return a value with times as text."""
    if isinstance(value, dict):
        return {name: _plain(part) for name, part in value.items()}
    if isinstance(value, list):
        return [_plain(part) for part in value]
    return value.isoformat() if isinstance(value, datetime) else value


def _tables(report: "QueueReport") -> Sequence["Table | str"]:
    shown: list[Table | str] = [f"{report.queue}: {counted(report.totals.pending)} pending"]
    if report.failures.total:
        shown += [f"\n{counted(report.failures.total, 'dead letter')}", _failures(report)]
    if report.waiting:
        shown += ["", _waiting(report)]
    if report.shares:
        shown += ["", _shares(report)]
    if report.no_history:
        shown.append(f"\nwithout the last half hour: {report.no_history}")
    return shown


def _failures(report: "QueueReport") -> "Table":
    rows = table("error", "#dead letters")
    for entry in report.failures.by_error[:SHOWN]:
        rows.add_row(entry.name or "all others", counted(entry.count))
    return rows


def _waiting(report: "QueueReport") -> "Table":
    rows = table("waiting", "#messages", "#p50", "#p90", "#p99")
    for entry in report.waiting[: SHOWN + 1]:
        name = "all tenants" if entry.fairness_key is None else entry.fairness_key
        rows.add_row(name, counted(entry.messages), aged(entry.p50_s), aged(entry.p90_s), aged(entry.p99_s))
    return rows


def _shares(report: "QueueReport") -> "Table":
    lately = report.shares_span == "last_minute"
    rows = table(
        "shares, last minute" if lately else "shares",
        "#weight",
        "#delivered/s" if lately else "#delivered",
        "#share",
        "#entitled",
    )
    for entry in report.shares[:SHOWN]:
        name = "all others" if entry.fairness_key is None else entry.fairness_key
        got = counted(entry.delivered) if entry.delivered_per_s is None else paced(entry.delivered_per_s)
        rows.add_row(name, counted(entry.weight), got, f"{entry.share:.1%}", f"{entry.entitled:.1%}")
    return rows
