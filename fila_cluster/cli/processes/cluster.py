"""``fila-cluster up``, ``node``, ``router``, ``worker`` and ``work``."""

import sys
from collections.abc import Sequence
from pathlib import Path

import click

from fila_cluster.cli.processes.welcome import announce, announcing, quieter
from fila_cluster.cli.shared.invocation import (
    CONFIG,
    DASHBOARD,
    DATA_DIR,
    INSECURE,
    LISTEN,
    NO_DASHBOARD,
    WORKERS,
    Invocation,
    print_ready,
)
from fila_cluster.cli.shared.parameters import DURATION
from fila_cluster.run.config.loading import Flags, load
from fila_cluster.run.config.settings import checked_address
from fila_cluster.run.supervisor.auth import read_token
from fila_cluster.run.supervisor.endpoints import IN_DATA_DIR, WorkerEndpoint
from fila_cluster.run.supervisor.up import node, router, up, worker


@click.command()
@WORKERS
@click.option("--shards", type=int, metavar="N", help="Shards, fixed at the first start. Default: as many as workers.")
@LISTEN
@click.option("--worker-listen", metavar="ENDPOINT", help="Where workers connect. Default: a socket in the data directory.")
@DATA_DIR
@DASHBOARD
@NO_DASHBOARD
@click.option(
    "--durability",
    type=click.Choice(["os", "fsync"]),
    help="What a confirmed write survives: the end of any process (os, the default), or a power cut too (fsync).",
)
@CONFIG
@INSECURE
@click.pass_obj
def up_command(
    invocation: Invocation,
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

    Prints one line that begins with "ready:" when it serves. At a terminal, unless --json is before the command, it also says
    how to go on, and logs from warnings on if no log_level is set. SIGTERM or Ctrl-C stops it.
    """
    flags: Flags = {
        "server": {"workers": workers, "shards": shards, "listen_addr": listen, "data_dir": data_dir},
        "dashboard": {"listen_addr": dashboard, "enabled": False if no_dashboard else None},
        "storage": {"durability": durability},
    }
    worker_endpoint = IN_DATA_DIR if worker_listen is None else WorkerEndpoint.parse(worker_listen, "--worker-listen")
    settings = quieter(invocation, load(flags, config))
    sys.exit(up(settings, worker_endpoint, insecure=insecure, announce=announcing(invocation, settings)))


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
    "--worker-listen", metavar="ADDR", help="Where workers of other hosts connect. Default: the port behind that of --listen."
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
    listen: str | None, worker_listen: str, data_dir: str | None, shards: int | None, config: Path | None, insecure: bool
) -> None:
    """Run a router alone in the foreground; its workers join it with `fila-cluster worker`."""
    settings = load({"server": {"listen_addr": listen, "shards": shards, "data_dir": data_dir}}, config)
    router(settings, WorkerEndpoint.parse(worker_listen, "--worker-listen"), insecure=insecure)


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
    endpoint, shown = WorkerEndpoint.parse(join, "--join"), name or f"worker-{hosted[0]}"
    keys = None if token is None else read_token(token)
    worker(settings, endpoint, shown, sorted(set(hosted)), door, keys, insecure=insecure)


PROCESSES_MAX = 1024
GRACE_S_MAX = 24 * 3600.0


@click.command()
@click.argument("app", metavar="MODULE:APP")
@click.option(
    "--processes", type=click.IntRange(1, PROCESSES_MAX), default=1, metavar="N", help="How many processes. Default: 1."
)
@click.option(
    "--grace", type=DURATION, default="25s", metavar="D", help="How long handlers may run after a SIGTERM. Default: 25s."
)
@click.option("--reload", is_flag=True, help="Restart when a Python file in this directory changes: for development.")
@click.pass_obj
def work_command(invocation: Invocation, app: str, processes: int, grace: float, reload: bool) -> None:
    """Run the handlers of an app, in processes that are restarted when they die.

    MODULE:APP names it: shop.handlers:app is `app` in shop/handlers.py. Prints one line that begins with "ready:" when it
    serves. SIGTERM or Ctrl-C drains: no more messages are taken, and handlers finish what they have; a second one gives that
    back at once. SIGHUP restarts the processes one after the other, each as soon as its successor serves.
    """
    from fila_cluster.run.supervisor import CannotStartError  # noqa: PLC0415 # quick --help
    from fila_cluster.run.work.loading import CannotLoadError, split_name  # noqa: PLC0415
    from fila_cluster.run.work.supervising import Crew, supervise  # noqa: PLC0415

    if not 0 <= grace <= GRACE_S_MAX:
        raise click.BadParameter(f"{grace:g} s: use 0 to 24h", param_hint="--grace")
    try:
        split_name(app)
    except CannotLoadError as error:
        raise click.BadParameter(str(error), param_hint="MODULE:APP") from None

    def serves(count: int, queues: Sequence[str]) -> None:
        print_ready(f"{app} · {count} {'process' if count == 1 else 'processes'} · {', '.join(queues)}")

    try:
        supervise(Crew(app, Path.cwd(), processes, grace, reload, invocation.endpoint, serves))
    except CannotStartError as error:
        raise click.ClickException(str(error)) from None
