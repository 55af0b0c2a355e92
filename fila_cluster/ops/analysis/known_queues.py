"""Queues from earlier snapshots: their depths, and the shards of queues that no worker answers for now.

A queue that is missing from its shard's answer was deleted, and is forgotten; so memory has the size of the cluster.
"""

from collections import deque
from collections.abc import Collection, Iterable, Sequence
from typing import Final, NamedTuple

from fila_cluster.client.views import QueueInfo
from fila_cluster.ops.analysis.rates import all_queues
from fila_proto_zmq.commands import Metrics

DEPTHS_KEPT: Final = 60


class _Kept(NamedTuple):
    shard: int
    depths: "deque[int]"


class KnownQueues:
    """Queues by name, with their shards and their last depths."""

    def __init__(self) -> None:
        self._queues: dict[str, _Kept] = {}

    def note(self, metrics: Metrics, left_out: Iterable[QueueInfo]) -> None:
        """Take in a snapshot: the queues that shards showed, and those that they left out."""
        seen = {queue.info.name: queue.info for queue in all_queues(metrics)}
        for info in seen.values():
            self._keep(info.name, info.shard, info.depth)
        for row in left_out:
            self._keep(row.name, row.shard, row.depth)
        present = seen.keys() | {row.name for row in left_out}
        answered = {shard.shard for worker in metrics.workers for shard in worker.shards}
        self._queues = {name: kept for name, kept in self._queues.items() if name in present or kept.shard not in answered}

    def _keep(self, name: str, shard: int, depth: int) -> None:
        kept = self._queues.get(name)
        if kept is None:
            kept = self._queues[name] = _Kept(shard, deque(maxlen=DEPTHS_KEPT))
        kept.depths.append(depth)

    def depths(self, queue: str) -> Sequence[int]:
        """Return its last depths, the latest last."""
        kept = self._queues.get(queue)
        return tuple(kept.depths) if kept else ()

    def missing(self, present: Collection[str]) -> list[tuple[str, int]]:
        """Return the queues, with their shards, that should be there and are not among ``present``."""
        return [(name, kept.shard) for name, kept in self._queues.items() if name not in present]
