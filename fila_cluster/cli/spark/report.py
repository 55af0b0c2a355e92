"""``fila-cluster spark report``."""

from collections.abc import Sequence
from dataclasses import asdict
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from fila_cluster.cli.session import Session
from fila_cluster.cli.spark.running import plainly, spark, spark_flags
from fila_cluster.cli.tables import table
from fila_cluster.figures import aged, counted

if TYPE_CHECKING:
    from rich.table import Table

    from fila_cluster.spark.report.figures import Report

SHOWN = 5
"""Rows of a list in the terminal; the page has more."""


@click.command()
@click.argument("queue")
@click.option(
    "--to",
    type=click.Path(path_type=Path, dir_okay=False),
    metavar="FILE.html",
    help="The page with plots. Default: QUEUE-report.html here, and none with --json.",
)
@spark_flags
@click.pass_obj
def command(session: Session, queue: str, to: Path | None, master: str | None, verbose: bool) -> None:
    """Count QUEUE's dead letters by error, tenant and time, how long its messages wait, and what each tenant gets.

    Nothing is taken out of the queue, and no payload is shown.
    """
    with plainly():
        from fila_cluster.spark.report.gather import gather, source_queue  # noqa: PLC0415 # needs pyspark

        queue = source_queue(queue)
        if to is None and not session.as_json:
            to = Path(f"{queue.replace('/', '-')}-report.html")
        if to is not None:
            _check_writable(to)
        with session.connect() as client:
            client.queue_stats(queue)  # unknown queues and wrong endpoints, before Spark starts
            with spark("report", master, verbose=verbose) as running:
                report = gather(running, queue, client)
    if to is not None:
        _write(report, to)
    session.show(_plain(asdict(report)), *_tables(report), *([f"\n{to}"] if to else []))


def _check_writable(to: Path) -> None:
    if not to.parent.is_dir():
        raise click.ClickException(f"cannot write {to}: there is no directory {to.parent}")


def _write(report: "Report", to: Path) -> None:
    from fila_cluster.spark.report.page import page  # noqa: PLC0415 # needs matplotlib

    try:
        to.write_text(page(report), encoding="utf-8")
    except OSError as error:
        raise click.ClickException(f"cannot write {to}: {error.strerror}") from None


def _plain(value: Any) -> Any:
    """With times as text."""
    if isinstance(value, dict):
        return {name: _plain(part) for name, part in value.items()}
    if isinstance(value, list):
        return [_plain(part) for part in value]
    return value.isoformat() if isinstance(value, datetime) else value


def _tables(report: "Report") -> Sequence["Table | str"]:
    shown: list[Table | str] = [f"{report.queue}: {counted(report.totals.pending)} pending"]
    if report.failures.total:
        shown += [f"\n{counted(report.failures.total)} dead letters", _failures(report)]
    if report.waiting:
        shown += ["", _waiting(report)]
    if report.shares:
        shown += ["", _shares(report)]
    return shown


def _failures(report: "Report") -> "Table":
    rows = table("error", "#dead letters")
    for entry in report.failures.by_error[:SHOWN]:
        rows.add_row(entry.name or "all others", counted(entry.count))
    return rows


def _waiting(report: "Report") -> "Table":
    rows = table("waiting", "#messages", "#p50", "#p90", "#p99")
    for entry in report.waiting[: SHOWN + 1]:
        name = "all tenants" if entry.fairness_key is None else entry.fairness_key
        rows.add_row(name, counted(entry.messages), aged(entry.p50_s), aged(entry.p90_s), aged(entry.p99_s))
    return rows


def _shares(report: "Report") -> "Table":
    rows = table("shares", "#weight", "#delivered", "#share", "#entitled")
    for entry in report.shares[:SHOWN]:
        name = "all others" if entry.fairness_key is None else entry.fairness_key
        rows.add_row(name, counted(entry.weight), counted(entry.delivered), f"{entry.share:.1%}", f"{entry.entitled:.1%}")
    return rows
