"""``fila-cluster status`` and ``fila-cluster top``."""

import asyncio
import sys
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

import click

from fila_cluster.cli.shared.invocation import Invocation, print_json
from fila_cluster.cli.shared.parameters import DURATION
from fila_cluster.cli.shared.tables import flagged, table
from fila_cluster.figures import counted, ranged, sized
from fila_proto_zmq.outages import FOLLOWING

if TYPE_CHECKING:
    from collections.abc import Iterator

    from rich.table import Table
    from rich.text import Text

    from fila_cluster.client.views import ClusterStatus, WorkerStatus


@click.command()
@click.option("--hosts", is_flag=True, help="Show who leads and follows each shard, and what is at risk now.")
@click.pass_obj
def status_command(invocation: Invocation, hosts: bool) -> None:
    """Show the cluster and its workers; with --hosts, the hosts of a cluster that has several."""
    if hosts:
        with invocation.connect() as client:
            found = client.hosts()
        from fila_cluster.cli.shared import hosts as shown  # noqa: PLC0415  # quick status

        invocation.show(found, *shown.tables(found))
        return
    with invocation.connect() as client:
        status = client.cluster_status()
    shards = "1 shard" if status.shards == 1 else f"{status.shards} shards"
    invocation.show(_facts(status), f"fila-cluster {status.version}, {shards}\n", _workers(status), *_outages(status))


def _facts(status: "ClusterStatus") -> dict[str, Any]:
    """Return the fields of the status. ``outages`` and ``draining`` come only where there are any: usual rows stay the same."""
    facts = asdict(status)
    for worker in facts["workers"]:
        if not worker["outages"]:
            del worker["outages"]
        if not worker["draining"]:
            del worker["draining"]
    return facts


def _workers(status: "ClusterStatus") -> "Table":
    rows = table("worker", "state", "#pid", "#queues", "#memory", "shards")
    for worker in status.workers:
        rows.add_row(
            worker.name,
            flagged(_state(worker), good=worker.state == "up"),
            str(worker.pid),
            counted(worker.queues),
            sized(worker.rss_bytes),
            ranged(worker.shards),
        )
    return rows


def _state(worker: "WorkerStatus") -> str:
    if not worker.draining:
        return worker.state
    return f"{worker.state}, {'draining' if worker.shards else 'drained'}"


def _outages(status: "ClusterStatus") -> "Iterator[Text]":
    """Yield the outages. A worker that follows a shard is not one if another worker serves it."""
    outside = {(worker.name, outage.shard) for worker in status.workers for outage in worker.outages}
    served = {
        shard
        for worker in status.workers
        if worker.state == "up"
        for shard in worker.shards
        if (worker.name, shard) not in outside
    }
    for worker in status.workers:
        for outage in worker.outages:
            if outage.state == FOLLOWING and outage.shard in served:
                continue
            yield flagged(f"\nshard {outage.shard} on {worker.name} is {outage.state}: {outage.reason}", good=False)


INTERVAL_S_MIN = 0.1


@click.command()
@click.option("--interval", type=DURATION, default="2s", metavar="D", help="How often to look. Default: 2s.")
@click.option("--queue", metavar="NAME", help="Start with the fairness keys of this queue.")
@click.pass_obj
def top_command(invocation: Invocation, interval: float, queue: str | None) -> None:
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
