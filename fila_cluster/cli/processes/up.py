"""``fila-cluster up``."""

import sys
from pathlib import Path

import click

from fila_cluster.cli.shared.flags import CONFIG, DASHBOARD, INSECURE, LISTEN, NO_DASHBOARD, WORKERS
from fila_cluster.cli.shared.invocation import print_ready
from fila_cluster.run.config.address import Address
from fila_cluster.run.config.loading import Flags, load
from fila_cluster.run.supervisor.endpoints import IN_DATA_DIR, WorkerEndpoint
from fila_cluster.run.supervisor.up import up


@click.command()
@WORKERS
@click.option("--shards", type=int, metavar="N", help="Shards, fixed at the first start. Default: as many as workers.")
@LISTEN
@click.option("--worker-listen", metavar="ENDPOINT", help="Where workers connect. Default: a socket in the data directory.")
@click.option("--data-dir", metavar="DIR", help="Where everything is kept. Default: ./fila-data.")
@DASHBOARD
@NO_DASHBOARD
@click.option(
    "--durability",
    type=click.Choice(["os", "fsync"]),
    help="What a confirmed write survives: the end of any process (os, the default), or a power cut too (fsync).",
)
@CONFIG
@INSECURE
def command(
    workers: int | None,
    shards: int | None,
    listen: str | None,
    worker_listen: str | None,
    data_dir: str | None,
    dashboard: str | None,
    no_dashboard: bool,
    durability: str | None,
    config: Path | None,
    insecure: bool,
) -> None:
    """Run a cluster in the foreground: a router, its workers and the dashboard, restarted when they die.

    Prints one line that begins with "ready:" when it serves. SIGTERM or Ctrl-C stops it.
    """
    flags: Flags = {
        "server": {"workers": workers, "shards": shards, "listen_addr": listen, "data_dir": data_dir},
        "dashboard": {"listen_addr": dashboard, "enabled": False if no_dashboard else None},
        "storage": {"durability": durability},
    }
    worker_endpoint = IN_DATA_DIR if worker_listen is None else WorkerEndpoint.parse(worker_listen, "--worker-listen")
    sys.exit(up(load(flags, config), worker_endpoint, insecure=insecure, announce=announce))


def announce(listen: Address, dashboard: str | None, workers: int) -> None:
    """Print the line that says that all parts serve."""
    watched = f"dashboard {dashboard} · " if dashboard else ""
    print_ready(f"{listen.endpoint} · {watched}{workers} workers")
