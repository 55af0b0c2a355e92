"""What this broker promises beside its peers, judged by the medians of a run. A peer that was not measured is left out."""

from collections.abc import Iterable, Mapping
from statistics import median
from typing import Any

from benchmarks.harness.workload import Run
from benchmarks.workloads import throughput, unary

BATCHES = ("enqueue", "receive + ack", "both at once")
CYCLE = "enqueue, then receive + ack"
PLACEMENTS = tuple(unary.PLACEMENTS)


class Medians:
    """The medians of a run's cells."""

    def __init__(self, run: "Run[Any]") -> None:
        self._run = run

    def of(self, table: str, row: str, system: str) -> float | None:
        """Return a median; None if the system was not measured."""
        try:
            return median(self._run.values(table, row, system))
        except KeyError:
            return None

    def several(self, table: str, row: str, systems: Iterable[str]) -> list[float]:
        """Return the medians of the systems that were measured."""
        return [found for system in systems if (found := self.of(table, row, system)) is not None]


def judge_batches(run: "Run[Any]", ours: str, peers: Iterable[str]) -> None:
    """In batches: at least twice the best peer."""
    medians, several = Medians(run), list(peers)
    for row in BATCHES:
        own, others = medians.of(throughput.RATES, row, ours), medians.several(throughput.RATES, row, several)
        if own is not None and others:
            run.promise(f"{row}: at least 2 × the best peer (here {own / max(others):.2f} ×)", own >= 2 * max(others))


def judge_lone(run: "Run[Any]", ours: str, redis: str) -> None:
    """A lone message: a median of at most twice Redis's, and 99 of 100 within a millisecond."""
    medians = Medians(run)
    for placement in PLACEMENTS:
        p50, p99 = (medians.of(unary.LONE, f"p{each}, {placement}", ours) for each in (50, 99))
        other = medians.of(unary.LONE, f"p50, {placement}", redis)
        if p50 is not None and other is not None:
            run.promise(
                f"a lone message, p50, {placement}: at most 2 × {redis}'s (here {p50 / other:.2f} ×)", p50 <= 2 * other
            )
        if p99 is not None:
            run.promise(f"a lone message, p99, {placement}: below 1 ms (here {p99:.2f} ms)", p99 < 1)


def judge_sequential(run: "Run[Any]", parts_of_redis: Mapping[str, float], redis: str, nats: str) -> None:
    """Sequential enqueues: a part of Redis's, and three quarters of NATS's. ``parts_of_redis``: of which of our ways what
    part."""
    medians = Medians(run)
    for ours, part in parts_of_redis.items():
        own = medians.of(unary.RATES, "free", ours)
        for peer, least in ((redis, part), (nats, 0.75)):
            other = medians.of(unary.RATES, "free", peer)
            if own is not None and other is not None:
                text = f"sequential enqueues, {ours}: at least {least} × {peer} (here {own / other:.2f} ×)"
                run.promise(text, own >= least * other)


def judge_costs(run: "Run[Any]", ours: str, alone: str, redis: str) -> None:
    """The server's CPU time: in batches at most Redis's, 0.3 ms for a lone message."""
    medians = Medians(run)
    for row in (CYCLE, "both at once"):
        own, other = (medians.of(throughput.COSTS, row, system) for system in (ours, redis))
        if own is not None and other is not None:
            run.promise(f"CPU time of the server, {row}: at most {redis}'s (here {own / other:.2f} ×)", own <= other)
    for placement in PLACEMENTS:
        lone = medians.of(unary.COSTS, f"lone lifecycle, {placement}", alone)
        if lone is not None:
            run.promise(
                f"CPU time of the server, lone lifecycle, {placement}: at most 0.3 ms (here {lone:.2f} ms)", lone <= 0.3
            )


def judge_fsync(run: "Run[Any]", ours: tuple[str, str], unsynced: str, redis: str) -> None:
    """With fsync: 0.6 × of the rates without it in batches, and ahead of Redis with AOF always. ``ours``: in batches, and
    alone."""
    medians = Medians(run)
    batches, alone = ours
    for row in BATCHES:
        own, other = medians.of(throughput.RATES, row, batches), medians.of(throughput.RATES, row, unsynced)
        if own is not None and other is not None:
            run.promise(f"{row}, fsync: at least 0.6 × of os (here {own / other:.2f} ×)", own >= 0.6 * other)
    rows = [(throughput.RATES, row, batches) for row in BATCHES] + [(unary.RATES, row, alone) for row in PLACEMENTS]
    rows += [(unary.LONE, f"p{each}, {placement}", alone) for placement in PLACEMENTS for each in (50, 99)]
    for table, row, system in rows:
        own, other = medians.of(table, row, system), medians.of(table, row, redis)
        if own is not None and other is not None:
            ahead = own < other if table == unary.LONE else own > other
            run.promise(f"{table}, {row}, fsync: ahead of {redis} (here {own / other:.2f} ×)", ahead)
