"""Messages out."""

from typing import ClassVar

from fila_proto_zmq.commands.structs import Command, IntColumn, KeysColumn, Reply, Struct, TextColumn


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
