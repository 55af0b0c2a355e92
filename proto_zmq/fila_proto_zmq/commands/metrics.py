"""All counters at one moment."""

from fila_proto_zmq.commands.cluster import ClusterStatus
from fila_proto_zmq.commands.hosts import HostWorker
from fila_proto_zmq.commands.queues import QueueInfo, QueueMove
from fila_proto_zmq.commands.schedules import ScheduleMetrics
from fila_proto_zmq.commands.structs import Command, Histogram, Reply, Struct


class KeyMetrics(Struct):
    """One of the fairness keys of a queue that have, and had, the most messages."""

    fairness_key: str
    weight: int
    pending: int
    delivered: int
    """Since the key is among those shown."""
    fair_share: float
    """The part of the queue's deliveries that its weight gives it, among the keys that can deliver now; 0: it can't."""


OTHER_KEYS = "(other)"
"""The name for all fairness keys that are not shown. A key of this name counts among them."""


class HookMetrics(Struct):
    """The hooks of a queue, since they were compiled."""

    runs: int
    failed: int
    bypassed: int
    """Messages that were enqueued without the hook, because the circuit breaker was open."""
    breaker_open: bool
    run_ns: Histogram


class QueueMetrics(Struct):
    """One queue; counters since its shard started."""

    info: QueueInfo
    oldest_pending_ms: int
    """Age of the oldest message at the head of its line, among the lines that were checked; 0 if none is pending."""
    enqueued: int
    delivered: int
    acked: int
    nacked: int
    expired: int
    dead_lettered: int
    redriven: int
    """Dead letters that went back from here."""
    rejected: dict[str, int]
    """Refused messages, by the error's code."""
    known_keys: int
    active_keys: int
    """Fairness keys that could deliver now."""
    turns: int
    rounds: int
    keys: list[KeyMetrics]
    other_delivered: int
    """Deliveries of keys while they were not shown."""
    dwell_ms: Histogram | None = None
    """From the enqueue to the first delivery; None: no deliveries."""
    hooks: HookMetrics | None = None
    settle_ms: Histogram | None = None
    """From the lease to the ack; None: no acks."""
    max_in_flight: int | None = None
    """The most messages that may be leased; None: no limit."""
    move: QueueMove | None = None
    """Of a partition: the change of the number of partitions of its queue; None: none is under way."""


class ThrottleMetrics(Struct):
    """One of a shard's busiest throttle keys that have a rate. ``tokens`` by the shard's last count."""

    key: str
    rate: float
    burst: float
    tokens: float
    passes: int
    """How often a message got its tokens."""
    hits: int
    """How often a lane of messages had to wait: a bucket had too few tokens, or a key was parked."""


class PlaceMetrics(Struct):
    """One of the throttle keys with a concurrency that have the most leased and waiting messages on a shard."""

    key: str
    concurrency: int
    leased: int
    """On this shard: the sum over all shards is at most ``concurrency``, unless that was lowered."""
    waiting: int
    """On this shard, of a bounded number of lines."""
    full_ms: int = 0
    """For how long each report found all places in use in the cluster, and messages that waited for them on this shard."""
    longest_ms: int = 0
    """How long the oldest lease of the shard has lasted, if that is a minute or more."""


class StoreMetrics(Struct):
    """A shard's database."""

    commit_ns: Histogram
    commit_changes: Histogram
    memtable_bytes: int
    disk_bytes: int
    compaction_bytes: int
    """The bytes left to compact, an estimate."""
    stalled: bool
    """Writes are slowed down or stopped until compaction has caught up."""


class ShardMetrics(Struct):
    """One shard, with the busiest of its queues; counters since it started."""

    shard: int
    queues: list[QueueMetrics]
    queues_left_out: int
    throttles: list[ThrottleMetrics]
    throttle_passes: int
    throttle_hits: int
    refused: dict[str, int]
    """Refused requests, by the error's code."""
    buffered_bytes: int
    store: StoreMetrics
    schedules: ScheduleMetrics | None = None
    """None: the shard has none, and had none since it started."""
    places: list[PlaceMetrics] = []


class WorkerMetrics(Struct):
    """One worker process."""

    name: str
    started_ms: int
    cpu_ms: int
    turn_ns: Histogram
    shards: list[ShardMetrics]
    host: HostWorker | None = None
    """Its host and its copies of shards; None: the shards have no replicated log."""


class RouterMetrics(Struct):
    """The router, since it started. ``in_flight`` and ``in_flight_bytes``: requests that wait for an answer, by worker."""

    started_ms: int
    from_clients: int
    to_clients: int
    from_workers: int
    to_workers: int
    refused: dict[str, int]
    """Requests that the router itself refused, by the error's code."""
    in_flight: dict[str, int]
    in_flight_bytes: dict[str, int]
    rss_bytes: int = 0
    cpu_ms: int = 0
    direct_clients: dict[str, int] = {}
    """Clients that are connected to the doors of the workers, by worker."""
    direct_frames: dict[str, int] = {}
    """Frames that passed those doors, in both directions, and not the router."""


class Metrics(Reply):
    """The counters of a cluster's processes. A worker answers with its own."""

    workers: list[WorkerMetrics]
    """The workers that are up and answered in time."""
    status: ClusterStatus | None = None
    router: RouterMetrics | None = None


class GetMetrics(Command):
    """Ask for all counters. The router asks every worker that is up, and leaves out those that do not answer."""

    opcode, reply = 61, Metrics
