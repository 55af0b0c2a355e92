"""The broker's state for programs: queues, keys, workers. The field names are those of ``--json``, too."""

from dataclasses import dataclass, field
from datetime import datetime
from typing import Any

from fila_cluster.client.message import utc
from fila_cluster.figures import counted, quantile
from fila_proto_zmq import commands
from fila_proto_zmq.names import whole_queue


@dataclass(frozen=True, slots=True)
class QueueInfo:
    """One row of a queue list. ``depth`` is the sum of pending, in_flight and delayed."""

    name: str
    pending: int
    in_flight: int
    delayed: int
    depth: int
    consumers: int
    paused: bool
    is_dead_letter: bool
    shard: int


@dataclass(frozen=True, slots=True)
class KeyStats:
    """One fairness key of a queue. ``deficit`` is its unused share of its round, in units of cost."""

    fairness_key: str
    weight: int
    pending: int
    in_flight: int
    delayed: int
    deficit: float
    delivered: int
    paused: bool


@dataclass(frozen=True, slots=True)
class ThrottleStats:
    """A throttle key's limits, None where it has none, and what waits for it."""

    key: str
    rate: float | None
    """Tokens a second."""
    burst: float | None
    tokens: float | None
    """What its bucket holds, by the broker's last count."""
    concurrency: int | None = None
    """Messages that may be leased together, in the whole cluster."""
    in_use: int = 0
    """With a concurrency: messages that are. Of a queue's statistics: as its shard last heard."""
    waiting: int = 0
    """Messages that a consumer could have, but for this key or another one of theirs; of very many some are not counted."""
    rate_min: float | None = None
    """The least to which deferrals lower the rate; None: they do not."""
    rate_in_force: float | None = None
    """What deferrals have left of the rate, by the broker's last count."""


@dataclass(frozen=True, slots=True)
class PartitionLeft:
    """What a partition still has that its queue's change of the number of partitions waits for, in numbers and as ``text``."""

    partition: int
    shard: int
    messages: int
    """Those that it has to send on."""
    leased: int
    """Those that are leased, and have to be settled, or come back, first."""
    more: bool
    """Whether there may be more of both."""
    sent_to: list[int]
    """The shards that have not confirmed what was sent to them."""
    text: str


@dataclass(frozen=True, slots=True)
class QueueMove:
    """How far the messages of a queue are on their way from ``earlier`` partitions to another number of ``partitions``."""

    earlier: int
    partitions: int
    since: datetime
    drained: list[int]
    """The earlier partitions that have sent on what they had."""
    waits_for: list[int]
    """The partitions that have not, or that are to go and are not empty."""
    left: list[PartitionLeft]
    """What those of them have that answered."""

    @property
    def text(self) -> str:
        """How far it has come, for people."""
        left = sum(each.messages for each in self.left)
        least = "at least " if any(each.more for each in self.left) or len(self.left) < len(self.waits_for) else ""
        drained = f"{len(self.drained)} of {self.earlier} drained"
        return f"goes from {self.earlier} to {self.partitions} partitions: {drained}, {least}{counted(left, 'message')} left"


@dataclass(frozen=True, slots=True)
class QueueStats(QueueInfo):
    """A queue in detail. ``oldest_pending_age`` is in seconds; the counters run since the queue's shard started.

    ``max_in_flight``: the most messages that may be leased; None: no limit. ``move``: how far a change of the number of
    partitions has come; None: none is under way.
    """

    oldest_pending_age: float
    quantum: int
    enqueued: int
    delivered: int
    acked: int
    nacked: int
    expired: int
    dead_lettered: int
    keys: list[KeyStats]
    throttles: list[ThrottleStats]
    max_in_flight: int | None = None
    move: QueueMove | None = None


@dataclass(frozen=True, slots=True)
class ShardOutage:
    """A shard that does not serve, though its worker is up.

    ``state``: ``opening`` (for a moment), ``waiting`` (for its disk) or ``quarantined`` (``docs/operating.md`` has the
    remedy).
    """

    shard: int
    state: str
    reason: str


@dataclass(frozen=True, slots=True)
class WorkerStatus:
    """One worker as the router sees it: ``state`` is ``up`` or ``down``; ``shards`` are its own; ``outages`` are those of
    them that do not serve; ``draining``: it gives its shards to other workers, and takes none."""

    name: str
    pid: int
    state: str
    shards: list[int]
    rss_bytes: int
    queues: int
    outages: list[ShardOutage] = field(default_factory=list)
    draining: bool = False


