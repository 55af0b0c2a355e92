"""Changes between two snapshots of a cluster: rates per second, and durations."""

from collections import defaultdict
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, fields
from typing import Final, Self, TypeAlias

from fila_cluster.ops.analysis.partitions import WholeQueue, partitions_in, summed
from fila_proto_zmq.commands import Histogram, Metrics, QueueMetrics, WorkerMetrics


def mean(histogram: Histogram) -> float | None:
    """Return the mean of all observations; None: there are none."""
    count = sum(histogram.counts)
    return histogram.total / count if count else None


def difference(now: Histogram, before: Histogram) -> Histogram | None:
    """Return the observations since ``before``; None if the counting started over in between."""
    if now.bounds != before.bounds or any(new < old for new, old in zip(now.counts, before.counts, strict=True)):
        return None
    counts = [new - old for new, old in zip(now.counts, before.counts, strict=True)]
    return Histogram(now.bounds, counts, now.total - before.total)


@dataclass(frozen=True, slots=True)
class Rates:
    """Messages a second, by what became of them."""

    enqueued: float = 0.0
    delivered: float = 0.0
    acked: float = 0.0
    nacked: float = 0.0
    expired: float = 0.0
    dead_lettered: float = 0.0
    redriven: float = 0.0

    def __add__(self, other: Self) -> "Rates":
        return Rates(*(getattr(self, name) + getattr(other, name) for name in COUNTERS))


COUNTERS: Final = tuple(field.name for field in fields(Rates))
"""The counters of a queue that have rates."""


@dataclass(frozen=True, slots=True)
class WorkerLoad:
    """A worker's load between two snapshots. ``cpu_share``: of one core, 0 to 1."""

    cpu_share: float
    turn_ns: Histogram
    commit_ns: Histogram | None


@dataclass(frozen=True, slots=True)
class ClusterRates:
    """The rates between two snapshots. Missing ones are unknown. ``total``: of all queues but those of dead letters; None if
    a worker that answers now was started in between. ``queues`` has also each partition, by its name."""

    total: Rates | None
    queues: Mapping[str, Rates]
    workers: Mapping[str, WorkerLoad]


def rates(now: Metrics, before: Metrics | None, seconds: float) -> ClusterRates:
    """Return the rates; ``seconds`` passed between the snapshots. Without an earlier one they are unknown."""
    if before is None or seconds <= 0:
        return ClusterRates(None, {}, {})
    earlier = {worker.name: worker for worker in before.workers}
    pairs = [(worker, _same_run(worker, earlier.get(worker.name))) for worker in now.workers]
    queues = _queue_rates(now, before, pairs, seconds)
    loads = {new.name: load for new, old in pairs if old and (load := _load(new, old, seconds))}
    total = _total(now, queues) if all(old for _, old in pairs) else None
    return ClusterRates(total, queues, loads)


def per_second(now: Mapping[str, int], before: Mapping[str, int], seconds: float) -> dict[str, float]:
    """Return rates of counters by name. Counters that are in one snapshot only, or went back, have none."""
    known = ((name, count - before[name]) for name, count in now.items() if name in before)
    return {name: grown / seconds for name, grown in known if grown >= 0} if seconds > 0 else {}


_Pair: TypeAlias = tuple[WorkerMetrics, WorkerMetrics | None]
"""A worker now, and before, if it has run since then."""


def _same_run(now: WorkerMetrics, before: WorkerMetrics | None) -> WorkerMetrics | None:
    return before if before is not None and before.started_ms == now.started_ms else None


def _queue_rates(now: Metrics, before: Metrics, pairs: "list[_Pair]", seconds: float) -> dict[str, Rates]:
    """Return the rates of queues and partitions. That of a whole queue is known if those of all its partitions are."""
    shown, earlier = _by_shard(now), _by_shard(before)
    found: dict[str, Rates] = {}
    for new, old in pairs:
        left_out = {shard.shard: shard.queues_left_out for shard in old.shards} if old else {}
        for shard in new.shards:
            if shard.shard in left_out:
                known = earlier.get(shard.shard, {})
                found |= _shard_rates(shown.get(shard.shard, {}), known, seconds, left_out[shard.shard])
    for whole in (each for each in all_queues(now) if isinstance(each, WholeQueue)):
        names = [each.info.name for each in whole.partitions]
        if all(name in found for name in names):
            found[whole.info.name] = sum((found[name] for name in names), Rates())
    return found


def _by_shard(metrics: Metrics) -> dict[int, dict[str, QueueMetrics]]:
    """Return the queues and the partitions of each shard, by name."""
    shards: dict[int, dict[str, QueueMetrics]] = defaultdict(dict)
    for shard in (shard for worker in metrics.workers for shard in worker.shards):
        for queue in shard.queues:
            for each in partitions_in(queue):
                shards[shard.shard if each is queue else each.info.shard][each.info.name] = each
    return shards


def _shard_rates(
    now: Mapping[str, QueueMetrics], before: Mapping[str, QueueMetrics], seconds: float, left_out: int
) -> dict[str, Rates]:
    found = {}
    for name, queue in now.items():
        old = before.get(name)
        if old is None and left_out:
            continue  # it was there, and was not shown
        grown = [getattr(queue, counter) - (getattr(old, counter) if old else 0) for counter in COUNTERS]
        if min(grown) >= 0:  # otherwise it was deleted, and created again
            found[name] = Rates(*(count / seconds for count in grown))
    return found


def _load(now: WorkerMetrics, before: WorkerMetrics, seconds: float) -> WorkerLoad | None:
    turns = difference(now.turn_ns, before.turn_ns)
    if turns is None:
        return None
    earlier = {shard.shard: shard.store.commit_ns for shard in before.shards}
    pairs = ((shard.store.commit_ns, earlier.get(shard.shard)) for shard in now.shards)
    commits = (difference(new, old) for new, old in pairs if old is not None)
    return WorkerLoad((now.cpu_ms - before.cpu_ms) / 1000 / seconds, turns, summed(commits))


def _total(now: Metrics, queue_rates: Mapping[str, Rates]) -> Rates:
    total = Rates()
    for queue in all_queues(now):
        if not queue.info.is_dead_letter:
            total += queue_rates.get(queue.info.name, Rates())
    return total


def all_queues(metrics: Metrics) -> Iterator[QueueMetrics]:
    """Yield the queues that shards show, dead letter queues included. One with several partitions comes once."""
    for worker in metrics.workers:
        for shard in worker.shards:
            yield from shard.queues
