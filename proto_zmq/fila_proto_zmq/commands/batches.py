"""Batches: messages with a callback that is enqueued once, when the last of them is done.

A batch is kept by the shard of its callback's queue, its *owner*. The members in one queue are a *part* of the batch, counted
by the shard of that queue.
"""

from typing import TypeAlias

from fila_proto_zmq.commands.messages import Enqueue, Fault
from fila_proto_zmq.commands.structs import Command, Reply, Struct


class BatchOpened(Reply):
    """The batch is open."""

    open_ms: int
    """How long it may stay open. A batch that is not sealed by then is forgotten."""


class OpenBatch(Command):
    """Open a batch whose callback goes to the queue of the routing key. Repeating it does nothing."""

    opcode, reply = 26, BatchOpened
    token: bytes
    """16 random bytes. With the callback's queue they are the batch's id."""
    callback: Enqueue
    """The callback: one message, in no batch, without a dedup id. A delay counts from the end of the batch."""
    name: str = ""
    """For people."""


class SealBatch(Command):
    """Close a batch: no more members come, and its callback comes when all members are done. Repeating it does nothing."""

    opcode = 27
    token: bytes


class AbandonBatch(Command):
    """Forget a batch that is not sealed: its messages stay, and no callback comes. Repeating it does nothing."""

    opcode = 28
    token: bytes


PartName: TypeAlias = tuple[str, bytes, str]
"""A part of a batch: the callback's queue, the token, and the queue of the members."""


class PartReport(Struct):
    """The counts of a part: its members so far, and how many of them were acked, dead-lettered and removed."""

    owner: str
    token: bytes
    queue: str
    added: int
    acked: int
    dead: int
    removed: int


class JoinBatch(Command):
    """Ask the owner of a batch whether a queue may get members. The router forwards it to ``to_shard``."""

    opcode = 105
    to_shard: int
    from_shard: int
    ticket: int
    owner: str
    token: bytes
    queue: str


class BatchJoined(Command):
    """The answer to :class:`JoinBatch`. ``fault``: why not; None: it may, until ``until_ms``."""

    opcode = 106
    to_shard: int
    from_shard: int
    ticket: int
    owner: str
    token: bytes
    queue: str
    until_ms: int
    fault: Fault | None


class SealParts(Command):
    """Take no more members into these parts, and report their counts."""

    opcode = 107
    to_shard: int
    from_shard: int
    parts: list[PartName]


class ReportParts(Command):
    """Report the counts of sealed parts to the owner, or ask it whether an open part is of use. Repeated until forgotten."""

    opcode = 108
    to_shard: int
    from_shard: int
    sealed: bool
    parts: list[PartReport]


class ForgetParts(Command):
    """Forget these parts: their counts are kept by the owner, or their batch is no more."""

    opcode = 109
    to_shard: int
    from_shard: int
    parts: list[PartName]
