"""The part of a cluster's counters that somebody may see who may see only some queues."""

from collections.abc import Callable

from msgspec.structs import replace

from fila_proto_zmq.commands import Metrics, ShardMetrics, WorkerMetrics

MaySee = Callable[[str], bool]
"""Whether somebody may see the queue of this name."""


def visible(metrics: Metrics, may_see: MaySee) -> Metrics:
    """Return the counters with only the queues that may be seen: without the others' number, throttle keys and traffic."""
    return Metrics([_of_worker(worker, may_see) for worker in metrics.workers], metrics.status)


def _of_worker(worker: WorkerMetrics, may_see: MaySee) -> WorkerMetrics:
    return replace(worker, shards=[_of_shard(shard, may_see) for shard in worker.shards])


def _of_shard(shard: ShardMetrics, may_see: MaySee) -> ShardMetrics:
    queues = [queue for queue in shard.queues if may_see(queue.info.name)]
    return replace(shard, queues=queues, queues_left_out=0, throttles=[], refused={}, schedules=None)