@dataclass(frozen=True, slots=True)
class ClusterStatus:
    """The cluster as the router sees it."""

    version: str
    shards: int
    workers: list[WorkerStatus]


@dataclass(frozen=True, slots=True)
class LogReplicas:
    """The log's own copies of a shard's part. ``in_sync``: the brokers that have all of it; ``wanted``: those that should.

    With fewer than ``in_sync_min`` in sync, the log confirms nothing.
    """

    in_sync: int
    wanted: int
    in_sync_min: int


@dataclass(frozen=True, slots=True)
class HostCopy:
    """One host's copy of a shard on a replicated log. Times are in seconds; None: not known.

    ``role``: ``begins`` (it is being opened), ``follows``, ``claims`` (it takes the shard over), ``recovers``, ``leads``,
    ``waits`` (it leads, but the log has confirmed nothing for too long) or ``leaves``. ``position`` is the last offset of
    the log that the copy has and that is confirmed, ``end`` the offset behind the log's last record by a follower's last
    report, ``behind`` the records that it has still to read. Of a leader: ``unconfirmed_bytes``, ``proof_age`` (how long
    ago the last record was appended that shows that it leads), ``confirm_p50`` and ``confirm_p99`` (how long the log took
    to confirm commits, since the process began). ``problem`` is the trouble with the log; empty: there is none. ``log`` is
    of the last report of the log's brokers.
    """

    shard: int
    role: str
    epoch: int
    position: int
    end: int | None
    behind: int | None
    unconfirmed_bytes: int
    proof_age: float | None
    queues: int
    confirm_p50: float | None
    confirm_p99: float | None
    problem: str
    log: LogReplicas | None


@dataclass(frozen=True, slots=True)
class HostWorker:
    """A worker process of a host, with its copies by shard.

    ``draining``: it gives up its shards, and takes none over; ``standbys``: how many other hosts should be ready to take
    over each shard. ``problem`` is the trouble with its disk, ``log_problem`` an unsafe setting of the log; empty: there
    is none.
    """

    host: str
    name: str
    address: str
    draining: bool
    standbys: int
    copies: list[HostCopy]
    problem: str = ""
    log_problem: str = ""


@dataclass(frozen=True, slots=True)
class HostList:
    """The workers of all hosts that have answered.

    ``shards``: of the cluster; ``silent``: workers that are down or did not answer; ``served``: shards that a live
    worker serves, as the router last noted.
    """

    shards: int
    workers: list[HostWorker]
    silent: list[str]
    served: list[int]


@dataclass(frozen=True, slots=True)
class AuditEntry:
    """One administrative act: who, from where, what, and how it ended.

    ``by`` is the name of an API key, ``client`` the session; ``result`` is ``"ok"`` or an error's code. The steps of one
    act, and refusals of one kind, are one entry: ``times`` counts them.
    """

    at: datetime
    by: str
    client: str
    address: str
    verb: str
    target: str
    details: str
    result: str
    times: int


@dataclass(frozen=True, slots=True)
class ConnectionInfo:
    """A client that has greeted. ``key`` is the name of its API key.

    ``consumes`` are queues that it receives from, some of them if they are many; ``subscriptions`` counts its
    subscriptions and waiting receives, ``unsettled`` the messages that are leased to it.
    """

    client: str
    key: str
    address: str
    version: str
    since: datetime
    heard_at: datetime
    consumes: list[str]
    subscriptions: int
    unsettled: int


@dataclass(frozen=True, slots=True)
class ConfigVersion:
    """One version of the runtime config: what changed, when, and by which API key. None: the key had no value."""

    version: int
    at: datetime
    by: str
    key: str
    old: str | None
    new: str | None


def queue_infos(infos: list[commands.QueueInfo]) -> list[QueueInfo]:
    """Return the rows of a list, by name."""
    rows = (QueueInfo(**_info_fields(info)) for info in infos)
    return sorted(rows, key=lambda row: row.name)


