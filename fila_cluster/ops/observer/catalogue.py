"""Every metric: its name, kind, labels and meaning, and where its number is. ``docs/metrics.md`` is the same for people.

Names have dots, as in OpenTelemetry; in Prometheus the dots are underscores, and counters end in ``_total``. Units come last.
A *scope* is a set of labels with its sources: all its metrics have one number for each source.
"""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from operator import attrgetter
from typing import Any, Final, NamedTuple, TypeAlias

from fila_cluster.ops.observer import sources
from fila_cluster.ops.observer.sources import Sources
from fila_proto_zmq.commands import Histogram, Metrics
from fila_proto_zmq.commands.hosts import LEADS

COUNTER: Final = "counter"
GAUGE: Final = "gauge"
HISTOGRAM: Final = "histogram"


@dataclass(frozen=True, slots=True)
class Metric:
    """``read``: the attribute of a source, or a function of it (None: the source lacks the number). ``scale``: its factor to
    the metric's unit."""

    name: str
    kind: str
    meaning: str
    read: "str | Callable[[Any], float | Histogram | None]"
    scale: float = 1.0

    @property
    def prometheus_name(self) -> str:
        """The name in Prometheus."""
        return self.name.replace(".", "_") + ("_total" if self.kind == COUNTER else "")


class Scope(NamedTuple):
    """Labels, the sources that have them, and the metrics of each source."""

    labels: tuple[str, ...]
    sources: Callable[[Any], Sources]
    metrics: tuple[Metric, ...]


NS: Final = 1e-9
MS: Final = 1e-3
"""Nanoseconds and milliseconds in seconds."""
NS_IN_US: Final = 1e-3

