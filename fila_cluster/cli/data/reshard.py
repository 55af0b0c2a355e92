"""``fila-cluster reshard``."""

import os
import sys
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING

import click
from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn

from fila_cluster.cli.shared.invocation import CONFIG, Invocation, print_json
from fila_cluster.figures import counted, paced, sized
from fila_cluster.run.config.loading import load
from fila_cluster.run.supervisor import reshard
from fila_cluster.run.supervisor.child import PRIVATE
from fila_cluster.run.supervisor.reshard import CopyProgress

if TYPE_CHECKING:
    from fila_cluster.run.supervisor.data_dir import ReshardPlan
    from fila_cluster.run.supervisor.reshard import Space


@click.command()
@click.option("--shards", type=int, metavar="N", help="The new number of shards, more or fewer.")
@click.option("--data-dir", metavar="DIR", help="Where everything is kept. Default: ./fila-data.")
@click.option("--cancel", is_flag=True, help="Drop an unfinished change: the cluster keeps its old shards.")
@click.option("--json", "as_json", is_flag=True, help="Print JSON instead of text.")
@CONFIG
@click.pass_obj
def reshard_command(
    invocation: Invocation, shards: int | None, data_dir: str | None, cancel: bool, as_json: bool, config: Path | None
) -> None:
    """Change the number of shards of a stopped cluster.

    The queues are copied into new shards beside the old ones, which are removed at the end. So the disk needs room for both.
    If the command is interrupted, or killed, run it again: it continues. Nothing is lost.
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
        shown = ReshardDisplay(bar, quiet=as_json)
        outcome = reshard.reshard(path, shards, shown.announce, CopyProgress(shown.shard, shown.copied))
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


def progress_bar() -> Progress:
    """Return a progress bar on standard error, hidden where that is not a terminal."""
    return Progress(
        TextColumn("{task.description}"),
        BarColumn(),
        TextColumn("{task.fields[figures]}"),
        TimeRemainingColumn(),
        console=Console(stderr=True),
        transient=True,
        disable=not sys.stderr.isatty(),
    )


class ReshardDisplay:
    """The output during the copy."""

    def __init__(self, bar: Progress, *, quiet: bool) -> None:
        self._bar, self._quiet = bar, quiet
        self._task = bar.add_task("", total=None, figures="")
        self._before = 0

    def announce(self, plan: "ReshardPlan", space: "Space") -> None:
        """Print the space that the copy needs, before it begins."""
        self._before = plan.before
        if not self._quiet:
            click.echo(
                f"{counted(plan.before, 'shard')} → {counted(plan.after, 'shard')}: needs up to {sized(space.needed)} "
                f"beside the old ones, {sized(space.free)} are free",
                err=True,
            )

    def shard(self, index: int, messages: int) -> None:
        """Begin with an old shard."""
        self._bar.reset(
            self._task,
            total=messages,
            description=f"shard {index + 1} of {self._before}",
            figures=counted(messages, "message"),
        )

    def copied(self, messages: int) -> None:
        """Advance within it."""
        self._bar.advance(self._task, messages)
        task = self._bar.tasks[self._task]
        if task.speed:
            self._bar.update(self._task, figures=f"{counted(int(task.completed))} messages, {paced(task.speed)}/s")
