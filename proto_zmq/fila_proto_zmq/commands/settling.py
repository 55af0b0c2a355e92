"""What became of deliveries."""

from enum import IntEnum
from typing import ClassVar

from fila_proto_zmq.commands.consuming import Fences
from fila_proto_zmq.commands.producing import Fault
from fila_proto_zmq.commands.structs import Command, Reply


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