SCOPES: Final = (
    Scope(
        (),
        sources.router,
        (
            Metric("fila.router.start_time_seconds", GAUGE, "When the router started, Unix time.", "started_ms", MS),
            Metric("fila.router.rss_bytes", GAUGE, "Resident memory.", "rss_bytes"),
            Metric("fila.router.cpu_seconds", COUNTER, "CPU time, user and system.", "cpu_ms", MS),
        ),
    ),
    Scope(
        ("direction",),
        sources.router_frames,
        (Metric("fila.router.frames", COUNTER, "Frames that the router read and passed on.", float),),
    ),
    Scope(
        ("code",),
        sources.router_refusals,
        (Metric("fila.router.refused", COUNTER, "Requests that the router itself refused, by error code.", float),),
    ),
    Scope(
        ("worker",),
        sources.in_flight,
        (
            Metric("fila.router.in_flight", GAUGE, "Requests that wait for a worker's answer.", lambda it: it[0]),
            Metric("fila.router.in_flight_bytes", GAUGE, "Their size.", lambda it: it[1]),
        ),
    ),
    Scope(
        ("worker",),
        sources.doors,
        (
            Metric("fila.worker.direct_clients", GAUGE, "Clients at the worker's own door.", lambda it: it[0]),
            Metric(
                "fila.worker.direct_frames", COUNTER, "Frames that passed the worker's own door, both ways.", lambda it: it[1]
            ),
        ),
    ),
    Scope(
        ("worker",),
        sources.known_workers,
        (
            Metric("fila.worker.up", GAUGE, "1 while the worker serves, else 0.", lambda it: it.state == "up"),
            Metric("fila.worker.rss_bytes", GAUGE, "Resident memory, as the worker last said.", "rss_bytes"),
            Metric("fila.worker.queues", GAUGE, "Queues, those of dead letters not counted.", "queues"),
        ),
    ),
    Scope(
        ("shard",),
        sources.known_shards,
        (Metric("fila.shard.up", GAUGE, "1 while a worker serves the shard, else 0.", float),),
    ),
    Scope(
        ("worker",),
        sources.workers,
        (
            Metric("fila.worker.start_time_seconds", GAUGE, "When the worker started, Unix time.", "started_ms", MS),
            Metric("fila.worker.cpu_seconds", COUNTER, "CPU time, user and system.", "cpu_ms", MS),
            Metric(
                "fila.worker.turn_duration_seconds",
                HISTOGRAM,
                "Turns, from the first frame read to the last one sent.",
                "turn_ns",
                NS,
            ),
        ),
    ),
    Scope(
        ("shard",),
        sources.shards,
        (
            Metric("fila.shard.buffered_bytes", GAUGE, "Messages kept in memory.", "buffered_bytes"),
            Metric("fila.shard.queues_left_out", GAUGE, "Queues too many to be shown.", "queues_left_out"),
            Metric("fila.throttle.passes", COUNTER, "Messages that got their tokens.", "throttle_passes"),
            Metric(
                "fila.throttle.hits",
                COUNTER,
                "How often messages had to wait: a bucket had too few tokens, or a key was parked.",
                "throttle_hits",
            ),
            Metric(
                "fila.storage.commit_duration_seconds",
                HISTOGRAM,
                "Commits: one a turn that changed anything.",
                "store.commit_ns",
                NS,
            ),
            Metric("fila.storage.commit_changes", HISTOGRAM, "Puts and deletes of a commit.", "store.commit_changes"),
            Metric("fila.storage.memtable_bytes", GAUGE, "RocksDB's write buffers.", "store.memtable_bytes"),
            Metric("fila.storage.disk_bytes", GAUGE, "RocksDB's tables and blobs.", "store.disk_bytes"),
            Metric(
                "fila.storage.compaction_pending_bytes",
                GAUGE,
                "What RocksDB still has to compact, as it estimates.",
                "store.compaction_bytes",
            ),
            Metric("fila.storage.stalled", GAUGE, "1 while RocksDB slows down or stops writes.", "store.stalled"),
        ),
    ),
    Scope(
        ("shard",),
        sources.schedules,
        (
            Metric("fila.schedules", GAUGE, "Schedules.", "schedules"),
            Metric("fila.schedules.under_way", GAUGE, "Schedules whose message waits to be stored.", "under_way"),
            Metric("fila.schedules.fired", COUNTER, "Due times with a message.", "fired"),
            Metric("fila.schedules.late", COUNTER, "Messages more than a second after their time.", "late"),
            Metric("fila.schedules.skipped", COUNTER, "Due times of outages without a message.", "skipped"),
            Metric("fila.schedules.failed", COUNTER, "Due times whose enqueue was refused.", "failed"),
        ),
    ),
    Scope(
        ("shard", "host"),
        sources.copies,
        (
            Metric(
                "fila.copy.leads",
                GAUGE,
                "1 while the host leads the shard and serves it, else 0.",
                lambda it: it.role == LEADS,
            ),
            Metric(
                "fila.copy.behind_records",
                GAUGE,
                "Records of the log that the host's copy has still to read; none while that is not known.",
                lambda it: None if it.behind < 0 else it.behind,
            ),
            Metric(
                "fila.log.unconfirmed_bytes",
                GAUGE,
                "What the host has written and the log has not confirmed.",
                "unconfirmed_bytes",
            ),
            Metric(
                "fila.log.replicas",
                GAUGE,
                "Brokers of the log that should have the shard's part, as the host last heard; none while that is not known.",
                lambda it: None if it.log is None else it.log.wanted,
            ),
            Metric(
                "fila.log.replicas_in_sync",
                GAUGE,
                "Those of them that have all of it.",
                lambda it: None if it.log is None else it.log.in_sync,
            ),
            Metric(
                "fila.log.confirm_seconds",
                HISTOGRAM,
                "How long the log took to confirm the host's commits.",
                "confirm_ns",
                NS,
            ),
        ),
    ),
    Scope(
        ("shard", "code"),
        sources.shard_refusals,
        (Metric("fila.shard.refused", COUNTER, "Requests that the shard refused, by error code.", float),),
    ),
    Scope(
        ("shard", "throttle_key"),
        sources.throttle_keys,
        (
            Metric("fila.throttle.key_passes", COUNTER, "Messages with this key that got their tokens.", "passes"),
            Metric("fila.throttle.key_hits", COUNTER, "How often messages with it had to wait.", "hits"),
            Metric(
                "fila.throttle.tokens_remaining", GAUGE, "Tokens in the cluster's bucket, by the shard's state.", "tokens"
            ),
            Metric("fila.throttle.rate", GAUGE, "Tokens a second that it gets.", "rate"),
            Metric("fila.throttle.burst", GAUGE, "Tokens that it holds.", "burst"),
        ),
    ),
    Scope(
        ("shard", "throttle_key"),
        sources.placed_keys,
        (
            Metric("fila.throttle.concurrency", GAUGE, "Messages that may be leased in the whole cluster.", "concurrency"),
            Metric(
                "fila.throttle.in_use", GAUGE, "Messages of the shard that are leased: the sum over shards counts.", "leased"
            ),
            Metric(
                "fila.throttle.waiting", GAUGE, "Messages of the shard that wait for a place, counted in part.", "waiting"
            ),
            Metric(
                "fila.throttle.full_seconds",
                GAUGE,
                "For how long all places were in use in the cluster while messages waited on the shard.",
                "full_ms",
                MS,
            ),
            Metric(
                "fila.throttle.longest_lease_seconds",
                GAUGE,
                "For how long the oldest lease of the shard has lasted, 0 below a minute.",
                "longest_ms",
                MS,
            ),
        ),
    ),
    Scope(
        ("queue",),
        sources.queues,
        (
            Metric("fila.queue.pending", GAUGE, "Messages that could be delivered.", "info.pending"),
            Metric("fila.queue.in_flight", GAUGE, "Messages that are leased.", "info.in_flight"),
            Metric(
                "fila.queue.max_in_flight",
                GAUGE,
                "The most messages that may be leased; none without a limit.",
                "max_in_flight",
            ),
            Metric("fila.queue.delayed", GAUGE, "Messages that are not due yet.", "info.delayed"),
            Metric("fila.queue.depth", GAUGE, "The sum of these three.", "info.depth"),
            Metric(
                "fila.queue.oldest_age_seconds",
                GAUGE,
                "Age of the oldest pending message; 0 if none is pending.",
                "oldest_pending_ms",
                MS,
            ),
            Metric("fila.queue.consumers", GAUGE, "Clients that receive.", "info.consumers"),
            Metric("fila.queue.paused", GAUGE, "1 while the queue is paused.", "info.paused"),
            Metric("fila.scheduler.active_keys", GAUGE, "Fairness keys that could deliver now.", "active_keys"),
            Metric("fila.scheduler.known_keys", GAUGE, "Fairness keys that are remembered.", "known_keys"),
        ),
    ),
    Scope(
        ("queue", "partition"),
        sources.queue_partitions,
        (
            Metric("fila.partition.pending", GAUGE, "Messages of the partition that could be delivered.", "info.pending"),
            Metric("fila.partition.in_flight", GAUGE, "Messages of it that are leased.", "info.in_flight"),
            Metric(
                "fila.partition.oldest_age_seconds",
                GAUGE,
                "Age of its oldest pending message; 0 if none is pending.",
                "oldest_pending_ms",
                MS,
            ),
        ),
    ),
    Scope(
        ("queue", "partition"),
        sources.counted_queues,
        (
            Metric("fila.messages.enqueued", COUNTER, "Messages accepted.", "enqueued"),
            Metric("fila.messages.delivered", COUNTER, "Deliveries, repeated ones too.", "delivered"),
            Metric("fila.messages.acked", COUNTER, "Messages done with.", "acked"),
            Metric("fila.messages.nacked", COUNTER, "Attempts that consumers called failed: nack, retry, fail.", "nacked"),
            Metric("fila.messages.expired", COUNTER, "Leases that ran out.", "expired"),
            Metric("fila.messages.dead_lettered", COUNTER, "Messages that left as dead letters.", "dead_lettered"),
            Metric("fila.messages.redriven", COUNTER, "Dead letters sent back from this queue.", "redriven"),
            Metric("fila.messages.dwell_seconds", HISTOGRAM, "From the enqueue to the first delivery.", "dwell_ms", MS),
            Metric("fila.messages.settle_seconds", HISTOGRAM, "From the lease to the ack.", "settle_ms", MS),
            Metric("fila.scheduler.drr.turns", COUNTER, "Turns of fairness keys.", "turns"),
            Metric("fila.scheduler.drr.rounds", COUNTER, "Rounds of the busy keys.", "rounds"),
        ),
    ),
    Scope(
        ("queue", "code", "partition"),
        sources.rejections,
        (Metric("fila.messages.rejected", COUNTER, "Messages that were not accepted, by error code.", float),),
    ),
    Scope(
        ("queue", "fairness_key", "partition"),
        sources.keys_and_others,
        (Metric("fila.key.delivered", COUNTER, "Deliveries of the busiest keys, and of all others.", float),),
    ),
    Scope(
        ("queue", "fairness_key"),
        sources.keys,
        (
            Metric("fila.key.pending", GAUGE, "Messages of the key that could be delivered.", "pending"),
            Metric("fila.key.weight", GAUGE, "Its weight.", "weight"),
            Metric(
                "fila.key.fair_share_ratio",
                GAUGE,
                "What part of the queue's deliveries is due to it now; 0 while it has nothing to deliver.",
                "fair_share",
            ),
        ),
    ),
    Scope(
        ("queue", "partition"),
        sources.counted_hooks,
        (
            Metric("fila.lua.execution_duration_us", HISTOGRAM, "Runs of the queue's scripts.", "run_ns", NS_IN_US),
            Metric("fila.lua.errors", COUNTER, "Runs that failed.", "failed"),
            Metric("fila.lua.bypassed", COUNTER, "Messages that went without, the breaker being open.", "bypassed"),
        ),
    ),
    Scope(
        ("queue",),
        sources.hooks,
        (Metric("fila.lua.breaker_open", GAUGE, "1 while the circuit breaker is open.", "breaker_open"),),
    ),
)

