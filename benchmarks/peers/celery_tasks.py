"""Measure Celery on this broker beside Celery on Redis: no-op tasks that one process sends, and that a worker runs.

The same project, worker and options on both: a solo worker, and a prefork worker with two processes, with Celery's usual
prefetch of four tasks for each. First all tasks are sent, each confirmed before the next, then a worker takes them; its time
is from the first task to the end of the last. Tasks keep no results. This broker stores each task on the disk before it is
confirmed (in the hands of the operating system); Redis with its append-only file ``everysec`` promises the same. Redis pushes
no messages: kombu asks it. The count of the tasks is that of the worker's own statistics.
"""

import json
import os
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Any

from benchmarks.harness.fila import Fila
from benchmarks.harness.report.results import Verified
from benchmarks.harness.workload import Benchmark, Run, number
from benchmarks.peers.redis_streams import Redis

FILA, REDIS = "fila-cluster", "Redis, AOF everysec"
POOLS = {"solo": 1, "prefork": 2}
"""The pools, with their processes."""
SENT, RUN_, CPU = (
    "Celery tasks a second, sent one by one",
    "Celery tasks a second, run by a worker",
    "CPU time of the worker for a task",
)
ROOT = Path(__file__).parents[2]
TIMEOUT_S = 900


@dataclass(frozen=True)
class Scale:
    """The numbers of this benchmark."""

    tasks: int = number("Tasks in each round.")
    rounds: int = number("Rounds.")


def side(*arguments: object, env: Mapping[str, str]) -> dict[str, float]:
    """Run the Celery project in a process of its own; return what it has measured."""
    command = [sys.executable, "-m", "benchmarks.peers.celery_side", *map(str, arguments)]
    done = subprocess.run(command, cwd=ROOT, env=env, capture_output=True, text=True, timeout=TIMEOUT_S, check=False)
    lines = [line for line in done.stdout.splitlines() if line.startswith("{")]
    if not lines:
        raise SystemExit(f"{command[3:]} has failed:\n{done.stdout}{done.stderr}")
    measured: dict[str, float] = json.loads(lines[-1])
    return measured


def measure(run: Run[Scale]) -> None:
    """Measure both brokers in turn."""
    systems: dict[str, Any] = {FILA: Fila(label=FILA), REDIS: Redis()}
    for pool in POOLS:
        for name in run.rounds(run.scale.rounds, systems, pool):
            system = systems[name]
            with run.serving(system) as server:
                url = server.address.replace("tcp://", "fila://")
                _round(run, name, pool, url, {**os.environ, **system.environment()})
    for pool in POOLS:
        ours, theirs = (median(run.values(RUN_, pool, name)) for name in (FILA, REDIS))
        run.promise(f"Celery runs as many no-op tasks on this broker as on Redis ({pool})", ours >= theirs)


def _round(run: Run[Scale], name: str, pool: str, url: str, env: Mapping[str, str]) -> None:
    sent = side("send", url, run.scale.tasks, env=env)
    done = side("work", url, run.scale.tasks, pool, POOLS[pool], env=env)
    run.figure(SENT, pool, name, "/s", sent["count"] / sent["seconds"])
    run.figure(RUN_, pool, name, "/s", done["measured"] / done["seconds"])
    run.figure(CPU, pool, name, "µs", 1e6 * done["cpu_s"] / done["measured"])
    count = int(done["count"])
    run.verify(Verified(run.scale.tasks, count, max(0, run.scale.tasks - count), max(0, count - run.scale.tasks)))


BENCHMARK = Benchmark("celery", measure, tiny=Scale(100, 1), small=Scale(5_000, 3), full=Scale(20_000, 5))
