"""Events of workers: their shards, queues, hooks and consumers, and the disk."""

from fila_proto_zmq.events.event import Event


class ShardOpened(Event):
    """A shard is open, with the number of things found in it. Epoch 1: it is new."""

    event = "shard.opened"
    shard: int
    epoch: int
    queues: int
    keys: int
    pending: int
    in_flight: int
    delayed: int
    recovery_ms: int


class ShardReleased(Event):
    """A shard was closed, because another worker hosts it from now on."""

    event = "shard.released"
    shard: int
    epoch: int
    worker: str


class ShardFollowed(Event):
    """This worker leads a shard on a replicated log no more, and follows who does."""

    event = "shard.followed"
    shard: int
    epoch: int
    reason: str


class CopyBeginning(Event):
    """This host's copy of a shard can't follow the replicated log, and begins anew from a checkpoint. Another host leads the
    shard meanwhile."""

    event = "shard.beginning"
    level = "warning"
    advice = (
        "Nothing, if the host is new or was away for long: the copy follows in a while. Else `reason` says what is missing."
    )
    shard: int
    reason: str


class CheckpointFailed(Event):
    """A checkpoint of a shard on a replicated log failed, and is tried again. The shard serves, its log grows meanwhile."""

    event = "shard.checkpoint_failed"
    level = "error"
    advice = "`reason` says what the disk of the data directory lacks."
    shard: int
    error: str
    reason: str


class ProcessDeposed(Event):
    """This worker ends at once, because a shard that it led may have another leader; it is started again as a follower."""

    event = "process.deposed"
    level = "warning"
    advice = (
        "Nothing that was confirmed is lost. If this comes often, the machine, "
        "or the way to the log's brokers, is overloaded."
    )
    reason: str


class ShardElsewhere(Event):
    """This worker was started for a shard that was moved to another worker, and leaves it there."""

    event = "shard.elsewhere"
    level = "warning"
    advice = "Start that worker, or move the shard back while both run. If that worker is gone for good, delete `file`."
    shard: int
    worker: str
    file: str


class WorkerAdmitted(Event):
    """The router has accepted this worker's registration."""

    event = "worker.admitted"
    router: str
    shards: list[int]


class HostApart(Event):
    """The worker reaches no router of another host. If others reach each other, they take its shards over."""

    event = "host.apart"
    level = "warning"
    advice = "Look at the network between this host and the others: port 5556 of their routers."


class HostReached(Event):
    """The worker reaches routers of other hosts again, and takes part in leading."""

    event = "host.reached"


class DoorNotOpened(Event):
    """The worker can't listen for clients itself. They reach it through the router."""

    event = "worker.door_not_opened"
    level = "warning"
    advice = "Choose a free address in --direct-listen, or see that the worker may make a socket in its data directory."
    endpoints: list[str]
    reason: str


class QueueCreated(Event):
    """A queue was created, with its dead letter queue if it has one of its own."""

    event = "queue.created"
    queue: str
    shard: int
    template: str | None = None
    """The pattern of the template by which an enqueue created it."""


class QueueUpdated(Event):
    """Some of a queue's options were changed."""

    event = "queue.updated"
    queue: str
    shard: int
    options: list[str]


class PartitionsChanging(Event):
    """A queue has another number of partitions from now on, and messages move to their new places. Shard 0 tells it."""

    event = "queue.partitions_changing"
    queue: str
    earlier: int
    partitions: int


class PartitionsChanged(Event):
    """The messages of a queue are in the places that its new number of partitions says."""

    event = "queue.partitions_changed"
    queue: str
    earlier: int
    partitions: int
    took_ms: int


class QueueDeleted(Event):
    """A queue was deleted with ``messages`` in it and its dead letter queue; ``idle``: because it was idle."""

    event = "queue.deleted"
    queue: str
    shard: int
    messages: int
    idle: bool


class QueuePaused(Event):
    """A queue, or one of its keys, delivers nothing from now on."""

    event = "queue.paused"
    queue: str
    shard: int
    fairness_key: str | None


class QueueResumed(Event):
    """A queue, or one of its keys, delivers again."""

    event = "queue.resumed"
    queue: str
    shard: int
    fairness_key: str | None


class QueuePurged(Event):
    """Messages were removed from a queue, or one of its keys; large ones are purged in steps."""

    event = "queue.purged"
    queue: str
    shard: int
    fairness_key: str | None
    messages: int
    remaining: int


class QueueRedriven(Event):
    """Dead letters went back to the queues they came from; many go in steps."""

    event = "queue.redriven"
    queue: str
    shard: int
    fairness_key: str | None
    messages: int
    remaining: int


