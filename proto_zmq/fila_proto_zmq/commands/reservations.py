"""Leases that belong to a name instead of a client."""

from typing import ClassVar

from fila_proto_zmq.commands.messages import Delivered
from fila_proto_zmq.commands.structs import Command, Reply


class Reserved(Reply):
    """The messages that a reservation holds of a queue: ``(part, messages)``, and when it ends unless it is renewed."""

    parts: list[tuple[int, int]]
    expires_ms: int


class Reserve(Command):
    """Lease up to ``count`` messages to a name instead of to this client: those ready now, or within ``wait_ms``.

    A reservation is durable and outlives its client. It is taken in parts, each in one delivery; asking again for a part that
    is taken gives the same answer. When it expires its messages are given back, without a failed attempt.
    """

    opcode: ClassVar[int] = 42
    reply: ClassVar[type[Reply]] = Reserved
    reservation: str
    part: int
    count: int
    timeout_ms: int
    wait_ms: int = 0


class FetchReserved(Command):
    """Ask for the messages of a part of a reservation, as often as needed."""

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
    """How many messages were settled; 0 if the reservation had ended."""

    count: int


class EndReservation(Command):
    """Settle all messages that a reservation holds of a queue: ``verb`` 1 acks them, 5 gives them back."""

    opcode: ClassVar[int] = 45
    reply: ClassVar[type[Reply]] = ReservationEnded
    reservation: str
    verb: int = 1
