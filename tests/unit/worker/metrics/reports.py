"""What a shard reports of itself."""

from fila_proto_zmq.commands import QueueMetrics, ShardMetrics
from fila_worker.core.metrics.meter import report
from tests.support.shard.shard import ShardHarness


def metrics_of(shard: ShardHarness, queue: str = "q") -> QueueMetrics:
    """Of one queue."""
    return next(each for each in report_of(shard).queues if each.info.name == queue)


def report_of(shard: ShardHarness) -> ShardMetrics:
    """Of all of it."""
    return report(shard.shard, shard.now_ms)
