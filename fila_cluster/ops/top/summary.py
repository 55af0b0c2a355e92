"""The cluster in a few numbers."""

from dataclasses import dataclass

from fila_cluster.ops.analysis.rates import ClusterRates, Rates
from fila_cluster.ops.analysis.readiness import shards_served
from fila_cluster.ops.analysis.rows import QueueRow
from fila_proto_zmq.commands import Metrics


@dataclass(frozen=True, slots=True)
class Summary:
    """The cluster. Sums are over the known queues without those of dead letters; ``rates`` None: not known."""

    version: str
    uptime_s: float | None
    workers: int
    workers_up: int
    shards: int
    shards_up: int
    queues: int
    pending: int
    in_flight: int
    delayed: int
    depth: int
    dead_letters: int
    rates: Rates | None


def summary(now: Metrics, cluster_rates: ClusterRates, rows: list[QueueRow], now_ms: int) -> Summary:
    """Return the numbers at Unix time ``now_ms``."""
    workers = now.status.workers if now.status else []
    queues = [row for row in rows if not row.is_dead_letter]
    return Summary(
        version=now.status.version if now.status else "",
        uptime_s=max(0, now_ms - now.router.started_ms) / 1000 if now.router else None,
        workers=len(workers),
        workers_up=sum(worker.state == "up" for worker in workers),
        shards=now.status.shards if now.status else 0,
        shards_up=len(shards_served(now.status)),
        queues=len(queues),
        pending=sum(row.pending or 0 for row in queues),
        in_flight=sum(row.in_flight or 0 for row in queues),
        delayed=sum(row.delayed or 0 for row in queues),
        depth=sum(row.depth or 0 for row in queues),
        dead_letters=sum(row.depth or 0 for row in rows if row.is_dead_letter),
        rates=cluster_rates.total,
    )
