"""The command line: ``python -m benchmarks NAME --size tiny|small|full``, and ``all`` for all of them, ``page`` and
``show`` for results."""

import dataclasses
import shlex
import signal
import subprocess
import sys
from collections.abc import Mapping
from importlib import import_module
from pathlib import Path
from typing import Any

import click
from rich.console import Console

from benchmarks.harness.machine import ROOT
from benchmarks.harness.report.results import FOLDER, SIZES, Result, newest, read, write
from benchmarks.harness.report.tables import show as show_tables
from benchmarks.harness.workload import Benchmark
from benchmarks.names import COMMANDS, MODULES

WIDTH = 132
PAGES = ROOT / "docs" / "benchmarks.md", ROOT / "docs" / "measurements.md"
_FOLDER = click.Path(file_okay=False, path_type=Path)


class Commands(click.Group):
    """A command for each benchmark. A module is imported when its command is used, because some need Spark, or servers of
    others."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        """Return the names of all commands."""
        return [*MODULES, *COMMANDS, *super().list_commands(ctx)]

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """Return a command."""
        if cmd_name in COMMANDS:
            found: click.Command = import_module(COMMANDS[cmd_name]).command
            return found
        return command(benchmark(cmd_name)) if cmd_name in MODULES else super().get_command(ctx, cmd_name)


def benchmark(name: str) -> Benchmark[Any]:
    """Import a benchmark."""
    found: Benchmark[Any] = import_module(MODULES[name]).BENCHMARK
    return found


def command(chosen: Benchmark[Any]) -> click.Command:
    """Make the command of a benchmark: an option for each number of its sizes."""
    options: list[click.Parameter] = [
        click.Option(["--size"], type=click.Choice(SIZES), default="small", show_default=True),
        click.Option(["--results"], type=_FOLDER, default=FOLDER, help="Where to write the result and its plots."),
    ]
    options += [_option(each, chosen) for each in dataclasses.fields(chosen.tiny)]
    summary, _, rest = chosen.documentation.partition("\n")
    return click.Command(
        chosen.name,
        params=options,
        callback=lambda **given: execute(chosen, **given),
        help=f"{summary}\n{rest}",
        short_help=summary,
    )


def _option(each: "dataclasses.Field[Any]", chosen: Benchmark[Any]) -> click.Option:
    values = [getattr(scale, each.name) for scale in (chosen.tiny, chosen.small, chosen.full)]
    text = f"{each.metadata.get('help', '')} [{' · '.join(dict.fromkeys(map(str, values)))}]".strip()
    kind = click.Choice(each.metadata["choices"]) if "choices" in each.metadata else type(values[0])
    flag = f"--{each.name.replace('_', '-')}"
    declared = f"{flag}/--no-{flag[2:]}" if kind is bool else flag
    return click.Option([declared], type=kind, default=None, help=text)


def execute(chosen: Benchmark[Any], size: str, results: Path, **numbers: Any) -> None:
    """Run a benchmark, write its result, print it, and judge: the exit code is 1 if messages are not what was sent, or,
    unless the size is tiny, if a promise was not kept.
    """
    console = Console(width=None if sys.stdout.isatty() else WIDTH)
    changes = {name: value for name, value in numbers.items() if value is not None}
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # servers are stopped, and directories removed
    result = chosen.run(size, changes, typed(chosen.name, size, changes), console)
    from benchmarks.harness.report.plots import save  # noqa: PLC0415 # client processes import this module, too: they need no plots

    path = write(result, results)
    save(result, results, path.stem)
    show_tables(console, result)
    console.print(f"written to {path}")
    judged = size != "tiny"
    raise SystemExit(0 if result.verified.sound and (result.kept or not judged) else 1)


def typed(name: str, size: str, changes: Mapping[str, Any]) -> str:
    """Return the command that measures the same again, without the folder of the results."""
    words = ["python", "-m", "benchmarks", name, "--size", size]
    for option, value in changes.items():
        flag = option.replace("_", "-")
        words += [f"--{flag}" if value else f"--no-{flag}"] if isinstance(value, bool) else [f"--{flag}", str(value)]
    return shlex.join(words)


@click.group(cls=Commands, help=__doc__, context_settings={"help_option_names": ["-h", "--help"]})
def main() -> None:
    """Run a benchmark."""


@main.command()
@click.option("--results", type=_FOLDER, default=FOLDER)
@click.option("--page", "chosen", type=click.Path(exists=True, dir_okay=False, path_type=Path), multiple=True, default=PAGES)
def page(results: Path, chosen: tuple[Path, ...]) -> None:
    """Write tables and plots of the newest results into the documentation."""
    from benchmarks.harness.report import page as pages  # noqa: PLC0415 # as above

    found: dict[str, Result] = newest(results)
    for each in chosen:
        for name in pages.write_page(each, found):
            click.echo(f"no result of {name}: its part stays as it is")


@main.command(name="all")
@click.option("--size", type=click.Choice(SIZES), default="small", show_default=True)
@click.option("--results", type=_FOLDER, default=FOLDER)
@click.option("--only", default=",".join(MODULES), help="Names, divided by commas.")
def run_all(size: str, results: Path, only: str) -> None:
    """Run all benchmarks, each in a process of its own, and name those that failed."""
    failed = []
    for name in only.split(","):
        click.echo(f"\n--- {name}")
        command = [sys.executable, "-m", "benchmarks", name, "--size", size, "--results", str(results)]
        if subprocess.run(command, cwd=ROOT, check=False).returncode:
            failed.append(name)
    if failed:
        raise click.ClickException(f"not kept or failed: {', '.join(failed)}")


@main.command()
@click.argument("file", type=click.Path(exists=True, dir_okay=False, path_type=Path))
def show(file: Path) -> None:
    """Print the result in a file."""
    show_tables(Console(), read(file))


if __name__ == "__main__":
    main()
