"""Measure what the testing kit costs a user's suite: 50 tests of a shop in memory, with the start of pytest, and one broker
with its client."""

import os
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path
from resource import RUSAGE_CHILDREN, getrusage

from benchmarks.harness.workload import Benchmark, Run, number
from fila_cluster.testing import broker

SUITE = Path(__file__).parents[2] / "examples/testing"
TESTS = 50
SECONDS_MAX = 2.0
_PLUGIN = "fila_cluster.testing.plugin"
_WITHOUT_OTHERS = {"PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1", "PYTHONDONTWRITEBYTECODE": ""}
"""Only the kit's plugin is loaded: others that are installed here have costs of their own."""


@dataclass(frozen=True)
class Scale:
    """The numbers of this benchmark."""

    rounds: int = number("Runs of the suite.")
    brokers: int = number("Brokers that are opened, used once, and closed.")


def measure(run: Run[Scale]) -> None:
    """Run the suite, and open brokers."""
    _suite()  # compiles what is compiled once
    for _ in range(run.scale.rounds):
        wall_s, cpu_s = _suite()
        run.figure("The testing kit", f"{TESTS} tests, with the start of pytest", "time", "s", wall_s)
        run.figure("The testing kit", f"{TESTS} tests, with the start of pytest", "CPU time", "s", cpu_s)
    for _ in range(run.scale.brokers):
        began = time.process_time()
        with broker() as fila:
            fila.create_queue("q")
            fila.enqueue("q", b"x")
            fila.ack(fila.receive("q"))
        run.figure(
            "The testing kit", "a broker, a queue and a message", "CPU time", "ms", 1000 * (time.process_time() - began)
        )
    times = sorted(run.values("The testing kit", f"{TESTS} tests, with the start of pytest", "time"))
    median_s = times[len(times) // 2]
    run.promise(f"{TESTS} tests take {median_s:.1f} s, less than {SECONDS_MAX:g}", median_s < SECONDS_MAX)


def _suite() -> tuple[float, float]:
    """Run the suite in a process of its own; return its seconds and its CPU seconds."""
    command = [sys.executable, "-m", "pytest", "-q", "-c", "/dev/null", "-p", "no:cacheprovider", "-p", _PLUGIN]
    before, began = getrusage(RUSAGE_CHILDREN), time.monotonic()
    done = subprocess.run(
        [*command, "--rootdir", str(SUITE), str(SUITE)],
        env=os.environ | _WITHOUT_OTHERS,
        capture_output=True,
        text=True,
        check=False,
    )
    wall_s, after = time.monotonic() - began, getrusage(RUSAGE_CHILDREN)
    if done.returncode or f"{TESTS} passed" not in done.stdout:
        raise SystemExit(done.stdout + done.stderr)
    return wall_s, after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime


BENCHMARK = Benchmark("testing", measure, Scale(1, 5), Scale(5, 100), Scale(5, 100))