class QueueMoved(Event):
    """Messages went to another queue; many go in steps."""

    event = "queue.moved"
    queue: str
    shard: int
    target: str
    fairness_key: str | None
    messages: int
    remaining: int


class ScheduleFailed(Event):
    """A due time of a schedule has no message, because the enqueue was refused; said once until one is carried out."""

    event = "schedule.failed"
    level = "warning"
    advice = "create the queue, or put the schedule with another one; `schedule get` shows the error"
    schedule: str
    shard: int
    queue: str
    code: str


class ScheduleCaughtUp(Event):
    """Due times of a schedule passed in an outage, and were skipped."""

    event = "schedule.caught_up"
    schedule: str
    shard: int
    catch_up: str
    skipped: int


class ConfigSet(Event):
    """A key of the runtime config was set. Its value may be a secret, and is not logged."""

    event = "config.set"
    key: str
    version: int


class ConfigDeleted(Event):
    """A key of the runtime config was deleted."""

    event = "config.deleted"
    key: str
    version: int


class TemplatePut(Event):
    """A queue template was set, a new one or in place of the one before. ``version``: that of the runtime config with it."""

    event = "template.put"
    pattern: str
    version: int


class TemplateDeleted(Event):
    """A queue template was deleted. The queues that it made stay."""

    event = "template.deleted"
    pattern: str
    version: int


class HookRefused(Event):
    """A queue's new script does not compile; the queue is unchanged, and the client got the error."""

    event = "hook.refused"
    level = "warning"
    advice = "The caller's error names the line. Try scripts with `fila-cluster hook test`."
    queue: str
    shard: int


class HookMissing(Event):
    """A queue was recovered without its hooks, which do not compile any more."""

    event = "hook.missing"
    level = "error"
    advice = (
        "Set the hooks again with `queue update`; until then the queue's messages are scheduled by their enqueue options. "
        "The cause is an upgrade, or other `[lua]` limits, before this start."
    )
    queue: str
    shard: int


class BreakerOpened(Event):
    """A queue's hooks failed too often in a row and are bypassed."""

    event = "breaker.opened"
    level = "warning"
    advice = "`fila-cluster why QUEUE` and the dashboard show the last error. Correct the script with `queue update`."
    queue: str
    shard: int
    failed: int
    cooldown_ms: int


class BreakerClosed(Event):
    """A queue's hooks work again."""

    event = "breaker.closed"
    queue: str
    shard: int


class ConsumerLost(Event):
    """A consumer was silent for too long; its messages are delivered to others, and count as failed attempts."""

    event = "consumer.lost"
    level = "warning"
    advice = (
        "Look for the consumer: it was killed, it hangs, or it lost its network. This is normal for consumers that are "
        "ended by `kill -9`."
    )
    client: str
    shard: int
    messages: int
    silent_ms: int


class ClientLeft(Event):
    """A client has said goodbye to a shard; its messages went back, without a failed attempt."""

    event = "client.left"
    level = "debug"
    client: str
    shard: int
    messages: int


class StorageStalled(Event):
    """RocksDB slows writes down, because the disk does not keep up."""

    event = "storage.stalled"
    level = "warning"
    advice = "Enqueue more slowly, or use a faster disk. Watch `fila_storage_compaction_pending_bytes`."
    shard: int


class StorageRecovered(Event):
    """RocksDB writes at full speed again."""

    event = "storage.recovered"
    shard: int


class StorageFailed(Event):
    """The disk refused a read or a write. The shard is closed, and opened again until that works."""

    event = "storage.failed"
    level = "error"
    advice = (
        "Mostly the disk is full: make room, and the shard comes back by itself. `reason` is RocksDB's text. What was "
        "confirmed is safe."
    )
    shard: int
    failure: str
    reason: str


class ShardFailed(Event):
    """A turn of a shard failed. The shard is recovered in place, from what is durable; other shards serve."""

    event = "shard.failed"
    level = "error"
    advice = "This is a bug: report it with `trace`."
    shard: int
    failure: str
    error: str
    reason: str
    trace: list[str]


class ShardQuarantined(Event):
    """A shard is damaged, or fails again and again. It is closed until its worker is started again; other shards serve."""

    event = "shard.quarantined"
    level = "critical"
    advice = (
        "`reason` names the file: see [a damaged shard](operating.md#a-damaged-shard). If it names none, report the "
        "`shard.failed` lines before."
    )
    shard: int
    failure: str
    reason: str


class CommandRefused(Event):
    """A command made its shard fail twice, and is refused from now on."""

    event = "command.refused"
    level = "error"
    advice = (
        "The caller got `InternalError`. This is a bug: report it with the `shard.failed` lines of this `failure` and of "
        "the one before."
    )
    shard: int
    failure: str
    command: str
    queue: str
