"""``fila-cluster shard …`` and ``fila-cluster drain``: shards move between workers."""

import time
from typing import TYPE_CHECKING

import click

from fila_cluster.cli.shared.invocation import Invocation
from fila_cluster.figures import ranged
from fila_proto_zmq.outages import BEGINNING, FOLLOWING, QUARANTINED

if TYPE_CHECKING:
    from fila_cluster import Client
    from fila_cluster.client.views import WorkerStatus

MOVE_S_MAX = 65.0
"""A little longer than the router's limit of a move, so that its answer has the reason."""


@click.group()
def shard_command() -> None:
    """Move shards from one worker to another, while the cluster runs."""


@shard_command.command("move", short_help="Move a shard to another worker.")
@click.argument("shard", type=int)
@click.argument("worker")
@click.pass_obj
def move(invocation: Invocation, shard: int, worker: str) -> None:
    """Move SHARD to WORKER, and wait until it serves there. `status` lists both.

    The two workers use one data directory. Clients wait for a moment and see no error. The move holds until the cluster is
    started again: `up` deals all shards anew.
    """
    from fila_proto_zmq.commands import MoveShard  # noqa: PLC0415 # quick --help

    with invocation.connect(timeout=MOVE_S_MAX) as client:
        client.request(MoveShard(shard, worker))
    invocation.show({"shard": shard, "worker": worker}, f"shard {shard} is on {worker}")


LOOK_S = 0.2


@click.command()
@click.argument("name", metavar="WORKER|HOST")
@click.option(
    "--undo", is_flag=True, help="Let it take shards again. On one host it gets none back by itself: use `shard move`."
)
@click.pass_obj
def drain_command(invocation: Invocation, name: str, undo: bool) -> None:
    """Move all shards of WORKER to the other workers of its data directory, one after the other, and wait for the end.

    On several hosts WORKER leaves its shards to workers of the other hosts, and follows them on. HOST stands for all its
    workers.

    It takes no shard until the drain is undone, or the worker is restarted. If this command is stopped, the drain continues.
    """
    from fila_proto_zmq.commands import DrainWorker  # noqa: PLC0415 # quick --help

    with invocation.connect() as client:
        workers = _named(client, name)
        for worker in workers:
            client.request(DrainWorker(worker, undo))
        statuses = [_status(client, worker) if undo else _wait(client, worker) for worker in workers]
    shards = sorted(shard for status in statuses for shard in _served(status))
    takes = "takes shards again" if undo else "is drained: it has no shards, and takes none"
    shown = {"shards": shards, "draining": all(status.draining for status in statuses)}
    if workers == [name]:
        invocation.show({"worker": name, **shown}, f"{name} {takes}")
    else:
        invocation.show({"host": name, "workers": workers, **shown}, f"{name} {takes} ({', '.join(workers)})")


def _named(client: "Client", name: str) -> list[str]:
    """Return the workers of a host, or the worker of this name."""
    names = [each.name for each in client.cluster_status().workers]
    return [each for each in names if name not in names and each.startswith(f"{name}/")] or [name]


def _wait(client: "Client", worker: str) -> "WorkerStatus":
    while left := _served(status := _status(client, worker)):
        if not status.draining:
            raise click.ClickException(f"{worker} was restarted, or its drain was undone, with shards left: drain it again")
        if left <= _out_with(status, QUARANTINED):
            raise click.ClickException(f"{worker} keeps {ranged(sorted(left))}: a shard can only be moved while it serves")
        time.sleep(LOOK_S)
    return status


def _served(status: "WorkerStatus") -> set[int]:
    """Return the shards that a worker serves, or should serve; of several hosts each has a copy of all others."""
    return {*status.shards} - _out_with(status, FOLLOWING, BEGINNING)


def _out_with(status: "WorkerStatus", *states: str) -> set[int]:
    return {outage.shard for outage in status.outages if outage.state in states}


def _status(client: "Client", worker: str) -> "WorkerStatus":
    for each in client.cluster_status().workers:
        if each.name == worker:
            return each
    raise click.ClickException(f"{worker} is gone: `fila-cluster status` shows where its shards are")