def queue_stats(reply: commands.QueueStats) -> QueueStats:
    """Return one queue's statistics."""
    return QueueStats(
        **_info_fields(reply.info),
        oldest_pending_age=reply.oldest_pending_ms / 1000,
        quantum=reply.quantum,
        enqueued=reply.enqueued,
        delivered=reply.delivered,
        acked=reply.acked,
        nacked=reply.nacked,
        expired=reply.expired,
        dead_lettered=reply.dead_lettered,
        keys=[KeyStats(**_fields(key)) for key in reply.keys],
        throttles=throttles(reply.throttles),
        max_in_flight=reply.max_in_flight,
        move=None if reply.move is None else queue_move(reply.move),
    )


def queue_move(move: commands.QueueMove) -> QueueMove:
    """Return how far a change of the number of partitions has come."""
    left = [PartitionLeft(**_fields(each), text=each.text) for each in move.left]
    return QueueMove(move.earlier, move.partitions, utc(move.since_ms), move.drained, move.waits_for, left)


def how_far(move: QueueMove, partition: int) -> str:
    """Return how far one partition has come with a change of their number, for people; empty: it has nothing to do for it."""
    if partition in move.waits_for:
        return next((each.text for each in move.left if each.partition == partition), "not known: no answer")
    return "drained" if partition in move.drained else ""


def throttles(stats: list[commands.ThrottleStats]) -> list[ThrottleStats]:
    """Return throttle keys."""
    return [ThrottleStats(**_fields(each)) for each in stats]


def cluster_status(reply: commands.ClusterStatus) -> ClusterStatus:
    """Return the cluster's status."""
    return ClusterStatus(reply.version, reply.shards, [_worker_status(worker) for worker in reply.workers])


def hosts(reply: commands.HostList) -> HostList:
    """Return the hosts' workers, by name."""
    return HostList(reply.shards, [host_worker(worker) for worker in reply.workers], reply.silent, reply.served)


def host_worker(worker: commands.HostWorker) -> HostWorker:
    """Return one worker with its copies."""
    copies = [_host_copy(copy) for copy in sorted(worker.copies, key=lambda copy: copy.shard)]
    return HostWorker(**_fields(worker) | {"copies": copies})


def _host_copy(copy: commands.HostCopy) -> HostCopy:
    fields = _fields(copy)
    took, proof_age_ms = fields.pop("confirm_ns"), fields.pop("proof_age_ms")
    p50, p99 = (None if took is None else quantile(took, part) for part in (0.5, 0.99))
    return HostCopy(
        **fields
        | {
            "end": None if copy.end < 0 else copy.end,
            "behind": None if copy.behind < 0 else copy.behind,
            "proof_age": None if proof_age_ms < 0 else proof_age_ms / 1000,
            "confirm_p50": None if p50 is None else p50 / 1e9,
            "confirm_p99": None if p99 is None else p99 / 1e9,
            "log": None if copy.log is None else LogReplicas(**_fields(copy.log)),
        }
    )


def acts(reply: commands.ActList) -> list[AuditEntry]:
    """Return administrative acts, the latest first."""
    return [AuditEntry(**_dated(act, at="at_ms")) for act in reply.acts]


def connections(found: list[commands.ConnectionView]) -> list[ConnectionInfo]:
    """Return clients, by name."""
    return [
        ConnectionInfo(
            **_dated(each, since="since_ms", heard_at="heard_ms")
            | {"consumes": list(dict.fromkeys(map(whole_queue, each.consumes)))}
        )
        for each in found
    ]


def config_edits(edits: list[commands.ConfigEdit]) -> list[ConfigVersion]:
    """Return changes of the runtime config, the latest first."""
    return [ConfigVersion(**_dated(edit, at="at_ms")) for edit in edits]


def _worker_status(worker: commands.WorkerStatus) -> WorkerStatus:
    outages = [ShardOutage(**_fields(outage)) for outage in worker.outages]
    hosted = sorted([*worker.shards, *(outage.shard for outage in outages)])
    return WorkerStatus(**_fields(worker) | {"shards": hosted, "outages": outages})


def _info_fields(info: commands.QueueInfo) -> dict[str, Any]:
    return _fields(info) | {"depth": info.depth}


def _fields(struct: commands.Struct) -> dict[str, Any]:
    return {name: getattr(struct, name) for name in struct.__struct_fields__}


def _dated(struct: commands.Struct, **moments: str) -> dict[str, Any]:
    """Return the fields, of which some are moments in Unix ms that get other names."""
    fields = _fields(struct)
    return fields | {name: utc(fields.pop(field)) for name, field in moments.items()}
