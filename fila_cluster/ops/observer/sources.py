"""The sources of numbers in an answer of the cluster: the router, workers, shards, queues, keys, each with its labels."""

from collections.abc import Iterable, Iterator
from typing import Any, NamedTuple, TypeAlias

from fila_cluster.ops.analysis.hosts import shards_served
from fila_cluster.ops.analysis.partitions import partition_number, partitions_in
from fila_cluster.ops.analysis.rates import all_queues
from fila_proto_zmq.commands import OTHER_KEYS, Metrics, QueueMetrics


class Source(NamedTuple):
    """A source of numbers: its labels' values, and the start of its counting, Unix ms (0: not known).

    The last label, ``partition``, is missing from queues that have no partitions.
    """

    labels: tuple[str, ...]
    counts: Any
    since_ms: int = 0


Sources: TypeAlias = Iterable[Source]


def router(metrics: Metrics) -> Iterator[Source]:
    """Yield the router."""
    if metrics.router is not None:
        yield Source((), metrics.router, metrics.router.started_ms)


def router_frames(metrics: Metrics) -> Iterator[Source]:
    """Yield the frames of the router, by direction."""
    for source in router(metrics):
        for direction in ("from_clients", "to_clients", "from_workers", "to_workers"):
            yield Source((direction,), getattr(source.counts, direction), source.since_ms)


def router_refusals(metrics: Metrics) -> Iterator[Source]:
    """Yield the requests that the router refused, by code."""
    for source in router(metrics):
        for code, count in source.counts.refused.items():
            yield Source((code,), count, source.since_ms)


def in_flight(metrics: Metrics) -> Iterator[Source]:
    """Yield the open requests of each worker, and their bytes."""
    for source in router(metrics):
        for worker, requests in source.counts.in_flight.items():
            yield Source((worker,), (requests, source.counts.in_flight_bytes[worker]))


def doors(metrics: Metrics) -> Iterator[Source]:
    """Yield the clients and the frames at each worker's own door."""
    for source in router(metrics):
        for worker, clients in source.counts.direct_clients.items():
            yield Source((worker,), (clients, source.counts.direct_frames[worker]))


def known_workers(metrics: Metrics) -> Iterator[Source]:
    """Yield every worker in the router's status, up or down."""
    for worker in metrics.status.workers if metrics.status else ():
        yield Source((worker.name,), worker)


def known_shards(metrics: Metrics) -> Iterator[Source]:
    """Yield every shard, and whether a worker serves it."""
    if metrics.status is not None:
        served = shards_served(metrics.status)
        for shard in range(metrics.status.shards):
            yield Source((str(shard),), shard in served)


def workers(metrics: Metrics) -> Iterator[Source]:
    """Yield the workers that answered."""
    for worker in metrics.workers:
        yield Source((worker.name,), worker, worker.started_ms)


def shards(metrics: Metrics) -> Iterator[Source]:
    """Yield the shards of the workers that answered."""
    for worker in metrics.workers:
        for shard in worker.shards:
            yield Source((str(shard.shard),), shard, worker.started_ms)


def schedules(metrics: Metrics) -> Iterator[Source]:
    """Yield the schedules of the shards that have some."""
    for worker in metrics.workers:
        for shard in worker.shards:
            if shard.schedules is not None:
                yield Source((str(shard.shard),), shard.schedules, worker.started_ms)


def copies(metrics: Metrics) -> Iterator[Source]:
    """Yield the copies of shards on a replicated log, of each host."""
    for worker in metrics.workers:
        if worker.host is not None:
            for copy in worker.host.copies:
                yield Source((str(copy.shard), worker.host.host), copy, worker.started_ms)


def shard_refusals(metrics: Metrics) -> Iterator[Source]:
    """Yield the requests that shards refused, by code."""
    for labels, shard, since_ms in shards(metrics):
        for code, count in shard.refused.items():
            yield Source((*labels, code), count, since_ms)


def throttle_keys(metrics: Metrics) -> Iterator[Source]:
    """Yield the throttle keys that shards show."""
    for labels, shard, since_ms in shards(metrics):
        for throttle in shard.throttles:
            yield Source((*labels, throttle.key), throttle, since_ms)


def placed_keys(metrics: Metrics) -> Iterator[Source]:
    """Yield the throttle keys with a concurrency that shards show."""
    for labels, shard, since_ms in shards(metrics):
        for place in shard.places:
            yield Source((*labels, place.key), place, since_ms)


def queues(metrics: Metrics) -> Iterator[Source]:
    """Yield the queues that shards show, each once. Their numbers of now can be added up, unlike counters."""
    for queue in all_queues(metrics):
        yield Source((queue.info.name,), queue)


def counted_queues(metrics: Metrics) -> Iterator[Source]:
    """Yield the queues and the partitions that shards show: each counts since its own worker started.

    Their sum would fall when one worker is restarted, or does not answer, and monitors would take that for a new start of all.
    """
    since = {shard.shard: worker.started_ms for worker in metrics.workers for shard in worker.shards}
    for shard in (shard for worker in metrics.workers for shard in worker.shards):
        for queue in shard.queues:
            for each in partitions_in(queue):
                if each is queue:
                    yield Source((queue.info.name,), queue, since[shard.shard])
                else:
                    labels = queue.info.name, partition_number(each.info.name)
                    yield Source(labels, each, since.get(each.info.shard, 0))


def queue_partitions(metrics: Metrics) -> Iterator[Source]:
    """Yield the partitions of queues that have several."""
    return (source for source in counted_queues(metrics) if len(source.labels) > 1)


def rejections(metrics: Metrics) -> Iterator[Source]:
    """Yield the messages that queues refused, by code."""
    for (name, *partition), queue, since_ms in counted_queues(metrics):
        for code, count in queue.rejected.items():
            yield Source((name, code, *partition), count, since_ms)


def hooks(metrics: Metrics) -> Iterator[Source]:
    """Yield the queues that have hooks."""
    for labels, queue, _ in queues(metrics):
        if queue.hooks is not None:
            yield Source(labels, queue.hooks)


def counted_hooks(metrics: Metrics) -> Iterator[Source]:
    """Yield the hooks of queues and partitions."""
    for labels, queue, since_ms in counted_queues(metrics):
        if queue.hooks is not None:
            yield Source(labels, queue.hooks, since_ms)


def keys(metrics: Metrics) -> Iterator[Source]:
    """Yield the keys that queues show."""
    for labels, queue, _ in queues(metrics):
        for key in queue.keys:
            yield Source((*labels, key.fairness_key), key)


def keys_and_others(metrics: Metrics) -> Iterator[Source]:
    """Yield the deliveries of each of these keys, and of all others."""
    for (name, *partition), queue, since_ms in counted_queues(metrics):
        assert isinstance(queue, QueueMetrics)
        for key in queue.keys:
            yield Source((name, key.fairness_key, *partition), key.delivered, since_ms)
        if queue.known_keys > len(queue.keys) or queue.other_delivered:
            yield Source((name, OTHER_KEYS, *partition), queue.other_delivered, since_ms)
