"""The common part of the Spark commands: their flags, the session that they run in, and a progress bar."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, TypeVar

import click
from rich.console import Console
from rich.progress import BarColumn, Progress, TaskProgressColumn, TextColumn, TimeElapsedColumn

from fila_cluster.cli.spark.requirements import what_is_missing

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_Command = TypeVar("_Command", bound=Callable[..., Any])


def spark_flags(command: _Command) -> _Command:
    """Add ``--master`` and ``--verbose``."""
    master = click.option("--master", metavar="URL", help="The Spark cluster to run on. Default: this machine's cores.")
    verbose = click.option("--verbose", is_flag=True, help="Show Spark's own output on standard error.")
    return master(verbose(command))


@contextmanager
def plainly() -> Iterator[None]:
    """Refuse to start without Spark or Java, and turn a pipeline's failure into one line and exit code 1."""
    if missing := what_is_missing():
        raise click.ClickException(missing)
    from fila_cluster.spark.pipelines.session import PipelineError  # noqa: PLC0415 # needs pyspark

    try:
        yield
    except PipelineError as error:
        raise click.ClickException(str(error)) from error


@contextmanager
def spark(name: str, master: str | None, *, verbose: bool) -> Iterator["SparkSession"]:
    """Open a session, with a status line on standard error while it starts."""
    from fila_cluster.spark.pipelines.session import spark_session  # noqa: PLC0415 # needs pyspark

    waiting = Console(stderr=True).status("Spark starts …")
    waiting.start()
    try:
        with spark_session(master, name=f"fila-cluster spark {name}", verbose=verbose) as session:
            waiting.stop()
            yield session
    finally:
        waiting.stop()


def bar() -> Progress:
    """Return a bar on standard error, if that is a terminal. Its tasks have a field ``rows``."""
    console = Console(stderr=True)
    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        TaskProgressColumn(),
        TextColumn("{task.fields[rows]} rows"),
        TimeElapsedColumn(),
    )
    return Progress(*columns, console=console, transient=True, disable=not console.is_terminal)
