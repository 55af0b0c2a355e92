"""Measure what a replicated log costs: the same load on one disk, on a log of one broker, and of three, in the same run.

All of it runs on the cores of this machine: clients, host, brokers. Each cluster has one worker, and has served for some
seconds. Without replication a message is confirmed when it is in the operating system's cache, with one broker the same is
true of the broker, and with three when two of them have it.
"""

from dataclasses import dataclass
from statistics import median

from benchmarks.harness.fila import Fila
from benchmarks.harness.replicated import Replicated
from benchmarks.harness.systems import System
from benchmarks.harness.warmed import Warmed
from benchmarks.harness.workload import Benchmark, Run, number
from benchmarks.workloads import throughput, unary

ALONE = "one disk"
SHARE_MIN = 0.6


@dataclass(frozen=True)
class Scale(unary.Scale, throughput.Loads):
    """The numbers of this benchmark."""

    hosts: int = number("Hosts of the replicated clusters.", 1)
    brokers: str = number("Brokers of the replicated clusters, divided by commas.", "1,3")
    before: int = number(
        "Messages that go through each cluster before it is measured: brokers are slow in their first seconds.", 100
    )


def measure(run: Run[Scale]) -> None:
    """Measure all of them, lone messages and batches."""
    systems: list[System] = [Fila(label=ALONE)]
    systems += [Replicated(run.scale.hosts, int(brokers)) for brokers in run.scale.brokers.split(",")]
    systems = [Warmed(system, run.scale.before) for system in systems]
    unary.compare(run, systems)
    throughput.compare(run, systems)
    for row in ("enqueue", "receive + ack", "both at once"):
        alone = median(run.values(throughput.RATES, row, ALONE))
        for system in systems[1:]:
            share = median(run.values(throughput.RATES, row, system.name)) / alone
            run.promise(
                f"{row}, {system.name}: {share:.0%} of the rate on one disk (at least {SHARE_MIN:.0%})", share >= SHARE_MIN
            )


BENCHMARK = Benchmark(
    "replication",
    measure,
    tiny=Scale(placements="free", messages=500, brokers="1"),
    small=Scale(placements="free", sequential=1_000, lone=1_000, rounds=3, messages=50_000, before=100_000),
    full=Scale(placements="free", sequential=5_000, lone=3_000, rounds=5, messages=200_000, before=600_000),
)
