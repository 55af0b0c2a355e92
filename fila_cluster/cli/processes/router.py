"""``fila-cluster router``."""

from pathlib import Path

import click

from fila_cluster.cli.shared.flags import CONFIG, INSECURE, LISTEN
from fila_cluster.run.config.loading import load
from fila_cluster.run.supervisor import standalone
from fila_cluster.run.supervisor.endpoints import WorkerEndpoint


@click.command()
@LISTEN
@click.option(
    "--worker-listen", metavar="ENDPOINT", required=True, help="Where workers connect: tcp://HOST:PORT or ipc://PATH."
)
@click.option("--data-dir", metavar="DIR", help="Where `fila-cluster auth init` has put the keys, with [auth] enabled.")
@click.option("--shards", type=int, metavar="N", help="The number of shards of the cluster.")
@CONFIG
@INSECURE
def command(
    listen: str | None,
    worker_listen: str,
    data_dir: str | None,
    shards: int | None,
    config: Path | None,
    insecure: bool,
) -> None:
    """Run a router alone in the foreground; its workers join it with `fila-cluster worker`."""
    settings = load({"server": {"listen_addr": listen, "shards": shards, "data_dir": data_dir}}, config)
    standalone.router(settings, WorkerEndpoint.parse(worker_listen, "--worker-listen"), insecure=insecure)