UP: Final = Metric("fila.up", GAUGE, "1 while the router answers; else there is no other metric.", float)


Number: TypeAlias = float | Histogram


@dataclass(slots=True)
class MetricSample:
    """A number of one source; unscaled. ``since_ms``: the start of its counting, Unix ms (0: not known)."""

    labels: tuple[str, ...]
    number: Number
    since_ms: int


@dataclass(frozen=True, slots=True)
class Family:
    """All samples of a metric."""

    metric: Metric
    labels: tuple[str, ...]
    samples: Sequence[MetricSample]


def families(metrics: Metrics | None) -> list[Family]:
    """Return all samples; for ``None`` only that of a missing answer."""
    up = Family(UP, (), [MetricSample((), float(metrics is not None), 0)])
    if metrics is None:
        return [up]
    return [up, *families_of(SCOPES, metrics)]


def families_of(scopes: Iterable[Scope], told: Any) -> list[Family]:
    """Return the samples of some scopes; their sources take the numbers from ``told``."""
    known = []
    for scope in scopes:
        sources = list(scope.sources(told))
        for metric in scope.metrics:
            read = attrgetter(metric.read) if isinstance(metric.read, str) else metric.read
            numbers = ((source, read(source.counts)) for source in sources)
            samples = [MetricSample(each.labels, number, each.since_ms) for each, number in numbers if number is not None]
            if samples:
                known.append(Family(metric, scope.labels, samples))
    return known
