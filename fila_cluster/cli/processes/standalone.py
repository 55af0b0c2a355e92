"""``fila-cluster router`` and ``fila-cluster worker``: one process alone."""

from pathlib import Path

import click

from fila_cluster.cli.shared.invocation import CONFIG, INSECURE, LISTEN
from fila_cluster.run.config.loading import load
from fila_cluster.run.config.settings import checked_address
from fila_cluster.run.supervisor import standalone
from fila_cluster.run.supervisor.auth import read_token
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
def router_command(
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


@click.command()
@click.option("--join", metavar="ENDPOINT", required=True, help="The router's --worker-listen: tcp://HOST:PORT.")
@click.option(
    "--shard", "hosted", type=int, metavar="S", multiple=True, required=True, help="A shard to host; may be repeated."
)
@click.option(
    "--shards", type=int, metavar="N", help="The number of shards of the cluster. Default: as the data directory says."
)
@click.option("--data-dir", metavar="DIR", help="Where the shards are kept. Default: ./fila-data.")
@click.option("--name", metavar="NAME", help="Its name, of which there may be one. Default: worker-S of its first shard.")
@click.option(
    "--direct-listen",
    metavar="ADDR",
    help="Where clients may reach it without the router, tcp://HOST:PORT. Default: only a socket in the data directory.",
)
@click.option(
    "--token",
    envvar="FILA_WORKER_TOKEN",
    metavar="TOKEN",
    help="For a router with authentication: the token of `fila-cluster auth init`. Better in FILA_WORKER_TOKEN: others see "
    "arguments.",
)
@INSECURE
@CONFIG
def worker_command(
    join: str,
    hosted: tuple[int, ...],
    shards: int | None,
    data_dir: str | None,
    name: str | None,
    direct_listen: str | None,
    token: str | None,
    insecure: bool,
    config: Path | None,
) -> None:
    """Run a worker alone in the foreground, for the shards that are kept here."""
    settings = load({"server": {"shards": shards, "data_dir": data_dir}}, config)
    door = None if direct_listen is None else checked_address(direct_listen, "--direct-listen")
    router, shown = WorkerEndpoint.parse(join, "--join"), name or f"worker-{hosted[0]}"
    keys = None if token is None else read_token(token)
    standalone.worker(settings, router, shown, sorted(set(hosted)), door, keys, insecure=insecure)
