"""``fila-cluster doctor``."""

import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import click

from fila_cluster.cli.shared.invocation import CONFIG, DASHBOARD, DATA_DIR, LISTEN, NO_DASHBOARD, Invocation
from fila_cluster.cli.shared.tables import flagged, table

if TYPE_CHECKING:
    from collections.abc import Sequence

    from rich.table import Table

    from fila_cluster.run.config.loading import Flags
    from fila_cluster.run.doctor.checks import Diagnosis


@click.command()
@LISTEN
@DATA_DIR
@DASHBOARD
@NO_DASHBOARD
@CONFIG
@click.pass_obj
def doctor_command(
    invocation: Invocation,
    listen: str | None,
    data_dir: str | None,
    dashboard: str | None,
    no_dashboard: bool,
    config: Path | None,
) -> None:
    """Check this machine for a cluster, and the cluster if one runs: ports, disk, limits, memory, versions, clocks, configuration.

    Each line is ok, a warning or an error, with what to do. Nothing is changed. Give it the options that `up` gets. With an
    error the exit code is 1. A broker that is named by --endpoint or FILA_ENDPOINT must answer; else silence is a warning.
    """
    from fila_cluster.run.doctor.checks import Level  # noqa: PLC0415 # quick --help
    from fila_cluster.run.doctor.looking import diagnoses  # noqa: PLC0415

    flags: Flags = {
        "server": {"listen_addr": listen, "data_dir": data_dir},
        "dashboard": {"listen_addr": dashboard, "enabled": False if no_dashboard else None},
    }
    found = list(diagnoses(invocation.endpoint or os.environ.get("FILA_ENDPOINT"), flags, config))
    failed = any(each.level == Level.ERROR for each in found)
    invocation.show({"ok": not failed, "findings": found}, _shown(found))
    sys.exit(1 if failed else 0)


def _shown(found: "Sequence[Diagnosis]") -> "Table":
    rows = table("", "check", "found, and what to do")
    for each in found:
        rows.add_row(flagged(each.level, good=each.level == "ok"), each.check, each.found)
        if each.action:
            rows.add_row("", "", f"→ {each.action}")
    return rows
