"""Everything that can be said on the wire: one struct per opcode, commands with their replies.

A struct travels as a msgpack array of its fields in order (nested structs too). A reader ignores trailing elements that it
does not know and takes the default for those that are missing, so fields are only ever added at the end.

Times are Unix milliseconds (``_ms`` of an instant), durations milliseconds. A *column* carries one value for each message
of a batch, or a single value that holds for all of them: uniform batches cost nothing per message. A column of lists
(:data:`KeysColumn`) has no, one or as many elements: none means empty lists, one holds for all.

Opcodes up to 79 are asked by clients, 80 to 99 pass between the router and its workers, and between workers.
"""

from enum import IntEnum
from typing import Any, ClassVar, TypeAlias

import msgspec

IntColumn: TypeAlias = int | list[int]
TextColumn: TypeAlias = str | list[str]
KeysColumn: TypeAlias = list[list[str]]


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


# --- a queue's backlog ------------------------------------------------------------------------------------------------


class Purged(Reply):
    """How many messages were removed, and how many are left to remove."""

    count: int
    remaining: int


class PurgeQueue(Command):
    """Remove the pending and delayed messages of a queue, or of one fairness key (a bounded step: repeat for more)."""

    opcode: ClassVar[int] = 15
    reply: ClassVar[type[Reply]] = Purged
    fairness_key: str | None = None


class MessageView(Struct):
    """A message as it lies in its queue. Times that do not apply to its state are 0."""

    state: str
    """``pending``, ``delayed`` or ``leased``."""
    fairness_key: str
    weight: int
    throttle_keys: list[str]
    due_ms: int
    leased_ms: int
    lease_expires_ms: int
    consumer: str
    """The holder of its lease: a client's identity in hex digits, or a reservation's name."""
    record: bytes


class Browsed(Reply):
    """A page of messages, key by key and in line order. ``more``: there may be others behind it."""

    messages: list[MessageView]
    more: bool


class Browse(Command):
    """Look at up to ``limit`` messages, those behind the message with the id ``after``, without leasing them."""

    opcode: ClassVar[int] = 17
    reply: ClassVar[type[Reply]] = Browsed
    limit: int
    after: tuple[int, int] | None = None
    fairness_key: str | None = None
    state: str | None = None


class Cancelled(Reply):
    """Whether the message was removed; if not, it is leased."""

    removed: bool


class Cancel(Command):
    """Remove a pending or delayed message."""

    opcode: ClassVar[int] = 18
    reply: ClassVar[type[Reply]] = Cancelled
    id_high: int
    id_low: int


class Reason(Struct):
    """One thing that keeps messages waiting. ``until_ms`` is when it ends, 0 if that is not known."""

    code: str
    """A :class:`~fila_proto_zmq.reasons.ReasonCode`."""
    text: str
    until_ms: int
    details: dict[str, Any]


class Explained(Reply):
    """Why something waits: first what has to change first for a delivery to happen now."""

    state: str
    """``pending``, ``delayed``, ``leased`` or ``dead_lettered``; of a key or a queue that has no messages, ``empty``."""
    reasons: list[Reason]
    position: int | None = None
    """How many messages of its key go before it; nil where it does not apply."""
    estimated_ms: int = 0
    """When it will be delivered, from current rates; 0: nothing can be said."""


class Explain(Command):
    """Why is this message still waiting, or this fairness key? Neither is named: the queue."""

    opcode: ClassVar[int] = 19
    reply: ClassVar[type[Reply]] = Explained
    id: tuple[int, int] | None = None
    fairness_key: str | None = None


class ViewedQueue(Struct):
    """A queue in a view, and where to divide its fairness keys, in the order of their names, into ranges of about the same size.

    ``bounds`` are the first keys of the second range and of those behind it.
    """

    name: str
    messages: int
    bounds: list[str]


class ViewOpened(Reply):
    """The queues that are in a view; those that do not exist are not."""

    queues: list[ViewedQueue]


class OpenView(Command):
    """Freeze how some queues of one shard lie there now, under a name, to be read page by page with :class:`BrowseView`.

    All are named in ``queues`` and live on the shard of the routing key, which is one of them. A view that is open is
    answered for as it is. One that nobody reads for ``idle_ms`` is closed.
    """

    opcode: ClassVar[int] = 51
    reply: ClassVar[type[Reply]] = ViewOpened
    view: str
    queues: list[str]
    range_messages: int
    """About how many messages a range of keys should have."""
    idle_ms: int


