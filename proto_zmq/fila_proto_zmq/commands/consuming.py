"""Messages out."""

from typing import ClassVar, TypeAlias

from fila_proto_zmq.commands.structs import Command, IntColumn, KeysColumn, Reply, Struct, TextColumn

Fences: TypeAlias = list[tuple[int, list[int]]]
"""Deliveries by lease: ``(lease, indexes)``; no indexes mean all of the lease."""


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
    incarnation: int = 0
    """Of the subscription, when this was pushed."""


DELIVERY = 33


class Receive(Command):
    """Lease up to ``count`` messages: what is ready now, else as soon as something is, at most ``wait_ms`` from now.

    Repeated under the same request id it is answered with the same leases, as long as they last.
    """

    opcode: ClassVar[int] = 30
    reply: ClassVar[type[Reply]] = Delivered
    count: int = 1
    wait_ms: int = 0


class CancelReceive(Command):
    """Answer the pending receive with this request id now, with nothing, unless it is answered already."""

    opcode: ClassVar[int] = 36
    request: int
    release: bool = False
    """Give back what it was answered with, too: the answer was lost, or comes too late."""


class Subscribed(Reply):
    """How the subscription stands."""

    incarnation: int = 0
    """0: this broker has none, as those that came before incarnations."""
    pushes: int = 0
    """Frames that were pushed under this incarnation so far. Who has seen fewer has lost some."""
    gone: list[int] = []
    """Of the leases that the client named: those that ended."""


class Subscribe(Command):
    """Keep at most ``prefetch`` unsettled messages with this subscription; repeat as a heartbeat.

    The same frame opens a subscription, keeps its client alive, renews the leases named in ``renew``, heals a restarted
    broker and takes back what was lost on its way, so there is no other path to get wrong.
    """

    opcode: ClassVar[int] = 31
    reply: ClassVar[type[Reply]] = Subscribed
    subscription: int
    prefetch: int
    renew: list[int] = []
    incarnation: int | None = None
    """The one that the client believes in; 0: none, it drops what is pushed until this is answered. None: it does not
    say what it holds, and nothing is taken back."""
    holds: list[int] = []
    """The leases of this subscription that the client holds and does not renew."""


class Unsubscribe(Command):
    """End a subscription. Its leases stay until they are settled, released or expire."""

    opcode: ClassVar[int] = 32
    subscription: int
    holds: list[int] | None = None
    """The leases of this subscription that the client holds: the others are given back. None: it does not say."""


class Heartbeat(Command):
    """The client lives. Sent to a queue where it holds leases but has no subscription."""

    opcode: ClassVar[int] = 34


class Goodbye(Command):
    """The client leaves: everything that it has not settled on this shard goes back, uncounted."""

    opcode: ClassVar[int] = 35
    taken: Fences = []
    """Deliveries made at most once that the application has had, and whose acks were not confirmed: these are gone."""
