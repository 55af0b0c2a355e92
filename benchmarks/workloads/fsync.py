"""Measure what surviving a power cut costs: the rows of ``throughput`` and ``unary`` with durability "os" and "fsync" beside
each other.

In bulk, "fsync" must reach at least 0.6 of the rate of "os", because one sync serves all messages of a commit.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from benchmarks.harness.fila import WAYS, Fila
from benchmarks.harness.report.spread import ratios, spread
from benchmarks.harness.systems import System
from benchmarks.harness.workload import Benchmark, Run, choice
from benchmarks.workloads import throughput, unary

SHARE_MIN = 0.6
BULK = ("enqueue", "receive + ack", "both at once")
SHARES = 'Share of the rate of "os"'


@dataclass(frozen=True)
class Scale(throughput.Scale, unary.Scale):
    """The numbers of both benchmarks."""

    way: str = choice("How clients reach the workers.", WAYS)


def compare(run: Run[Scale], systems: Sequence[System]) -> None:
    """Measure systems side by side: their rows in bulk and alone."""
    throughput.compare(run, systems)
    unary.compare(run, systems)


def measure(run: Run[Scale]) -> None:
    """Measure this broker with both settings."""
    os, fsync = (Fila(setting, way=run.scale.way, label=f'fila-cluster, "{setting}"') for setting in ("os", "fsync"))
    compare(run, [os, fsync])
    shares = {row: _shares(run, throughput.RATES, row, fsync, os) for row in BULK}
    shares |= {f"sequential, {row}": _shares(run, unary.RATES, row, fsync, os) for row in run.scale.placements.split(",")}
    for row, values in shares.items():
        run.figure(SHARES, row, fsync.name, "", *values)
    for row in BULK:
        share = spread(shares[row]).median
        run.promise(f'{row}: "fsync" reaches {share:.2f} of the rate of "os", at least {SHARE_MIN}', share >= SHARE_MIN)


def _shares(run: Run[Scale], table: str, row: str, one: System, other: System) -> list[float]:
    return ratios(run.values(table, row, one.name), run.values(table, row, other.name))


BENCHMARK = Benchmark(
    "fsync",
    measure,
    tiny=Scale(messages=1_000, sequential=50, lone=20, placements="free"),
    small=Scale(messages=50_000, rounds=3, sequential=1_000, lone=500),
    full=Scale(messages=200_000, rounds=5, sequential=5_000, lone=2_000),
)
