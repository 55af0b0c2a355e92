"""Measure what encryption costs: the same load through the router, in the clear and with CurveZMQ, in the same run.

The clusters have one worker. The encrypted one has authentication, so each request is also checked against its client's API
key. Where a client is on the same host it may go straight to the worker, over a socket file that is not encrypted: those rows
say what the API keys alone cost.
"""

from statistics import median

from benchmarks.harness.fila import Fila
from benchmarks.harness.guarded import Guarded
from benchmarks.harness.workload import Benchmark, Run
from benchmarks.workloads.throughput import RATES, Loads, compare

SHARE_MIN = 0.6
PLAIN, ENCRYPTED = "in the clear", "encrypted"


def measure(run: Run[Loads]) -> None:
    """Measure both, and the way straight to the worker with and without API keys."""
    systems = [
        Fila(way="router", label=PLAIN),
        Guarded(way="router", label=ENCRYPTED),
        Fila(way="direct", label="direct, no keys"),
        Guarded(way="direct", label="direct, API keys"),
    ]
    compare(run, systems)
    rows = {row for table, row, _ in run.cells() if table == RATES}
    shares = {row: median(run.values(RATES, row, ENCRYPTED)) / median(run.values(RATES, row, PLAIN)) for row in sorted(rows)}
    for row, share in shares.items():
        run.promise(f"{row}: encrypted, {share:.0%} of the rate in the clear (at least {SHARE_MIN:.0%})", share >= SHARE_MIN)


BENCHMARK = Benchmark("encryption", measure, Loads(), Loads(50_000, 3), Loads(200_000, 5))
