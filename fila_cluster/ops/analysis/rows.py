"""The rows of tables: each queue, worker and fairness key, by two snapshots, and the sums of all."""

from collections import deque
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from operator import attrgetter
from typing import Final, NamedTuple

from fila_cluster.client.views import KeyStats, QueueInfo, QueueMove, QueueStats, how_far, queue_move
from fila_cluster.figures import quantile
from fila_cluster.ops.analysis.hosts import shards_served
from fila_cluster.ops.analysis.partitions import WholeQueue, competing_weight, partition_number
from fila_cluster.ops.analysis.rates import ClusterRates, Rates, WorkerLoad, all_queues, per_second
from fila_proto_zmq.commands import Metrics, QueueMetrics, WorkerStatus
from fila_proto_zmq.commands import QueueInfo as WireQueueInfo
from fila_proto_zmq.names import dead_letter_name, is_dead_letter

DEPTHS_KEPT: Final = 60


class _Kept(NamedTuple):
    shard: int
    depths: "deque[int]"


class KnownQueues:
    """Queues of earlier snapshots by name, with their shards and last depths. A queue that is missing from its shard's answer
    was deleted and is forgotten, so memory has the size of the cluster."""

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


@dataclass(frozen=True, slots=True)
class QueueRow:
    """A queue. ``state``: ``down`` or ``silent`` (its shard), ``breaker``, ``paused``, ``unread``, ``active`` or ``idle``."""

    name: str
    state: str
    shard: int
    is_dead_letter: bool
    pending: int | None = None
    in_flight: int | None = None
    delayed: int | None = None
    depth: int | None = None
    oldest_pending_age: float | None = None
    consumers: int | None = None
    enqueued_per_s: float | None = None
    delivered_per_s: float | None = None
    acked_per_s: float | None = None
    dead_letters: int | None = None
    depths: Sequence[int] = ()


@dataclass(frozen=True, slots=True)
class PartitionRow:
    """A partition of a queue. ``share_due``: the part of the queue's deliveries that the weights of its keys entitle it to,
    None without anything to deliver."""

    partition: int
    shard: int
    worker: str
    pending: int
    in_flight: int
    delayed: int
    oldest_pending_age: float | None
    delivered_per_s: float | None
    share_due: float | None
    share: float | None
    move: str = ""
    """How far it has come with a change of the number of partitions, for people."""


@dataclass(frozen=True, slots=True)
class KeyRow:
    """A fairness key. ``share_due``: the part of the deliveries that its weight entitles it to, None without anything to
    deliver."""

    fairness_key: str
    weight: int
    pending: int
    in_flight: int
    delayed: int
    delivered_per_s: float | None
    share_due: float | None
    share: float | None
    paused: bool


@dataclass(frozen=True, slots=True)
class WorkerRow:
    """A worker. ``cpu``: of one core; times in nanoseconds, between the snapshots. ``queues`` None: it does not answer."""

    name: str
    pid: int
    state: str
    shards: list[int]
    queues: int | None
    rss_bytes: int
    cpu: float | None = None
    turn_p50_ns: float | None = None
    turn_p99_ns: float | None = None
    commit_p99_ns: float | None = None


# --- queues -----------------------------------------------------------------------------------------------------------


def queue_rows(
    now: Metrics, left_out: Sequence[QueueInfo], cluster_rates: ClusterRates, known: KnownQueues
) -> list[QueueRow]:
    """Return a row for each queue, by name: shown by its shard, left out, or of a shard that does not answer."""
    shown = list(all_queues(now))
    depths = {row.name: row.depth for row in left_out} | {each.info.name: each.info.depth for each in shown}
    rows = [_shown(queue, cluster_rates, depths, known) for queue in shown]
    rows += (_listed(row, depths, known) for row in left_out)
    rows += _unknown(known.missing(depths.keys()), shards_served(now.status))
    return sorted(rows, key=attrgetter("name"))


def _shown(queue: QueueMetrics, cluster_rates: ClusterRates, depths: Mapping[str, int], known: KnownQueues) -> QueueRow:
    info, rates = queue.info, cluster_rates.queues.get(queue.info.name)
    return QueueRow(
        name=info.name,
        state=_state(queue, rates),
        shard=info.shard,
        is_dead_letter=info.is_dead_letter,
        pending=info.pending,
        in_flight=info.in_flight,
        delayed=info.delayed,
        depth=info.depth,
        oldest_pending_age=queue.oldest_pending_ms / 1000 if info.pending else None,
        consumers=info.consumers,
        enqueued_per_s=rates.enqueued if rates else None,
        delivered_per_s=rates.delivered if rates else None,
        acked_per_s=rates.acked if rates else None,
        dead_letters=depths.get(dead_letter_name(info.name)),
        depths=known.depths(info.name),
    )


def _state(queue: QueueMetrics, rates: Rates | None) -> str:
    if queue.hooks is not None and queue.hooks.breaker_open:
        return "breaker"
    return plain_state(queue.info, rates)


def plain_state(queue: WireQueueInfo | QueueInfo | QueueStats, rates: Rates | None) -> str:
    """Return the state of a queue whose shard answers, by its numbers."""
    delivers = rates is not None and rates.delivered > 0  # also to consumers that come only now and then
    if queue.paused:
        return "paused"
    if queue.pending and not (queue.consumers or delivers):
        return "unread"
    return "active" if queue.pending or queue.in_flight or delivers else "idle"


def _listed(info: QueueInfo, depths: Mapping[str, int], known: KnownQueues) -> QueueRow:
    """Return the row of a queue that is in a list only."""
    return QueueRow(
        name=info.name,
        state=plain_state(info, rates=None),
        shard=info.shard,
        is_dead_letter=info.is_dead_letter,
        pending=info.pending,
        in_flight=info.in_flight,
        delayed=info.delayed,
        depth=info.depth,
        consumers=info.consumers,
        dead_letters=depths.get(dead_letter_name(info.name)),
        depths=known.depths(info.name),
    )


