"""Look into a queue: browse, views, descriptions, and why something waits."""

from typing import Annotated, Any

from fila_proto_zmq.commands.options import QueueOptions
from fila_proto_zmq.commands.queues import QueueInfo
from fila_proto_zmq.commands.structs import Command, Reply, Struct, names_queue


class Purged(Reply):
    """How many messages were removed, and how many are left to remove."""

    count: int
    remaining: int


class PurgeQueue(Command):
    """Remove the pending and delayed messages of a queue, or of one fairness key (a bounded step: repeat for more)."""

    opcode, reply = 15, Purged
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
    """The holder of its lease: 8 hex digits for a client, or a reservation's name; empty unless leased."""
    record: bytes


class Browsed(Reply):
    """A page of messages, key by key and in line order. ``more``: there may be others behind it."""

    messages: list[MessageView]
    more: bool


class Browse(Command):
    """Show up to ``limit`` messages, those behind the message with the id ``after`` (high, low), without leasing them."""

    opcode, reply = 17, Browsed
    limit: int
    after: tuple[int, int] | None = None
    fairness_key: str | None = None
    state: str | None = None


class Cancelled(Reply):
    """Whether the message was removed; if not, it is leased."""

    removed: bool


class Cancel(Command):
    """Remove a pending or delayed message."""

    opcode, reply = 18, Cancelled
    id_high: int
    id_low: int


class Redriven(Reply):
    """How many went back, and how many pending dead letters are left."""

    count: int
    remaining: int
    looked_at: int = 0
    """How many of the ``ids`` are dealt with, from the first one: send the others again."""


class Redrive(Command):
    """Send up to ``count`` pending dead letters back to the queues they came from (a bounded step: repeat for more)."""

    opcode, reply = 50, Redriven
    count: int
    fairness_key: str | None = None
    ids: list[tuple[int, int]] | None = None
    """Only these, each as ``(high, low)``; those not pending there are skipped. Then ``count`` is 0 and no key is named."""


class Moved(Reply):
    """How many messages have arrived, and how many pending and delayed ones are left."""

    count: int
    remaining: int


class MoveMessages(Command):
    """Take up to ``count`` pending and delayed messages to the line of another queue (a bounded step: repeat for more)."""

    opcode, reply = 54, Moved
    target: Annotated[str, names_queue("produce", "a move from {} to it")]
    count: int
    fairness_key: str | None = None


class ViewedQueue(Struct):
    """A queue in a view, and where to divide its fairness keys, sorted by name, into ranges of about the same size.

    ``bounds`` are the first keys of the second range and of those behind it.
    """

    name: str
    messages: int
    bounds: list[str]


class ViewOpened(Reply):
    """The queues that are in a view; those that do not exist are not."""

    queues: list[ViewedQueue]


class OpenView(Command):
    """Freeze the state of some queues of one shard under a name, to be read page by page with :class:`BrowseView`.

    All are named in ``queues`` and live on the shard of the routing key, which is one of them. Opening an open view again
    gives the same answer. A view that is not read for ``idle_ms`` is closed.
    """

    opcode, reply = 51, ViewOpened
    view: str
    queues: list[Annotated[str, names_queue("consume", "a view beside {}")]]
    """At most 10,000."""
    range_messages: int
    """About how many messages a range of keys should have."""
    idle_ms: int


class ViewBrowsed(Reply):
    """A page of a view, perhaps an empty one. ``next`` is the beginning of the next page, nil at the end."""

    messages: list[MessageView]
    next: tuple[str, bytes] | None


class BrowseView(Command):
    """A page of the routing key's queue as it was when the view was opened.

    The order is key by key; within a key, the messages with the same throttle keys together, in line order, then the delayed
    ones likewise.
    """

    opcode, reply = 52, ViewBrowsed
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


class ConsumerView(Struct):
    """A client or a reservation that asks for messages of a queue, or holds some."""

    consumer: str
    """8 hex digits for a client, or a reservation's name."""
    kind: str
    """``push`` (it has a subscription), ``receive`` (it asks each time), ``reservation``."""
    prefetch: int
    """How many unsettled messages its subscriptions may hold, or how many its waiting receives ask for."""
    credit: int
    """How many messages it would be sent now."""
    in_flight: int
    heard_ms: int
    """When the broker last received a frame of its client; of a reservation, when it was last taken or renewed."""
    expires_ms: int
    """When the first of its leases ends unless it is renewed; 0: it holds no lease."""


class HookState(Struct):
    """The hooks of a queue, since they were compiled."""

    runs: int
    failed: int
    bypassed: int
    failures_in_row: int
    """The failures in a row up to now. An open breaker starts again with one less than ``threshold``."""
    threshold: int
    """The number of failures in a row that opens the breaker."""
    open_until_ms: int
    """Hooks are bypassed until then; 0: they run."""
    last_failure: str
    """Why the last failed run failed; empty: no run has failed."""


class QueueDescription(Reply):
    """One queue. ``created_ms`` 0: not known."""

    info: QueueInfo
    options: QueueOptions
    """The options in force; those of a dead letter queue are the broker's."""
    created_ms: int
    size_bytes: int
    """The size of its messages as they are stored."""
    redrivable: bool
    """Whether its dead letters may be sent back: it is a dead letter queue, or the dead letter target of a queue."""
    consumers: list[ConsumerView]
    """The consumers that hold the most messages come first."""
    consumers_left_out: int
    hooks: HookState | None = None
    """None: it has no hooks."""


class DescribeQueue(Command):
    """Ask for a queue's description. Unlike its statistics, this does not grow with its keys."""

    opcode, reply = 21, QueueDescription


class Reason(Struct):
    """One thing that keeps messages waiting. ``until_ms`` is when it ends, 0 if that is not known."""

    code: str
    """One of the codes in ``docs/why.md``."""
    text: str
    until_ms: int
    details: dict[str, Any]


class Explained(Reply):
    """Why something waits. First comes the reason that has to end first for a delivery to happen now."""

    state: str
    """``pending``, ``delayed``, ``leased`` or ``dead_lettered``; of a key or a queue that has no messages, ``empty``;
    ``unknown`` if the shard's log does not confirm."""
    reasons: list[Reason]
    position: int | None = None
    """How many messages of its key go before it; nil where it does not apply."""
    estimated_ms: int = 0
    """When it will be delivered, from current rates; 0: not known."""


class Explain(Command):
    """Say why a message waits, or a fairness key; if neither is named, the queue."""

    opcode, reply = 19, Explained
    id: tuple[int, int] | None = None
    fairness_key: str | None = None
