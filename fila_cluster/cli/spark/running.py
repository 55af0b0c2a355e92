"""The common part of the Spark commands: their flags, the session that they run in, a progress bar, and what Spark
requires."""

import os
import re
import shutil
import subprocess
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import click
from rich.console import Console
from rich.progress import BarColumn, Progress, TaskProgressColumn, TextColumn, TimeElapsedColumn

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
    if missing := _missing_packages() or what_java_lacks():
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


JAVA_VERSION_MIN = 17
_PACKAGES = ("pyspark", "pyarrow", "numpy", "matplotlib", "jinja2")
_VERSION = re.compile(r'version "(?:1\.)?(\d+)')
"""``17.0.15``, or ``1.8.0`` for Java 8."""
_ADVICE = (
    f"Spark needs Java {JAVA_VERSION_MIN} or later: install it (Debian, Ubuntu: apt-get install default-jre-headless; "
    "macOS: brew install openjdk@17; others: https://adoptium.net), or name it with JAVA_HOME"
)


def what_java_lacks() -> str | None:
    """Return one line if there is no Java that Spark can run on, else None."""
    java = _java()
    if java is None:
        return _ADVICE
    found = _version_of(java)
    if found is None:
        return f"{java} does not show its version. {_ADVICE}"
    return None if found >= JAVA_VERSION_MIN else f"{java} is Java {found}. {_ADVICE}"


def _missing_packages() -> str | None:
    missing = [name for name in _PACKAGES if find_spec(name) is None]
    return f"{' and '.join(missing)} not installed: pip install 'fila-cluster[spark]'" if missing else None


def _java() -> str | None:
    """Return the Java that Spark's scripts would choose."""
    home = os.environ.get("JAVA_HOME")
    return str(Path(home) / "bin" / "java") if home else shutil.which("java")


def _version_of(java: str) -> int | None:
    try:
        answer = subprocess.run([java, "-version"], capture_output=True, text=True, timeout=30, check=False)
    except (OSError, subprocess.TimeoutExpired):
        return None
    match = _VERSION.search(answer.stderr + answer.stdout)
    return int(match[1]) if match else None
