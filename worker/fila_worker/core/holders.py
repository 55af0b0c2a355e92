"""Who holds leases: a client, by its id, or a reservation, by its name.

They are two types, and a lease's record has a field for each. So nothing that a client may choose, its id least of all, makes it
a reservation, or the other way round. A holder has ``leases``, by lease id, and ``shown``, its text for people.
"""

from typing import TYPE_CHECKING, TypeAlias

if TYPE_CHECKING:
    from fila_worker.core.consumers import Consumer
    from fila_worker.core.leases import Lease


class Reservation:
    """A reservation on one queue: on each queue a name is something of its own.

    Invariant: ``parts`` are its leases by the numbers of their parts; one that comes with the number of another is in ``leases``
    only, and is settled with the others.
    """

    __slots__ = ("leases", "name", "parts", "queue_id")

    def __init__(self, queue_id: int, name: str) -> None:
        self.queue_id = queue_id
        self.name = name
        self.leases: dict[int, Lease] = {}
        """By lease id, in the order in which they were taken."""
        self.parts: dict[int, Lease] = {}

    @property
    def shown(self) -> str:
        """Its name."""
        return self.name

    def add(self, lease: "Lease") -> None:
        """It holds one more part."""
        self.leases[lease.id] = lease
        self.parts.setdefault(lease.part, lease)

    def remove(self, lease: "Lease") -> None:
        """One of its leases ended."""
        del self.leases[lease.id]
        if self.parts.get(lease.part) is lease:
            del self.parts[lease.part]


Holder: TypeAlias = "Consumer | Reservation"
