"""Queues: what they are, what they hold."""

from typing import ClassVar

from fila_proto_zmq.commands.structs import Command, Reply, Struct


class QueueOptions(Struct):
    """How a queue treats its messages. None: the broker's default."""

    visibility_timeout_ms: int | None = None
    max_attempts: int | None = None
    on_enqueue: str | None = None
    """A Lua script that defines ``on_enqueue(msg)``."""
    on_failure: str | None = None
    dead_letter: str | None = None
    """``dlq`` (the default), ``discard``, or the name of a queue that takes this one's dead letters."""
    delivery: str | None = None
    """``at_least_once`` (the default) or ``at_most_once``."""
    max_in_flight_per_key: int | None = None
    default_ttl_ms: int | None = None
    idle_expiry_ms: int | None = None
    lua_timeout_ms: int | None = None
    lua_memory_limit_bytes: int | None = None


class CreateQueue(Command):
    """Create the queue of the routing key and its dead letter queue."""

    opcode: ClassVar[int] = 10
    options: QueueOptions


class DeleteQueue(Command):
    """Delete a queue, its dead letter queue and all their messages."""

    opcode: ClassVar[int] = 11
    force: bool = False


class UpdateQueue(Command):
    """Change the options named in ``given`` (field names of :class:`QueueOptions`) to those of ``options``."""

    opcode: ClassVar[int] = 14
    options: QueueOptions
    given: list[str]


class Pause(Command):
    """Stop new deliveries of a queue, or of one fairness key; ``paused`` false: resume them."""

    opcode: ClassVar[int] = 16
    paused: bool = True
    fairness_key: str | None = None


class QueueInfo(Struct):
    """One row of a queue list."""

    name: str
    pending: int
    in_flight: int
    delayed: int
    consumers: int
    paused: bool
    is_dead_letter: bool
    shard: int

    @property
    def depth(self) -> int:
        """All its messages."""
        return self.pending + self.in_flight + self.delayed


class KeyStats(Struct):
    """One fairness key of a queue. ``deficit`` is in units of cost."""

    fairness_key: str
    weight: int
    pending: int
    in_flight: int
    delayed: int
    deficit: float
    delivered: int
    paused: bool


class ThrottleStats(Struct):
    """One token bucket. ``rate`` in tokens a second; ``tokens`` as far as the shard knows."""

    key: str
    rate: float
    burst: float
    tokens: float


class QueueStats(Reply):
    """A queue's counters (since its shard started) and its keys."""

    info: QueueInfo
    oldest_pending_ms: int
    """Age of the oldest message that is next in its line; 0 if none is pending."""
    quantum: int
    enqueued: int
    delivered: int
    acked: int
    nacked: int
    expired: int
    dead_lettered: int
    keys: list[KeyStats]
    throttles: list[ThrottleStats] = []
    """The buckets that messages of this queue draw on."""


class GetQueueStats(Command):
    """Ask for one queue's statistics."""

    opcode: ClassVar[int] = 12
    reply: ClassVar[type[Reply]] = QueueStats


class QueueList(Reply):
    """Queues of one worker, or of the whole cluster once the router has joined them."""

    queues: list[QueueInfo]


class ListQueues(Command):
    """Ask for all queues whose names start with ``prefix``. Routing key empty: the router asks every worker."""

    opcode: ClassVar[int] = 13
    reply: ClassVar[type[Reply]] = QueueList
    prefix: str = ""
    active: bool = False
    """Only those with messages."""
