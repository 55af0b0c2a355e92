"""``fila-cluster top``."""

import asyncio
import sys

import click

from fila_cluster.cli.shared.invocation import Invocation, print_json
from fila_cluster.cli.shared.parameters import DURATION

INTERVAL_S_MIN = 0.1


@click.command()
@click.option("--interval", type=DURATION, default="2s", metavar="D", help="How often to look. Default: 2s.")
@click.option("--queue", metavar="NAME", help="Start with the fairness keys of this queue.")
@click.pass_obj
def command(invocation: Invocation, interval: float, queue: str | None) -> None:
    """Watch the cluster live: queues, fairness keys, workers, and what needs attention.

    Press ? for the keys. With --json before the command: print one snapshot, for which it looks twice, one interval apart.
    """
    if interval < INTERVAL_S_MIN:
        raise click.BadParameter(
            f"{interval:g} s is too often: use at least {INTERVAL_S_MIN * 1000:.0f}ms", param_hint="--interval"
        )
    if not invocation.as_json and not (sys.stdin.isatty() and sys.stdout.isatty()):
        raise click.ClickException("top needs a terminal; `fila-cluster --json top` prints one snapshot instead")
    from fila_cluster.client import AsyncClient, checks  # noqa: PLC0415 # quick --help
    from fila_cluster.ops.top.app import show_live, take_snapshot  # noqa: PLC0415

    if queue is not None:
        checks.queue_name(queue)

    def connect(timeout: float) -> AsyncClient:
        return AsyncClient(invocation.endpoint, timeout=timeout)

    if invocation.as_json:
        print_json(asyncio.run(take_snapshot(connect, interval, queue)))
    else:
        asyncio.run(show_live(connect, interval, queue))
