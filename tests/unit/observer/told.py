"""What a small cluster might answer."""

from fila_cluster.ops.analysis.partitions import with_whole_queues
from fila_proto_zmq.commands import (
    ClusterStatus,
    Histogram,
    HookMetrics,
    HostCopy,
    HostWorker,
    KeyMetrics,
    LogReplicas,
    Metrics,
    PlaceMetrics,
    QueueInfo,
    QueueMetrics,
    RouterMetrics,
    ScheduleMetrics,
    ShardMetrics,
    StoreMetrics,
    ThrottleMetrics,
    WorkerMetrics,
    WorkerStatus,
)

STARTED_MS = 1_700_000_000_500


def queue(name: str = "orders", **changes: object) -> QueueMetrics:
    told = QueueMetrics(
        QueueInfo(name, 3, 2, 1, 4, True, False, 0), 1500, 10, 7, 4, 1, 2, 3, 5, {"OVERLOADED": 6}, 20, 4, 90, 80,
        [KeyMetrics("acme", 2, 3, 6, 0.5)], 1, Histogram([10, 1000], [1, 2, 4], 9000),
        HookMetrics(8, 1, 2, True, Histogram([1000, 5000], [8, 0, 0], 4000)), Histogram([10, 1000], [3, 1, 0], 500),
        50,
    )  # fmt: skip
    for field, value in changes.items():
        setattr(told, field, value)
    return told


def shard(index: int = 0, *queues: QueueMetrics) -> ShardMetrics:
    store = StoreMetrics(Histogram([50_000], [1, 2], 1_000_000), Histogram([1, 2], [0, 0, 3], 30), 11, 12, 13, stalled=True)
    throttles = [ThrottleMetrics("api", 10.5, 20.0, 1.5, 6, 7)]
    return ShardMetrics(
        index,
        list(queues),
        0,
        throttles,
        60,
        70,
        {"LEASE_EXPIRED": 9},
        4096,
        store,
        ScheduleMetrics(5, 40, 3, 2, 1, 4),
        [PlaceMetrics("llm", 5, 3, 40, 4000, 90_000)],
    )


def cluster(*queues: QueueMetrics) -> Metrics:
    """Two shards, whose second one is down."""
    worker = WorkerMetrics("worker-0", STARTED_MS, 1250, Histogram([50_000], [5, 5], 2_000_000), [shard(0, *queues)])
    status = ClusterStatus(
        "1.2.3", 2, [WorkerStatus("worker-0", 42, "up", [0], 777, 3), WorkerStatus("worker-1", 43, "down", [1], 888, 4)]
    )
    router = RouterMetrics(
        STARTED_MS,
        1,
        2,
        3,
        4,
        {"OVERLOADED": 5},
        {"worker-0": 6},
        {"worker-0": 600},
        555,
        2500,
        {"worker-0": 7},
        {"worker-0": 700},
    )
    return Metrics([worker], status, router)


def hosted(*queues: QueueMetrics) -> Metrics:
    """A cluster on a replicated log: its host leads shard 0, and follows shards 1 and 2."""
    told = with_whole_queues(cluster(queue(), *queues))
    took = Histogram([1_000_000, 10_000_000], [3, 1, 0], 9_000_000)
    copies = [
        HostCopy(0, "leads", 5, 90, -1, 0, 4096, confirm_ns=took, log=LogReplicas(2, 3, 2)),
        HostCopy(1, "follows", 5, 60, 91, 30),
        HostCopy(2, "follows"),
    ]
    told.workers[0].host = HostWorker("a", "worker-0", "", copies)
    return told