class ViewBrowsed(Reply):
    """A page of a view, perhaps an empty one. ``next`` is where to go on, nil at the end."""

    messages: list[MessageView]
    next: tuple[str, bytes] | None


class BrowseView(Command):
    """A page of the routing key's queue as it was when the view was opened.

    Key by key; of each key the messages with the same throttle keys together, in line order, and then the delayed ones likewise.
    """

    opcode: ClassVar[int] = 52
    reply: ClassVar[type[Reply]] = ViewBrowsed
    view: str
    limit: int
    start: tuple[str, bytes] | None = None
    """``next`` of the page before."""
    from_key: str = ""
    to_key: str | None = None
    """Fairness keys from ``from_key`` up to, not including, ``to_key``; nil: to the last."""
    fairness_keys: list[str] | None = None
    """Only these keys."""
    states: list[str] | None = None
    """Only messages in these states."""


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
    known: list[tuple[int, int, int]] = []
    """Messages whose ``dedup_id`` was seen before, by index, with the id that it has: nothing was stored for them."""


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
    throttle_keys: KeysColumn = []
    cost_milli: IntColumn = 1000
    """What a delivery takes from its key's deficit and its buckets, in thousandths."""
    ttl_ms: IntColumn = 0
    """How long the message may wait; 0: as the queue says."""
    dedup_id: TextColumn = ""
    """A second message with the same one, within the dedup window, is not stored; empty: none."""
    dedup_window_ms: int = 0
    """How long these dedup ids are remembered; 0: as the broker says."""


# --- consuming --------------------------------------------------------------------------------------------------------


class LeaseBatch(Struct):
    """Messages leased together. A delivery is named by its *fence*: the lease and its index in ``records``."""

    lease: int
    leased_ms: int
    expires_ms: int
    fairness_key: TextColumn
    weight: IntColumn
    records: list[bytes]
    throttle_keys: KeysColumn = []
    at_most_once: bool = False
    """These are never delivered again: ack each as soon as the application has it."""


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


class CancelReceive(Command):
    """Answer the pending receive with this request id now, with nothing, unless it is answered already."""

    opcode: ClassVar[int] = 36
    request: int


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
    DEFER = 6
    """Given back unharmed, to be delivered again ``after_ms`` from now; until then its throttle keys deliver nothing."""


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


# --- reservations -----------------------------------------------------------------------------------------------------


class Reserved(Reply):
    """What a reservation holds of a queue: ``(part, messages)``, and when it ends unless it is renewed."""

    parts: list[tuple[int, int]]
    expires_ms: int


class Reserve(Command):
    """Lease up to ``count`` messages to a name instead of to this client: what is ready now, at most ``wait_ms`` from now.

    A reservation is durable and outlives its client. It is taken in parts, each in one delivery; a part that was taken
    before is answered for as it is. When it expires its messages are given back, uncounted.
    """

    opcode: ClassVar[int] = 42
    reply: ClassVar[type[Reply]] = Reserved
    reservation: str
    part: int
    count: int
    timeout_ms: int
    wait_ms: int = 0


class FetchReserved(Command):
    """The messages of a part of a reservation, as often as they are asked for."""

    opcode: ClassVar[int] = 43
    reply: ClassVar[type[Reply]] = Delivered
    reservation: str
    part: int


class RenewReservation(Command):
    """Let a reservation end ``timeout_ms`` from now. One that is over has no parts."""

    opcode: ClassVar[int] = 44
    reply: ClassVar[type[Reply]] = Reserved
    reservation: str
    timeout_ms: int


class ReservationEnded(Reply):
    """How many messages were settled; 0 if the reservation was over."""

    count: int


class EndReservation(Command):
    """Settle all that a reservation holds of a queue: ``verb`` 1 acks it, 5 gives it back."""

    opcode: ClassVar[int] = 45
    reply: ClassVar[type[Reply]] = ReservationEnded
    reservation: str
    verb: int = 1


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


# --- metrics ----------------------------------------------------------------------------------------------------------


class Histogram(Struct):
    """Observations by size: ``counts[i]`` were at most ``bounds[i]`` and more than the bound before it; the last one has no bound."""

    bounds: list[int]
    counts: list[int]
    total: int
    """The sum of all observed values."""


class KeyMetrics(Struct):
    """One of the fairness keys of a queue that have, and had, the most messages."""

    fairness_key: str
    weight: int
    pending: int
    delivered: int
    """Since the key is among those shown."""
    fair_share: float
    """What part of the queue's deliveries its weight entitles it to, among the keys that could deliver now; 0: it could not."""


