"""Looks at a small cluster, as changes of one that is well."""

from collections.abc import Sequence

from fila_proto_zmq.commands import (
    ClusterStatus,
    Histogram,
    HookMetrics,
    HostCopy,
    HostWorker,
    LogReplicas,
    Metrics,
    PlaceMetrics,
    QueueInfo,
    QueueMetrics,
    ShardMetrics,
    StoreMetrics,
    WorkerMetrics,
    WorkerStatus,
)
from fila_proto_zmq.names import is_dead_letter

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
    info = QueueInfo(name, pending, in_flight, delayed, consumers, paused, is_dead_letter(name), 0)
    told = QueueMetrics(info, oldest_ms, 0, 0, 0, 0, 0, 0, 0, {}, 1, 1, 0, 0, [], 0)
    for field, value in counters.items():
        setattr(told, field, value)
    return told


def hooks(*, failed: int, breaker_open: bool) -> HookMetrics:
    return HookMetrics(10, failed, 4, breaker_open, Histogram([1000], [10, 0], 5000))


def shard(
    index: int,
    *queues: QueueMetrics,
    left_out: int = 0,
    stalled: bool = False,
    commits: int = 0,
    places: Sequence[PlaceMetrics] = (),
) -> ShardMetrics:
    store = StoreMetrics(Histogram([100, 200], [commits, 0, 0], 0), Histogram([1], [0, 0], 0), 0, 0, 3 * 2**20, stalled)
    return ShardMetrics(index, list(queues), left_out, [], 0, 0, {}, 0, store, places=list(places))


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


# --- hosts ----------------------------------------------------------------------------------------------------------------


def leads(shard: int, *, epoch: int = 5, problem: str = "", role: str = "leads", **more: object) -> HostCopy:
    copy = HostCopy(shard, role, epoch, 100, behind=0, proof_age_ms=300, queues=2, problem=problem)
    for field, value in more.items():
        setattr(copy, field, value)
    return copy


def follows(
    shard: int, behind: int = 0, *, epoch: int = 5, role: str = "follows", problem: str = "", log: LogReplicas | None = None
) -> HostCopy:
    return HostCopy(shard, role, epoch, 100 - behind, 101, behind, problem=problem, log=log)


def hosts(shards: int, down: tuple[str, ...] = (), silent: tuple[str, ...] = (), **copies: list[HostCopy]) -> Metrics:
    """A cluster on a replicated log: copies by host, each with one worker. A host of ``silent`` serves what no other one leads."""
    known, answers, led = [], [], set()
    for pid, (host, held) in enumerate(copies.items()):
        own = [copy.shard for copy in held if copy.role == "leads"]
        led |= {*own}
        told = worker(f"{host}/worker-0", *(shard(index) for index in own))
        told.host = HostWorker(host, f"{host}/worker-0", f"{host}.example", held)
        answers.append(told)
        known.append(WorkerStatus(f"{host}/worker-0", pid, "up", own, 1, 1))
    left = [each for each in range(shards) if each not in led]
    known += [WorkerStatus(f"{host}/worker-0", 90, "up", left, 1, 1) for host in silent]
    known += [WorkerStatus(f"{host}/worker-0", 91, "down", [], 1, 1) for host in down]
    return Metrics(answers, ClusterStatus("1.2.3", shards, known))
