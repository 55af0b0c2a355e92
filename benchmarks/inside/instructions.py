"""Count the instructions of one turn, request, call or delivery, in user space, by valgrind's cachegrind.

Each scene runs twice, alone in a process, with two lengths. The difference is what the steps cost, without the start. It is
repeatable on a busy machine, which times are not; it says nothing of caches, system calls and waiting.

``--top`` also shows the functions of C with the largest differences; the interpreter is one of them. ``--calls`` shows the
Python functions that are called most often, by cProfile, with calls for each step.
"""

import os
import pstats
import shutil
import subprocess
import sys
import tempfile
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import click
from rich.console import Console
from rich.table import Table

from benchmarks.harness.cluster import OneCluster
from benchmarks.harness.fila import blocking_client
from benchmarks.harness.machine import ROOT
from benchmarks.inside.counted import BY_NAME, HEADERS, PAYLOAD, SCENES, STEPS_MAX, CountedScene
from fila_cluster import Message

ENVIRONMENT = {"PYTHONHASHSEED": "0", "PYTHONDONTWRITEBYTECODE": "1"}


class Counts:
    """What two runs of a scene cost, by function, for one of the things that it counts."""

    def __init__(self, scene: CountedScene, short: "Counter[str]", long: "Counter[str]") -> None:
        things = (scene.steps[1] - scene.steps[0]) * scene.per
        self.by_function = {name: (count - short[name]) / things for name, count in long.items()}

    @property
    def total(self) -> float:
        """All of it."""
        return sum(self.by_function.values())

    def largest(self, count: int) -> list[tuple[str, float]]:
        """Return the functions with the largest numbers."""
        return sorted(self.by_function.items(), key=lambda each: -each[1])[:count]


def instructions(scene: CountedScene, address: str) -> Counts:
    """Return the instructions of a scene."""
    tool = ["valgrind", "--tool=cachegrind", "--cache-sim=no", "--cachegrind-out-file={}", sys.executable]
    return Counts(scene, *(_instructions_in(file) for file in _runs(scene, address, tool)))


def calls(scene: CountedScene, address: str) -> Counts:
    """Return the calls of Python functions in a scene, also of those in C."""
    tool = [sys.executable, "-m", "cProfile", "-o", "{}"]
    return Counts(scene, *(_calls_in(file) for file in _runs(scene, address, tool)))


def _runs(scene: CountedScene, address: str, tool: list[str]) -> Iterator[str]:
    """Run a scene with both lengths under a tool; yield the file that it has written each time."""
    with tempfile.TemporaryDirectory() as directory:
        for steps in scene.steps:
            file, queue = f"{directory}/{steps}", f"{scene.name}-{steps}"
            if scene.served:
                _prepare(scene, address, queue)
            command = [each.format(file) for each in tool]
            command += ["-m", "benchmarks.inside.counted", scene.name, str(steps), address, queue]
            done = subprocess.run(
                command, cwd=ROOT, env=os.environ | ENVIRONMENT, capture_output=True, text=True, check=False
            )
            if done.returncode:
                raise click.ClickException(f"{scene.name} failed:\n{done.stdout}{done.stderr}")
            yield file


def _prepare(scene: CountedScene, address: str, queue: str) -> None:
    with blocking_client(address) as client:
        client.create_queue(queue)
        if scene.filled:
            client.enqueue_many(queue, [Message(PAYLOAD, HEADERS)] * STEPS_MAX)


def _instructions_in(file: str) -> "Counter[str]":
    """Return the instructions by function in a file of cachegrind."""
    found: Counter[str] = Counter()
    source = function = ""
    with open(file, errors="replace") as lines:
        for line in lines:
            if line.startswith("fl="):
                source = Path(line[3:].strip()).name
            elif line.startswith("fn="):
                function = f"{source}: {line[3:].strip()}"
            elif line[0].isdigit():
                found[function] += int(line.split()[1])
    return found


def _calls_in(file: str) -> "Counter[str]":
    """Return the calls by function in a file of cProfile."""
    found: Counter[str] = Counter()
    for (source, line, function), (_, count, *_) in pstats.Stats(file).stats.items():  # type: ignore[attr-defined]
        found[f"{source.removeprefix(f'{ROOT}/')}:{line} {function}" if line else function] += count
    return found


@contextmanager
def _cluster(needed: bool) -> Iterator[str]:
    if not needed:
        yield ""
        return
    with tempfile.TemporaryDirectory(prefix="fila-bench-") as path, OneCluster(Path(path) / "data") as cluster:
        yield cluster.address


def _show(console: Console, title: str, rows: list[tuple[str, float]], digits: int = 0) -> None:
    table = Table("", title, title_justify="left")
    table.columns[1].justify = "right"
    for name, value in rows:
        table.add_row(name, f"{value:,.{digits}f}")
    console.print(table)


@click.command(name="instructions", help=__doc__, short_help="Count the instructions of a turn, a call, a delivery.")
@click.argument("scenes", nargs=-1, type=click.Choice(list(BY_NAME)))
@click.option("--top", type=int, default=0, help="Show so many functions of each scene.")
@click.option("--calls", "by_calls", type=int, default=0, help="Show so many functions by calls, instead of instructions.")
def command(scenes: tuple[str, ...], top: int, by_calls: int) -> None:
    """Count scenes, all of them by default."""
    if not by_calls and shutil.which("valgrind") is None:
        raise click.ClickException("this counts with valgrind: install it, for example by apt-get install valgrind")
    chosen = [scene for scene in SCENES if scene.name in scenes or not scenes]
    console = Console(width=None if sys.stdout.isatty() else 132)
    totals = []
    with _cluster(any(scene.served for scene in chosen)) as address:
        for scene in chosen:
            counts = calls(scene, address) if by_calls else instructions(scene, address)
            totals.append((scene.name, counts.total))
            if by_calls or top:
                _show(console, scene.name, counts.largest(by_calls or top), 2 if by_calls else 0)
    _show(console, "calls of functions" if by_calls else "instructions", totals)