OTHER_KEYS = "(other)"
"""What monitors call all fairness keys that are not shown. A key of this very name is one of them."""


class HookMetrics(Struct):
    """The hooks of a queue, since they were compiled."""

    runs: int
    failed: int
    bypassed: int
    """Messages that went without, because the circuit breaker was open."""
    breaker_open: bool
    run_ns: Histogram


class QueueMetrics(Struct):
    """One queue; counters since its shard started."""

    info: QueueInfo
    oldest_pending_ms: int
    """Age of the oldest message that is next in its line, as far as was looked; 0 if none is pending."""
    enqueued: int
    delivered: int
    acked: int
    nacked: int
    expired: int
    dead_lettered: int
    redriven: int
    """Dead letters that went back from here."""
    rejected: dict[str, int]
    """Messages that were refused, by the error's code."""
    known_keys: int
    active_keys: int
    """Fairness keys that could deliver now."""
    turns: int
    rounds: int
    keys: list[KeyMetrics]
    other_delivered: int
    """What was delivered of keys while they were not shown."""
    dwell_ms: Histogram | None = None
    """From the enqueue to the first delivery; None: nothing was delivered."""
    hooks: HookMetrics | None = None


class ThrottleMetrics(Struct):
    """One of a shard's busiest throttle keys that have a rate. ``tokens`` as far as the shard knows."""

    key: str
    rate: float
    burst: float
    tokens: float
    passes: int
    """How often a message got its tokens."""
    hits: int
    """How often a lane of messages had to wait for some."""


class StoreMetrics(Struct):
    """A shard's database."""

    commit_ns: Histogram
    commit_changes: Histogram
    memtable_bytes: int
    disk_bytes: int
    compaction_bytes: int
    """What is left to compact, as an estimate."""
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
    """Requests that were refused, by the error's code."""
    buffered_bytes: int
    store: StoreMetrics


class WorkerMetrics(Struct):
    """One worker process."""

    name: str
    started_ms: int
    cpu_ms: int
    turn_ns: Histogram
    shards: list[ShardMetrics]


class RouterMetrics(Struct):
    """The router, since it started. ``in_flight`` and ``in_flight_bytes``: requests that wait for an answer, by worker."""

    started_ms: int
    from_clients: int
    to_clients: int
    from_workers: int
    to_workers: int
    refused: dict[str, int]
    """Requests that the router refused itself, by the error's code."""
    in_flight: dict[str, int]
    in_flight_bytes: dict[str, int]


class Metrics(Reply):
    """What the processes of a cluster count. From a worker: only itself."""

    workers: list[WorkerMetrics]
    """Those that are up and answered in time."""
    status: ClusterStatus | None = None
    router: RouterMetrics | None = None


class GetMetrics(Command):
    """Ask for all counters. The router asks every worker that is up, and goes without those that do not answer."""

    opcode: ClassVar[int] = 61
    reply: ClassVar[type[Reply]] = Metrics


# --- runtime config ---------------------------------------------------------------------------------------------------


class ConfigChange(Reply):
    """A new version of the runtime config: what changed (None: deleted), and whether the key had a value before."""

    version: int
    changes: dict[str, str | None]
    existed: bool


class SetConfig(Command):
    """Set a key of the runtime config, or delete it (``value`` None). Answered once every live shard has it."""

    opcode: ClassVar[int] = 70
    reply: ClassVar[type[Reply]] = ConfigChange
    key: str
    value: str | None


class ConfigValues(Reply):
    """Keys of the runtime config with their values."""

    values: dict[str, str]


class GetConfig(Command):
    """Ask for one key (``values`` is empty if it has no value)."""

    opcode: ClassVar[int] = 71
    reply: ClassVar[type[Reply]] = ConfigValues
    key: str


class ListConfig(Command):
    """Ask for all keys that start with ``prefix``."""

    opcode: ClassVar[int] = 72
    reply: ClassVar[type[Reply]] = ConfigValues
    prefix: str = ""


# --- workers and their router -----------------------------------------------------------------------------------------


class Registered(Reply):
    """The router routes to this worker now; what it lacked of the runtime config and of the parked throttle keys."""

    config_version: int = 0
    config: dict[str, str] | None = None
    """The whole runtime config; None: the worker's is as new."""
    parks: dict[str, int] = {}


