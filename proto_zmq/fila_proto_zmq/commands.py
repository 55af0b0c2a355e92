"""Everything that can be said on the wire: one struct per opcode, commands with their replies.

A struct travels as a msgpack array of its fields in order (nested structs too). A reader ignores trailing elements that it
does not know and takes the default for those that are missing, so fields are only ever added at the end.

Times are Unix milliseconds (``_ms`` of an instant), durations milliseconds. A *column* carries one value for each message
of a batch, or a single value that holds for all of them: uniform batches cost nothing per message.
"""

from enum import IntEnum
from typing import Any, ClassVar, TypeAlias

import msgspec

IntColumn: TypeAlias = int | list[int]
TextColumn: TypeAlias = str | list[str]


class Struct(msgspec.Struct, array_like=True, gc=False):
    """Base of all wire structs."""


class Reply(Struct):
    """Base of what answers a command."""


class Done(Reply):
    """It is done (and durable, where it changed anything); there is nothing more to say."""


class Command(Struct):
    """Base of what a peer asks. ``opcode`` is its number, ``reply`` the struct of a successful answer."""

    opcode: ClassVar[int]
    reply: ClassVar[type[Reply]] = Done


# --- connecting -------------------------------------------------------------------------------------------------------


class Welcome(Reply):
    """The version chosen, and what a client needs to know of the broker."""

    version: int
    server_version: str
    shards: int
    consumer_timeout_ms: int
    """A client that is silent for longer loses its leases: send a heartbeat at least three times in this span."""
    max_payload_bytes: int = 0
    """The largest payload that this broker accepts; 0: it does not say. Far larger frames cost a client its connection."""


class Hello(Command):
    """First frame of a client. Sent in any version's header; answered by the router."""

    opcode: ClassVar[int] = 1
    reply: ClassVar[type[Reply]] = Welcome
    versions: list[int]
    client: str = ""


# --- queues -----------------------------------------------------------------------------------------------------------


class QueueOptions(Struct):
    """How a queue treats its messages. None: the broker's default."""

    visibility_timeout_ms: int | None = None
    max_attempts: int | None = None


class CreateQueue(Command):
    """Create the queue of the routing key and its dead letter queue."""

    opcode: ClassVar[int] = 10
    options: QueueOptions


class DeleteQueue(Command):
    """Delete a queue, its dead letter queue and all their messages."""

    opcode: ClassVar[int] = 11
    force: bool = False


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


# --- producing --------------------------------------------------------------------------------------------------------


class Fault(Struct):
    """An error on the wire. ``retry_after_ms`` is 0 when it is not known."""

    code: str
    text: str
    retry_after_ms: int = 0
    details: dict[str, Any] = {}


class Enqueued(Reply):
    """Ids of an enqueue: those accepted are consecutive from ``(id_high, id_low)``, in request order.

    ``faults`` maps an index of the request to what was wrong with that message; it took no id.
    """

    id_high: int
    id_low: int
    count: int
    faults: list[tuple[int, Fault]] = []


class Enqueue(Command):
    """Messages for the queue of the routing key, sealed as :mod:`fila_proto_zmq.record` says."""

    opcode: ClassVar[int] = 20
    reply: ClassVar[type[Reply]] = Enqueued
    envelopes: list[bytes]
    fairness_key: TextColumn = "default"
    weight: IntColumn = 0
    """0: leave the key's weight as it is."""
    priority: IntColumn = 0
    delay_ms: IntColumn = 0
    due_ms: IntColumn = 0
    """An absolute time to deliver at; 0: none. The later of it and the delay counts."""
    lease_ms: IntColumn = 0
    """The message's own visibility timeout; 0: the queue's."""


# --- consuming --------------------------------------------------------------------------------------------------------


class LeaseBatch(Struct):
    """Messages leased together. A delivery is named by its *fence*: the lease and its index in ``records``."""

    lease: int
    leased_ms: int
    expires_ms: int
    fairness_key: TextColumn
    weight: IntColumn
    records: list[bytes]


class Delivered(Reply):
    """What a receive got, or a push to a subscription (opcode ``DELIVERY``, request id 0)."""

    subscription: int
    batches: list[LeaseBatch]


DELIVERY = 33


class Receive(Command):
    """Lease up to ``count`` messages: what is ready now, else as soon as something is, at most ``wait_ms`` from now."""

    opcode: ClassVar[int] = 30
    reply: ClassVar[type[Reply]] = Delivered
    count: int = 1
    wait_ms: int = 0