def _unknown(missing: Iterable[tuple[str, int]], served: Collection[int]) -> Iterator[QueueRow]:
    """Yield the rows of queues whose shards do not answer: their names, and no old numbers."""
    for name, shard in missing:
        yield QueueRow(name, "silent" if shard in served else "down", shard, is_dead_letter(name))


def partition_rows(now: Metrics, name: str, cluster_rates: ClusterRates) -> list[PartitionRow]:
    """Return a row for each partition of a queue whose shard answered, by number; empty if it has no partitions."""
    whole = next((each for each in all_queues(now) if each.info.name == name), None)
    if not isinstance(whole, WholeQueue):
        return []
    move = None if whole.move is None else queue_move(whole.move)
    workers = {shard.shard: worker.name for worker in now.workers for shard in worker.shards}
    weights = sum(map(competing_weight, whole.partitions))
    delivered = sum(rates.delivered for each in whole.partitions if (rates := cluster_rates.queues.get(each.info.name)))
    return [
        _partition(each, workers.get(each.info.shard, ""), cluster_rates.queues.get(each.info.name), weights, delivered, move)
        for each in whole.partitions
    ]


def _partition(
    partition: QueueMetrics, worker: str, rates: Rates | None, weights: float, delivered: float, move: QueueMove | None
) -> PartitionRow:
    info, weight, number = partition.info, competing_weight(partition), int(partition_number(partition.info.name))
    return PartitionRow(
        partition=number,
        shard=info.shard,
        worker=worker,
        pending=info.pending,
        in_flight=info.in_flight,
        delayed=info.delayed,
        oldest_pending_age=partition.oldest_pending_ms / 1000 if info.pending else None,
        delivered_per_s=rates.delivered if rates else None,
        share_due=weight / weights if weight else None,
        share=rates.delivered / delivered if rates and delivered else None,
        move="" if move is None else how_far(move, number),
    )


# --- workers ----------------------------------------------------------------------------------------------------------


def worker_rows(now: Metrics, cluster_rates: ClusterRates) -> list[WorkerRow]:
    """Return a row for each worker in the router's status."""
    workers = now.status.workers if now.status else ()
    return [_worker(worker, cluster_rates.workers.get(worker.name)) for worker in workers]


def _worker(status: WorkerStatus, load: WorkerLoad | None) -> WorkerRow:
    queues = status.queues if status.state == "up" else None
    row = status.name, status.pid, status.state, list(status.shards), queues, status.rss_bytes
    if load is None:
        return WorkerRow(*row)
    turns = quantile(load.turn_ns, 0.5), quantile(load.turn_ns, 0.99)
    return WorkerRow(*row, load.cpu_share, *turns, quantile(load.commit_ns, 0.99) if load.commit_ns else None)


# --- fairness keys ----------------------------------------------------------------------------------------------------


def key_rows(now: QueueStats, before: QueueStats | None, seconds: float) -> list[KeyRow]:
    """Return a row for each key of a queue, by name; without an earlier snapshot there are no rates."""
    earlier = {key.fairness_key: key.delivered for key in before.keys} if before else {}
    rates = per_second({key.fairness_key: key.delivered for key in now.keys}, earlier, seconds)
    delivered, weights = sum(rates.values()), sum(key.weight for key in now.keys if _competes(key))
    keys = sorted(now.keys, key=attrgetter("fairness_key"))
    return [_key(key, rates.get(key.fairness_key), delivered, weights) for key in keys]


def _key(key: KeyStats, rate: float | None, delivered: float, weights: int) -> KeyRow:
    return KeyRow(
        fairness_key=key.fairness_key,
        weight=key.weight,
        pending=key.pending,
        in_flight=key.in_flight,
        delayed=key.delayed,
        delivered_per_s=rate,
        share_due=key.weight / weights if _competes(key) else None,
        share=rate / delivered if rate is not None and delivered else None,
        paused=key.paused,
    )


def _competes(key: KeyStats) -> bool:
    return key.pending > 0 and not key.paused


class ClusterTotals(NamedTuple):
    """Sums over the queues that are shown; dead letter queues count as ``dead_letters`` only. ``oldest``: the queue with the
    oldest message."""

    pending: int
    in_flight: int
    delayed: int
    dead_letters: int
    oldest: QueueMetrics | None


def missing_shards(metrics: Metrics) -> list[int]:
    """Return the shards that have not answered: their queues are unknown."""
    answered = {shard.shard for worker in metrics.workers for shard in worker.shards}
    return sorted(set(range(metrics.status.shards)) - answered) if metrics.status else []


def coverage(metrics: Metrics) -> str:
    """Return which part of the shards sums are of; empty: all of them."""
    missing, total = missing_shards(metrics), metrics.status.shards if metrics.status else 0
    return f"{total - len(missing)} of {total} shards" if missing else ""


def totals(metrics: Metrics) -> ClusterTotals:
    """Return the sums of one snapshot."""
    ordinary = [queue for queue in all_queues(metrics) if not queue.info.is_dead_letter]
    waiting = (queue for queue in ordinary if queue.oldest_pending_ms)
    return ClusterTotals(
        sum(queue.info.pending for queue in ordinary),
        sum(queue.info.in_flight for queue in ordinary),
        sum(queue.info.delayed for queue in ordinary),
        sum(queue.info.depth for queue in all_queues(metrics) if queue.info.is_dead_letter),
        max(waiting, key=lambda queue: queue.oldest_pending_ms, default=None),
    )
