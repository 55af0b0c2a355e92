"""``fila-cluster reshard``."""

import os
from dataclasses import asdict
from pathlib import Path

import click

from fila_cluster.cli.data.reshard_shown import Shown, progress_bar
from fila_cluster.cli.shared.flags import CONFIG
from fila_cluster.cli.shared.invocation import Invocation, print_json
from fila_cluster.figures import counted, sized
from fila_cluster.run.config.loading import load
from fila_cluster.run.supervisor import reshard
from fila_cluster.run.supervisor.child import PRIVATE
from fila_cluster.run.supervisor.reshard_copy import Progress


@click.command()
@click.option("--shards", type=int, metavar="N", help="The new number of shards, more or fewer.")
@click.option("--data-dir", metavar="DIR", help="Where everything is kept. Default: ./fila-data.")
@click.option("--cancel", is_flag=True, help="Drop an unfinished change: the cluster keeps its old shards.")
@click.option("--json", "as_json", is_flag=True, help="Print JSON instead of text.")
@CONFIG
@click.pass_obj
def command(
    invocation: Invocation, shards: int | None, data_dir: str | None, cancel: bool, as_json: bool, config: Path | None
) -> None:
    """Change the number of shards of a stopped cluster.

    The queues are copied into new shards beside the old ones, which are removed at the end. So the disk needs room for both. If
    the command is interrupted, or killed, run it again: it goes on where it was. Nothing is lost.
    """
    path = Path(load({"server": {"data_dir": data_dir}}, config).server.data_dir)
    as_json = as_json or invocation.as_json
    os.umask(PRIVATE)
    if cancel == (shards is not None):
        raise click.UsageError("give the new number of shards with --shards N, or --cancel")
    if shards is None:
        dropped = reshard.cancel(path)
        _show(as_json, {"cancelled": dropped}, "cancelled" if dropped else f"{path}: nothing to cancel")
        return
    with progress_bar() as bar:
        shown = Shown(bar, quiet=as_json)
        outcome = reshard.reshard(path, shards, shown.announce, Progress(shown.shard, shown.copied))
    if outcome is None:
        _show(as_json, {"before": shards, "after": shards}, f"{path} has {counted(shards, 'shard')} already")
        return
    _show(
        as_json,
        asdict(outcome),
        f"{counted(outcome.before, 'shard')} → {counted(outcome.after, 'shard')}: {counted(outcome.queues, 'queue')}, "
        f"{counted(outcome.messages, 'message')}, {sized(outcome.size_bytes)} in {outcome.seconds:.1f} s",
    )


def _show(as_json: bool, facts: dict[str, object], text: str) -> None:
    if as_json:
        print_json(facts)
    else:
        click.echo(text)
