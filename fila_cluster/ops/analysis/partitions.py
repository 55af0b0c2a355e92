"""Queues with several partitions in the counters of a cluster, as one queue each.

Each shard reports its partitions as queues of its own. :func:`with_whole_queues` puts one :class:`WholeQueue` in their place,
as soon as an answer comes, so all that follows sees the queue that users know. Its partitions stay within it: a table shows
them, and rates are taken of each, because each counts from the start of its own worker.
"""

from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Sequence
from typing import Final

from msgspec import field
from msgspec.structs import replace

from fila_cluster.client.calls.partitioned import info_of, joined_moves
from fila_proto_zmq.commands import Histogram, HookMetrics, KeyMetrics, Metrics, QueueMetrics, ShardMetrics
from fila_proto_zmq.names import PARTITION_MARK, whole_queue

_SUMMED: Final = (
    "enqueued",
    "delivered",
    "acked",
    "nacked",
    "expired",
    "dead_lettered",
    "redriven",
    "active_keys",
    "turns",
    "rounds",
    "other_delivered",
)


class WholeQueue(QueueMetrics):
    """A queue with several partitions: the numbers of those that answered, together."""

    partitions: list[QueueMetrics] = field(default_factory=list)
    """By number."""


def partitions_in(queue: QueueMetrics) -> Sequence[QueueMetrics]:
    """Return the partitions of a queue that answered; of a queue without partitions the queue itself."""
    return queue.partitions if isinstance(queue, WholeQueue) else (queue,)


def partition_number(name: str) -> str:
    """Return the number of a partition, as its name has it; empty for a queue without partitions."""
    return name.partition(PARTITION_MARK)[2]


def with_whole_queues(metrics: Metrics) -> Metrics:
    """Return the counters with one row for each queue. A queue with partitions is on the shard of the first that answered."""
    groups: dict[str, list[QueueMetrics]] = defaultdict(list)
    for queue in (each for worker in metrics.workers for shard in worker.shards for each in shard.queues):
        if PARTITION_MARK in queue.info.name:
            groups[whole_queue(queue.info.name)].append(queue)
    if not groups:
        return metrics
    homes: dict[int, list[QueueMetrics]] = defaultdict(list)
    for partitions in groups.values():
        whole = _whole(sorted(partitions, key=lambda each: int(partition_number(each.info.name))))
        homes[whole.info.shard].append(whole)
    workers = [
        replace(worker, shards=[_of_shard(shard, homes[shard.shard]) for shard in worker.shards])
        for worker in metrics.workers
    ]
    return Metrics(workers, metrics.status, metrics.router)


def _of_shard(shard: ShardMetrics, wholes: list[QueueMetrics]) -> ShardMetrics:
    return replace(shard, queues=[*(each for each in shard.queues if PARTITION_MARK not in each.info.name), *wholes])


def _whole(partitions: list[QueueMetrics]) -> WholeQueue:
    keys = _keys(partitions)
    shows_all = all(each.known_keys <= len(each.keys) and not each.other_delivered for each in partitions)
    rejected: Counter[str] = Counter()
    for each in partitions:
        rejected.update(each.rejected)
    return WholeQueue(
        info=info_of([each.info for each in partitions]),
        oldest_pending_ms=max(each.oldest_pending_ms for each in partitions),
        rejected=dict(rejected),
        known_keys=len(keys) if shows_all else sum(each.known_keys for each in partitions),
        keys=keys,
        dwell_ms=summed(each.dwell_ms for each in partitions),
        hooks=_hooks([each.hooks for each in partitions if each.hooks is not None]),
        settle_ms=summed(each.settle_ms for each in partitions),
        max_in_flight=partitions[0].max_in_flight,
        move=joined_moves(each.move for each in partitions),
        partitions=partitions,
        **{name: sum(getattr(each, name) for each in partitions) for name in _SUMMED},
    )


def summed(histograms: Iterable[Histogram | None]) -> Histogram | None:
    """Return all observations of histograms with the same bounds; None: there are no histograms."""
    whole: Histogram | None = None
    for each in histograms:
        if each is None:
            continue
        if whole is None:
            whole = Histogram(each.bounds, list(each.counts), each.total)
            continue
        assert each.bounds == whole.bounds
        whole.counts = [left + right for left, right in zip(whole.counts, each.counts, strict=True)]
        whole.total += each.total
    return whole


def _hooks(hooks: list[HookMetrics]) -> HookMetrics | None:
    run_ns = summed(each.run_ns for each in hooks)
    if run_ns is None:
        return None
    runs, failed, bypassed = (sum(getattr(each, name) for each in hooks) for name in ("runs", "failed", "bypassed"))
    return HookMetrics(runs, failed, bypassed, any(each.breaker_open for each in hooks), run_ns)


def _keys(partitions: list[QueueMetrics]) -> list[KeyMetrics]:
    """Return the keys that partitions show, each once. A consumer takes from partitions by the weights of their keys."""
    weights = [competing_weight(each) for each in partitions]
    total = sum(weights)
    keys: dict[str, KeyMetrics] = {}
    for weight, key in _weighed(partitions, weights):
        share = key.fair_share * weight / total if total else 0.0
        known = keys.get(key.fairness_key)
        if known is None:
            keys[key.fairness_key] = replace(key, fair_share=share)
        else:
            known.weight = max(known.weight, key.weight)
            known.pending += key.pending
            known.delivered += key.delivered
            known.fair_share += share
    return sorted(keys.values(), key=lambda each: -(each.pending + each.delivered))


def _weighed(partitions: list[QueueMetrics], weights: list[float]) -> Iterator[tuple[float, KeyMetrics]]:
    for partition, weight in zip(partitions, weights, strict=True):
        for key in partition.keys:
            yield weight, key


def competing_weight(partition: QueueMetrics) -> float:
    """Return the sum of the weights of the keys that can deliver now, by what one of them has of it; 0: none can."""
    return next((key.weight / key.fair_share for key in partition.keys if key.fair_share), 0.0)
