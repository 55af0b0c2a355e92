"""What a reshard shows while it copies."""

import sys
from typing import TYPE_CHECKING

import click
from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn

from fila_cluster.figures import counted, paced, sized

if TYPE_CHECKING:
    from fila_cluster.run.supervisor.reshard import Space
    from fila_cluster.run.supervisor.reshard_plan import Plan


def progress_bar() -> Progress:
    """Return a progress bar on standard error, which shows nothing where that is no terminal."""
    return Progress(
        TextColumn("{task.description}"),
        BarColumn(),
        TextColumn("{task.fields[figures]}"),
        TimeRemainingColumn(),
        console=Console(stderr=True),
        transient=True,
        disable=not sys.stderr.isatty(),
    )


class Shown:
    """What is shown during the copy."""

    def __init__(self, bar: Progress, *, quiet: bool) -> None:
        self._bar, self._quiet = bar, quiet
        self._task = bar.add_task("", total=None, figures="")
        self._before = 0

    def announce(self, plan: "Plan", space: "Space") -> None:
        """Say what the copy needs, before it begins."""
        self._before = plan.before
        if not self._quiet:
            click.echo(
                f"{counted(plan.before, 'shard')} → {counted(plan.after, 'shard')}: needs up to {sized(space.needed)} beside the "
                f"old ones, {sized(space.free)} are free",
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
        """Go on with it."""
        self._bar.advance(self._task, messages)
        task = self._bar.tasks[self._task]
        if task.speed:
            self._bar.update(self._task, figures=f"{counted(int(task.completed))} messages, {paced(task.speed)}/s")
