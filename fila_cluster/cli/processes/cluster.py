"""``fila-cluster up`` and ``fila-cluster node``: a whole cluster, or one host of several."""

import sys
from pathlib import Path

import click

from fila_cluster.cli.shared.invocation import CONFIG, DASHBOARD, INSECURE, LISTEN, NO_DASHBOARD, WORKERS, print_ready
from fila_cluster.run.config.loading import Flags, load
from fila_cluster.run.config.settings import Address
from fila_cluster.run.supervisor.endpoints import IN_DATA_DIR, WorkerEndpoint
from fila_cluster.run.supervisor.up import node, up


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
def up_command(
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


@click.command()
@click.option(
    "--join",
    metavar="ENDPOINT",
    multiple=True,
    help="The --worker-listen of another host, tcp://HOST:PORT; may be repeated, or a list with commas. Default: hosts find "
    "each other.",
)
@click.option("--log", metavar="URL", help="The log of the cluster: kafka://HOST:PORT,HOST:PORT, some of its brokers.")
@click.option(
    "--name",
    metavar="NAME",
    help="This host's name, fixed at the first start. Default: the machine's, and the port if not 5555.",
)
@click.option("--address", metavar="HOST", help="Where other hosts and their clients reach this one. Default: as --listen.")
@LISTEN
@click.option(
    "--worker-listen",
    metavar="ADDR",
    help="Where workers of other hosts connect. Default: the port behind that of --listen.",
)
@click.option(
    "--shards", type=int, metavar="N", help="Shards of the cluster; fixed by the first host. Default: as many as workers."
)
@WORKERS
@click.option("--data-dir", metavar="DIR", help="Where this host's copies are kept. Default: ./fila-data.")
@DASHBOARD
@NO_DASHBOARD
@CONFIG
@INSECURE
def node_command(
    join: tuple[str, ...],
    log: str | None,
    name: str | None,
    address: str | None,
    listen: str | None,
    worker_listen: str | None,
    shards: int | None,
    workers: int | None,
    data_dir: str | None,
    dashboard: str | None,
    no_dashboard: bool,
    config: Path | None,
    insecure: bool,
) -> None:
    """Run one host of a cluster on several hosts in the foreground: a router, its workers and the dashboard, restarted when
    they die.

    Prints one line that begins with "ready:" when its router answers and its workers have their copies of the shards open.
    SIGTERM or Ctrl-C hands the shards that it leads to other hosts and stops it.
    """
    flags: Flags = {
        "server": {"workers": workers, "shards": shards, "listen_addr": listen, "data_dir": data_dir},
        "dashboard": {"listen_addr": dashboard, "enabled": False if no_dashboard else None},
        "replication": {"log": log},
        "hosts": {"name": name, "address": address, "worker_listen_addr": worker_listen, "join": ",".join(join) or None},
    }
    sys.exit(node(load(flags, config), insecure=insecure, announce=announce))
