"""Measure what more workers bring: rates with 1, 2 and 4 workers, and the CPU time of each kind of process for 100,000
messages.

Each worker has a queue with a producer and a consumer of its own, which work at once. Where a machine has fewer cores than
processes, rates do not grow; the CPU time says what would happen with enough cores. A router is one thread, so 1 / (its CPU
seconds a message) is the rate at which one router is full, and a worker's CPU time says how many workers that are. Clients
that go straight to the workers do not need the router; both ways are measured. What a router spends on connections and by the
second, whatever comes, is in its CPU time, too: a larger load makes its share smaller.
"""

import time
from dataclasses import dataclass

from benchmarks.harness import clients
from benchmarks.harness.fila import WAYS, Fila, one_queue_on_each
from benchmarks.harness.messages import Load
from benchmarks.harness.processes import together
from benchmarks.harness.report.spread import spread
from benchmarks.harness.workload import Benchmark, Run, number

PER = 100_000
FLUSH_S = 0.5
RATES = "Messages a second, both at once"
COSTS = "CPU seconds for 100,000 messages"
FULL = "Messages a second at which one router is full"


@dataclass(frozen=True)
class Scale:
    """The numbers of this benchmark."""

    messages: int = number("Messages of all workers together.")
    rounds: int = number("Rounds.")
    workers: str = number("Numbers of workers, divided by commas.", "1,2,4")
    payload: int = number("Bytes of a payload.", 1024)


def measure(run: Run[Scale]) -> None:
    """Measure each number of workers, both ways."""
    numbers = [int(workers) for workers in run.scale.workers.split(",")]
    systems = [Fila(workers=workers, way=way, label=_column(way)) for workers in numbers for way in WAYS]
    for system in run.rounds(run.scale.rounds, systems, "scaling"):
        _measure(run, system)
    for way in WAYS:
        for workers in numbers:
            _saturation(run, _column(way), _row(workers))


def _column(way: str) -> str:
    return f"way {way}"


def _row(workers: int) -> str:
    return f"{workers} worker{'s' if workers > 1 else ''}"


def _measure(run: Run[Scale], system: Fila) -> None:
    count = run.scale.messages // system.workers
    load, total = Load(count, run.scale.payload), count * system.workers
    row, column = _row(system.workers), _column(system.way)
    with run.serving(system) as server:
        queues = one_queue_on_each(server.address, system.workers)
        before = server.cpu_seconds()
        works = [
            (work, system, server.address, queue, load) for queue in queues for work in (clients.produce, clients.consume)
        ]
        done = together(*works, env=system.environment())
        time.sleep(FLUSH_S)
        after = server.cpu_seconds()
    for taken in done[1::2]:
        run.verify(taken.verified)
    seconds = max(work.spent.ended for work in done) - min(work.spent.began for work in done)
    run.figure(RATES, row, column, "/s", total / seconds)
    for kind in before:
        run.figure(COSTS, f"{kind}, {row}", column, "s", (after[kind] - before[kind]) * PER / total)


def _saturation(run: Run[Scale], column: str, row: str) -> None:
    router, worker = (spread(run.values(COSTS, f"{kind}, {row}", column)).median for kind in ("router", "worker"))
    if router > 0:
        run.figure(FULL, row, column, "/s", PER / router)
    if router > 0 and worker > 0:
        run.note(f"{row}, {column}: a router that is full serves {worker / router:.1f} workers that are full.")


BENCHMARK = Benchmark("scaling", measure, Scale(2_000, 1, "2"), Scale(50_000, 3), Scale(400_000, 3))
