"""Looks at a small cluster, as changes of one that is well."""

from fila_proto_zmq.commands import (
    ClusterStatus,
    Histogram,
    HookMetrics,
    Metrics,
    QueueInfo,
    QueueMetrics,
    ShardMetrics,
    StoreMetrics,
    WorkerMetrics,
    WorkerStatus,
)

STARTED_MS = 1_700_000_000_000


def queue(
    name: str = "orders",
    *,
    pending: int = 0,
    in_flight: int = 0,
    delayed: int = 0,
    consumers: int = 1,
    paused: bool = False,
    oldest_ms: int = 0,
    **counters: object,
) -> QueueMetrics:
    info = QueueInfo(name, pending, in_flight, delayed, consumers, paused, name.endswith(".dlq"), 0)
    told = QueueMetrics(info, oldest_ms, 0, 0, 0, 0, 0, 0, 0, {}, 1, 1, 0, 0, [], 0)
    for field, value in counters.items():
        setattr(told, field, value)
    return told


def hooks(*, failed: int, breaker_open: bool) -> HookMetrics:
    return HookMetrics(10, failed, 4, breaker_open, Histogram([1000], [10, 0], 5000))


def shard(index: int, *queues: QueueMetrics, left_out: int = 0, stalled: bool = False, commits: int = 0) -> ShardMetrics:
    store = StoreMetrics(Histogram([100, 200], [commits, 0, 0], 0), Histogram([1], [0, 0], 0), 0, 0, 3 * 2**20, stalled)
    return ShardMetrics(index, list(queues), left_out, [], 0, 0, {}, 0, store)


def worker(name: str, *shards: ShardMetrics, started_ms: int = STARTED_MS, cpu_ms: int = 0, turns: int = 0) -> WorkerMetrics:
    return WorkerMetrics(name, started_ms, cpu_ms, Histogram([100, 200], [0, turns, 0], 0), list(shards))


def look(*workers: WorkerMetrics, down: tuple[str, ...] = ()) -> Metrics:
    """Workers that answer, and known ones that are down: those hold what is left of the shards."""
    held = [(each.name, "up", [shard.shard for shard in each.shards]) for each in workers]
    taken = {shard for _, _, shards in held for shard in shards}
    free = [shard for shard in range(len(taken) + len(down)) if shard not in taken]
    held += [(name, "down", [shard]) for name, shard in zip(down, free, strict=True)]
    known = [WorkerStatus(name, 40 + index, state, shards, 1, 1) for index, (name, state, shards) in enumerate(held)]
    return Metrics(list(workers), ClusterStatus("1.2.3", len(taken) + len(down), known))


def of_queues(*queues: QueueMetrics, left_out: int = 0) -> Metrics:
    """One worker with these queues."""
    return look(worker("worker-0", shard(0, *queues, left_out=left_out)))
