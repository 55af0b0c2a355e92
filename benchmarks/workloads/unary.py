"""Measure messages that travel alone: enqueues that are each awaited, and a lone enqueue to a consumer that waits.

The producer and the consumer are processes of their own. Sequential enqueues follow each other at once. For the lone message
the producer pauses for two milliseconds after each confirmation, so that each message finds idle processes; its time counts
from the call of the enqueue to the arrival in the consumer, which acks it. Both are measured with free processes, and with
all of them on one core: on small virtual machines a wake-up of another core costs more than the work.
"""

import time
from collections.abc import Sequence
from dataclasses import dataclass

from benchmarks.harness import clients
from benchmarks.harness.fila import WAYS_OR_BOTH, Fila, FilaBlocking, by_ways
from benchmarks.harness.messages import Load
from benchmarks.harness.processes import one_core, together
from benchmarks.harness.report.histogram import Histogram
from benchmarks.harness.report.results import Chart
from benchmarks.harness.systems import Server, System
from benchmarks.harness.workload import Benchmark, Run, choice, number

SEQUENTIAL, LONELY = "sequential", "lone"
PAUSE_S = 0.002
AHEAD = 10
RATES = "Sequential enqueues a second, each awaited"
CALLS = "The call of a sequential enqueue"
LONE = "Lone enqueue → waiting consumer"
COSTS = "CPU time of the server for a message"
PLACEMENTS = {"free": False, "one core": True}


@dataclass(frozen=True)
class Scale:
    """The numbers of this benchmark."""

    sequential: int = number("Sequential enqueues.", 100)
    lone: int = number("Lone messages.", 50)
    rounds: int = number("Rounds.", 1)
    placements: str = number("Where processes run, divided by commas.", "free,one core")
    payload: int = number("Bytes of a payload.", 1024)
    way: str = choice("How clients reach the workers.", WAYS_OR_BOTH)


def compare(run: Run[Scale], systems: Sequence[System]) -> None:
    """Measure systems side by side, round by round, in both placements."""
    placements = run.scale.placements.split(",")
    variants = [(system, placement) for placement in placements for system in systems]
    latencies = {variant: Histogram() for variant in variants}
    for system, placement in run.rounds(run.scale.rounds, variants, "unary"):
        with one_core(PLACEMENTS[placement]):
            with run.serving(system) as server:
                sequential(run, system, server, placement)
                latencies[system, placement].add(lone(run, system, server, placement))
    for placement in placements:
        series = [latencies[system, placement].series(system.name) for system in systems]
        run.chart(Chart(f"{LONE}, {placement}", "percentile", "ms", series, y_log=True, x_percentiles=True))
    for (system, placement), histogram in latencies.items():
        run.histogram(f"lone, {placement}, {system.name}", histogram)


def sequential(run: Run[Scale], system: System, server: Server, placement: str) -> None:
    """Enqueue message after message."""
    load = Load(run.scale.sequential, run.scale.payload)
    clients.create(system, server, SEQUENTIAL)
    before = server.cpu_seconds()
    (sent,) = together((clients.send_one_by_one, system, server.address, SEQUENTIAL, load), env=system.environment())
    _cost(run, server, before, system, f"sequential enqueue, {placement}", load.count + clients.WARM_UP)
    (taken,) = together((clients.consume, system, server.address, SEQUENTIAL, load), env=system.environment())
    run.verify(taken.verified)
    run.figure(RATES, placement, system.name, "/s", load.count / sent.spent.seconds)
    calls = Histogram(sent.latencies_ns)
    for percentile in (50, 99):
        run.figure(CALLS, f"p{percentile}, {placement}", system.name, "ms", calls.ms(percentile))


def lone(run: Run[Scale], system: System, server: Server, placement: str) -> Sequence[int]:
    """Enqueue messages for a consumer that waits. Return the latencies in ns."""
    load = Load(run.scale.lone, run.scale.payload)
    clients.create(system, server, LONELY)
    before = server.cpu_seconds()
    _, taken = together(
        (clients.send_one_by_one, system, server.address, LONELY, load, PAUSE_S),
        (clients.follow, system, server.address, LONELY, load, AHEAD),
        env=system.environment(),
    )
    _cost(run, server, before, system, f"lone lifecycle, {placement}", load.count + clients.WARM_UP)
    run.verify(taken.verified)
    found = Histogram(taken.latencies_ns)
    for percentile in (50, 99):
        run.figure(LONE, f"p{percentile}, {placement}", system.name, "ms", found.ms(percentile))
    latencies: Sequence[int] = taken.latencies_ns
    return latencies


def _cost(run: Run[Scale], server: Server, before: dict[str, float], system: System, row: str, count: int) -> None:
    """Add the CPU time of all processes of a server for a message, and of each kind if there are several."""
    time.sleep(0.1)
    after = server.cpu_seconds()
    spent = {kind: (after[kind] - before[kind]) * 1000 / count for kind in before}
    run.figure(COSTS, row, system.name, "ms", sum(spent.values()))
    if len(spent) > 1:
        for kind, milliseconds in spent.items():
            run.figure(COSTS, f"{row}: {kind}", system.name, "ms", milliseconds)


def measure(run: Run[Scale]) -> None:
    """Measure this broker, with both clients."""
    compare(run, by_ways(run.scale.way, Fila(), FilaBlocking()))


BENCHMARK = Benchmark(
    "unary",
    measure,
    tiny=Scale(placements="one core"),
    small=Scale(sequential=2_000, lone=1_000, rounds=3),
    full=Scale(sequential=10_000, lone=5_000, rounds=5, way="both"),
)
