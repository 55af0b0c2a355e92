"""What a queue is: as it was told to be, who reads it, how its hooks fare."""

from typing import ClassVar

from fila_proto_zmq.commands.queues import QueueInfo, QueueOptions
from fila_proto_zmq.commands.structs import Command, Reply, Struct


class ConsumerView(Struct):
    """Somebody who wants messages of a queue, or holds some."""

    consumer: str
    """As in :class:`~fila_proto_zmq.commands.MessageView`: a client's identity in hex digits, or a reservation's name."""
    kind: str
    """``push`` (it has a subscription), ``receive`` (it asks each time), ``reservation``."""
    prefetch: int
    """How many unsettled messages its subscriptions may hold, or how many its waiting receives ask for."""
    credit: int
    """How many it would be sent now."""
    in_flight: int
    heard_ms: int
    """When its client was last heard; of a reservation, when it was last taken or renewed."""
    expires_ms: int
    """When the first of its leases ends unless it is renewed; 0: it holds none."""


class HookState(Struct):
    """The hooks of a queue, since they were compiled."""

    runs: int
    failed: int
    bypassed: int
    failures_in_row: int
    """Up to now. An open breaker starts over with one less than ``threshold``."""
    threshold: int
    """So many open the breaker."""
    open_until_ms: int
    """Hooks are bypassed until then; 0: they are not."""
    last_failure: str
    """Why the last run that failed did; empty: none has."""


class QueueDescription(Reply):
    """One queue. ``created_ms`` 0: that is not known."""

    info: QueueInfo
    options: QueueOptions
    """As they are now; those of a dead letter queue are the broker's."""
    created_ms: int
    size_bytes: int
    """Of its messages, as they are stored."""
    redrivable: bool
    """Whether its dead letters may be sent back: it is a dead letter queue, or was named as one."""
    consumers: list[ConsumerView]
    """Those who hold the most first."""
    consumers_left_out: int
    hooks: HookState | None = None
    """None: it has none."""


class DescribeQueue(Command):
    """Ask what a queue is. Unlike its statistics, this does not grow with its keys."""

    opcode: ClassVar[int] = 21
    reply: ClassVar[type[Reply]] = QueueDescription