class Register(Command):
    """A worker offers its shards, each as ``(shard, epoch)``. A shard's higher epoch replaces a lower one."""

    opcode: ClassVar[int] = 80
    reply: ClassVar[type[Reply]] = Registered
    worker: str
    pid: int
    version: str
    shards: list[tuple[int, int]]
    config_version: int = 0
    config: dict[str, str] = {}
    """The runtime config as this worker has it."""
    parks: dict[str, int] = {}
    """Throttle keys that deliver nothing until a time, Unix ms."""


class Pulse(Command):
    """A worker lives. The router answers with :class:`Done`, or with an error if the worker has to register again."""

    opcode: ClassVar[int] = 81
    rss_bytes: int
    queues: int


class Leave(Command):
    """A worker is about to stop: route nothing more to it."""

    opcode: ClassVar[int] = 82


class PutConfig(Command):
    """The router tells a worker of a change to the runtime config; ``whole``: there is nothing else in it."""

    opcode: ClassVar[int] = 83
    version: int
    changes: dict[str, str | None]
    whole: bool = False


class TokenWant(Struct):
    """What a shard wants of the buckets of a set of throttle keys, for messages that need all of them.

    Amounts in millionths of a token. ``least`` is of use at all, ``most`` can be used now, both *including* the tokens that
    the shard holds or that are on their way to it (granted, not yet consumed or returned). ``consumed`` and ``returned``
    are totals of the session: lost or repeated frames do no harm. A want stands until the next one for the same keys.
    """

    keys: list[str]
    least: int
    most: int
    consumed: int
    returned: int


class Tokens(Command):
    """A shard asks for tokens and says what it did with those it had. Not answered: :class:`Grants` follow."""

    opcode: ClassVar[int] = 84
    shard: int
    session: int
    """A new one starts with no tokens and totals of 0."""
    wants: list[TokenWant]


class Grant(Struct):
    """Tokens granted to a shard in this session in all. ``wait_ms``: when ``least`` may be there; 0: it is granted."""

    keys: list[str]
    granted: int
    wait_ms: int = 0


class Grants(Command):
    """The router grants tokens. ``levels``: of the buckets concerned, ``(key, level, rate, burst)``, the rate a millisecond.

    Amounts in millionths of a token.
    """

    opcode: ClassVar[int] = 85
    shard: int
    session: int
    grants: list[Grant]
    levels: list[tuple[str, int, int, int]] = []


class Park(Command):
    """Deliver nothing that carries these throttle keys until a time, Unix ms. To the router, which tells every worker."""

    opcode: ClassVar[int] = 86
    parks: dict[str, int]


class Transfer(Struct):
    """A message on its way to a queue of another shard. ``redriven``: it takes the normal enqueue path there."""

    queue: str
    fairness_key: str
    weight: int
    throttle_keys: list[str]
    redriven: bool
    record: bytes


class TransferMessages(Command):
    """Messages for another shard, numbered from ``first`` without gaps. The router forwards it to ``to_shard``."""

    opcode: ClassVar[int] = 90
    to_shard: int
    from_shard: int
    first: int
    transfers: list[Transfer]


class MessagesTransferred(Command):
    """All up to number ``last`` are durable on ``from_shard``, except ``refused``, which the sender keeps."""

    opcode: ClassVar[int] = 91
    to_shard: int
    from_shard: int
    last: int
    refused: list[int]


class Appoint(Command):
    """Does this queue exist? Then it takes dead letters of other queues from now on."""

    opcode: ClassVar[int] = 92
    to_shard: int
    from_shard: int
    ticket: int
    queue: str


class Appointed(Command):
    """The answer to :class:`Appoint`."""

    opcode: ClassVar[int] = 93
    to_shard: int
    from_shard: int
    ticket: int
    exists: bool


COMMANDS: tuple[type[Command], ...] = (
    Hello, CreateQueue, DeleteQueue, GetQueueStats, ListQueues, UpdateQueue, PurgeQueue, Pause, Browse, Cancel, Explain, Enqueue,
    Receive, Subscribe, Unsubscribe, Heartbeat, Goodbye, CancelReceive, Settle, Extend, Redrive, OpenView, BrowseView,
    Reserve, FetchReserved, RenewReservation, EndReservation, GetClusterStatus, GetMetrics, SetConfig, GetConfig, ListConfig,
    Register, Pulse, Leave, PutConfig, Tokens, Grants, Park, TransferMessages, MessagesTransferred, Appoint, Appointed,
)  # fmt: skip
BY_OPCODE: dict[int, type[Command]] = {command.opcode: command for command in COMMANDS}
