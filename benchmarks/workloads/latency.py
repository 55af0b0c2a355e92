"""Measure latencies at several rates, in an open loop: messages are sent at fixed times, whether the system keeps up or not.

A message's time counts from the moment when it was to be sent, also if the producer could send it only later. So nothing is
omitted when the system stops for a while (coordinated omission). There are two latencies: to the confirmation of the enqueue,
and to the arrival in a consumer that gets messages pushed and acks each. Percentiles are taken with HdrHistogram.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from benchmarks.harness import clients
from benchmarks.harness.fila import WAYS_OR_BOTH, Fila, by_ways
from benchmarks.harness.messages import Load
from benchmarks.harness.processes import together
from benchmarks.harness.report.histogram import SHOWN, Histogram
from benchmarks.harness.report.results import Chart, Series
from benchmarks.harness.systems import System
from benchmarks.harness.workload import Benchmark, Run, choice, number

QUEUE = "paced"
AHEAD = 1000
CONFIRMED = "From the time of the enqueue to its confirmation"
ARRIVED = "From the time of the enqueue to the consumer"


@dataclass(frozen=True)
class Scale:
    """The numbers of this benchmark."""

    rates: str = number("Messages a second, divided by commas.", "")
    seconds: float = number("Seconds at each rate.", 1.0)
    rounds: int = number("Rounds.", 1)
    payload: int = number("Bytes of a payload.", 1024)
    way: str = choice("How clients reach the workers.", WAYS_OR_BOTH)


def compare(run: Run[Scale], systems: Sequence[System]) -> None:
    """Measure systems side by side, round by round, at each rate."""
    rates = [int(rate) for rate in run.scale.rates.split(",")]
    arrived = {(system, rate): Histogram() for system in systems for rate in rates}
    for system, rate in run.rounds(run.scale.rounds, arrived, "latency"):
        arrived[system, rate].add(at_rate(run, system, rate))
    for system in systems:
        series = [arrived[system, rate].series(f"{rate:,}/s") for rate in rates]
        run.chart(Chart(f"{ARRIVED}: {system.name}", "percentile", "ms", series, y_log=True, x_percentiles=True))
    for percentile in (50, 99):
        by_rate = [
            Series(system.name, [float(rate) for rate in rates], [arrived[system, rate].ms(percentile) for rate in rates])
            for system in systems
        ]
        run.chart(Chart(f"{ARRIVED}, p{percentile} by rate", "messages a second", "ms", by_rate, x_log=True, y_log=True))
    for (system, rate), histogram in arrived.items():
        run.histogram(f"{rate}/s, {system.name}", histogram)


def at_rate(run: Run[Scale], system: System, rate: int) -> Sequence[int]:
    """Send at a rate for some seconds. Return the latencies to the consumer in ns."""
    load = Load(max(1, int(rate * run.scale.seconds)), run.scale.payload)
    with run.serving(system) as server:
        clients.create(system, server, QUEUE)
        sent, taken = together(
            (clients.send_at_rate, system, server.address, QUEUE, load, rate),
            (clients.follow, system, server.address, QUEUE, load, AHEAD),
            env=system.environment(),
            precise=[0],
        )
    run.verify(taken.verified)
    for table, latencies in ((ARRIVED, taken.latencies_ns), (CONFIRMED, sent.latencies_ns)):
        found = Histogram(latencies)
        for percentile in SHOWN:
            run.figure(table, f"{rate:,}/s, p{percentile:g}", system.name, "ms", found.ms(percentile))
        run.figure(table, f"{rate:,}/s, longest", system.name, "ms", found.max_ms)
    result: Sequence[int] = taken.latencies_ns
    return result


def measure(run: Run[Scale]) -> None:
    """Measure this broker."""
    compare(run, by_ways(run.scale.way, Fila()))


BENCHMARK = Benchmark(
    "latency",
    measure,
    tiny=Scale("50,200", 1.0),
    small=Scale("200,1000,3000", 5.0),
    full=Scale("200,500,1000,2000,5000,10000,20000", 20.0, 3),
)
