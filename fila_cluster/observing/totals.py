"""What all queues hold together."""

from typing import NamedTuple

from fila_cluster.observing.rates import all_queues
from fila_proto_zmq.commands import Metrics, QueueMetrics


class Totals(NamedTuple):
    """Sums over the queues that are shown; those of dead letters count as ``dead_letters`` only. ``oldest``: where somebody waits longest, if anywhere."""

    pending: int
    in_flight: int
    delayed: int
    dead_letters: int
    oldest: QueueMetrics | None


def totals(metrics: Metrics) -> Totals:
    """Of one look."""
    ordinary = [queue for queue in all_queues(metrics) if not queue.info.is_dead_letter]
    waiting = (queue for queue in ordinary if queue.oldest_pending_ms)
    return Totals(
        sum(queue.info.pending for queue in ordinary),
        sum(queue.info.in_flight for queue in ordinary),
        sum(queue.info.delayed for queue in ordinary),
        sum(queue.info.depth for queue in all_queues(metrics) if queue.info.is_dead_letter),
        max(waiting, key=lambda queue: queue.oldest_pending_ms, default=None),
    )