class Subscribe(Command):
    """Keep at most ``prefetch`` unsettled messages with this subscription; repeat as a heartbeat.

    The same frame opens a subscription, keeps its client alive, renews the leases named in ``renew`` and heals a restarted
    broker, so there is no other path to get wrong.
    """

    opcode: ClassVar[int] = 31
    subscription: int
    prefetch: int
    renew: list[int] = []


class Unsubscribe(Command):
    """End a subscription. Its leases stay until they are settled, released or expire."""

    opcode: ClassVar[int] = 32
    subscription: int


class Heartbeat(Command):
    """The client lives. Sent to a queue where it holds leases but has no subscription."""

    opcode: ClassVar[int] = 34


class Goodbye(Command):
    """The client leaves: everything that it has not settled on this shard goes back, uncounted."""

    opcode: ClassVar[int] = 35


# --- settling ---------------------------------------------------------------------------------------------------------


class Verb(IntEnum):
    """How a delivery ends."""

    ACK = 1
    NACK = 2
    RETRY = 3
    FAIL = 4
    RELEASE = 5
    """Given back unharmed, uncounted: prefetched, never handed to the application."""


Fences: TypeAlias = list[tuple[int, list[int]]]
"""Deliveries by lease: ``(lease, indexes)``; no indexes mean all of the lease."""


class Settled(Reply):
    """Settlements that were refused: ``(lease, index, fault)``. The others are done."""

    faults: list[tuple[int, int, Fault]] = []


class Settle(Command):
    """End deliveries of the queue of the routing key. Repeating one gives the first answer again."""

    opcode: ClassVar[int] = 40
    reply: ClassVar[type[Reply]] = Settled
    verb: int
    fences: Fences
    error: str = ""
    metadata: bytes | None = None
    after_ms: int = 0


class Extended(Reply):
    """When the leases end now, and what could not be extended."""

    expires_ms: int
    faults: list[tuple[int, int, Fault]] = []


class Extend(Command):
    """Let the named deliveries' leases end ``duration_ms`` from now."""

    opcode: ClassVar[int] = 41
    reply: ClassVar[type[Reply]] = Extended
    fences: Fences
    duration_ms: int


class Redriven(Reply):
    """How many went back, and how many pending dead letters are left."""

    count: int
    remaining: int


class Redrive(Command):
    """Send up to ``count`` pending dead letters back to the queues they came from (a bounded step: repeat for more)."""

    opcode: ClassVar[int] = 50
    reply: ClassVar[type[Reply]] = Redriven
    count: int
    fairness_key: str | None = None


# --- the cluster ------------------------------------------------------------------------------------------------------


class WorkerStatus(Struct):
    """One worker as the router sees it. ``state`` is ``up`` or ``down``."""

    name: str
    pid: int
    state: str
    shards: list[int]
    rss_bytes: int
    queues: int


class ClusterStatus(Reply):
    """The cluster as the router sees it."""

    version: str
    shards: int
    workers: list[WorkerStatus]


class GetClusterStatus(Command):
    """Ask the router for the state of its workers."""

    opcode: ClassVar[int] = 60
    reply: ClassVar[type[Reply]] = ClusterStatus


class Registered(Reply):
    """The router routes to this worker now."""


class Register(Command):
    """A worker offers its shards, each as ``(shard, epoch)``. A shard's higher epoch replaces a lower one."""

    opcode: ClassVar[int] = 80
    reply: ClassVar[type[Reply]] = Registered
    worker: str
    pid: int
    version: str
    shards: list[tuple[int, int]]


class Pulse(Command):
    """A worker lives. The router answers with :class:`Done`, or with an error if the worker has to register again."""

    opcode: ClassVar[int] = 81
    rss_bytes: int
    queues: int


class Leave(Command):
    """A worker is about to stop: route nothing more to it."""

    opcode: ClassVar[int] = 82


COMMANDS: tuple[type[Command], ...] = (
    Hello, CreateQueue, DeleteQueue, GetQueueStats, ListQueues, Enqueue, Receive, Subscribe, Unsubscribe, Heartbeat,
    Goodbye, Settle, Extend, Redrive, GetClusterStatus, Register, Pulse, Leave,
)  # fmt: skip
BY_OPCODE: dict[int, type[Command]] = {command.opcode: command for command in COMMANDS}
