"""Who may hold leases: a client, by its identity, or a reservation, by its name.

Lease records say whose they are in one field. A reservation's holder begins with :data:`MARK`, which no client's identity
does, so a restart finds out what is whose from the records alone.
"""

from typing import Final

from fila_worker.core.keys import pack_u32

MARK: Final = b"\0reserved\0"
_NAME_AT: Final = len(MARK) + 4


def holder_of(queue_id: int, reservation: str) -> bytes:
    """The holder that a reservation is on one queue: on each queue it is something of its own."""
    return MARK + pack_u32(queue_id) + reservation.encode()


def is_reservation(holder: bytes) -> bool:
    """Whether this is a reservation and not a client."""
    return holder.startswith(MARK)


def shown(holder: bytes) -> str:
    """A holder for people: a reservation's name, a client's identity in hex digits."""
    return holder[_NAME_AT:].decode() if is_reservation(holder) else holder.hex()
