"""What lies in a queue: look at it, take it out, send it back."""

from typing import ClassVar

from fila_proto_zmq.commands.structs import Command, Reply, Struct


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


class Redriven(Reply):
    """How many went back, and how many pending dead letters are left."""

    count: int
    remaining: int
    looked_at: int = 0
    """How many of the ``ids`` were dealt with, from the first one: ask again with the others."""


class Redrive(Command):
    """Send up to ``count`` pending dead letters back to the queues they came from (a bounded step: repeat for more)."""

    opcode: ClassVar[int] = 50
    reply: ClassVar[type[Reply]] = Redriven
    count: int
    fairness_key: str | None = None
    ids: list[tuple[int, int]] | None = None
    """Only these, each as ``(high, low)``; those that are not pending there are passed over. Then ``count`` is 0 and no key is named."""
