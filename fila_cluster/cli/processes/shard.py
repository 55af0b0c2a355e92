"""``fila-cluster shard …``."""

import click

from fila_cluster.cli.shared.invocation import Invocation

MOVE_S_MAX = 65.0
"""A little longer than the router gives a move, so that its answer says what is wrong."""


@click.group()
def command() -> None:
    """Move shards from one worker to another, while the cluster runs."""


@command.command("move", short_help="Have another worker host a shard.")
@click.argument("shard", type=int)
@click.argument("worker")
@click.pass_obj
def move(invocation: Invocation, shard: int, worker: str) -> None:
    """Have WORKER host SHARD, and wait until it serves there. `status` lists both.

    The two workers use one data directory. Clients wait for a moment and see no error. The move holds until the cluster is started
    again: `up` deals all shards anew.
    """
    from fila_proto_zmq.commands import MoveShard  # noqa: PLC0415 # quick --help

    with invocation.connect(timeout=MOVE_S_MAX) as client:
        client.request(MoveShard(shard, worker))
    invocation.show({"shard": shard, "worker": worker}, f"shard {shard} is on {worker}")
