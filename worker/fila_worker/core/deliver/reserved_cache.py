"""A cache of records of reserved messages, from the reservation, when they are in memory, to the first fetch, soon after.

Reading them again from disk would be a third of the cost of a reserved message. Each part is kept until it is fetched once. A
second fetch reads the disk. If the cache is full, the oldest parts are forgotten.
"""

from collections import OrderedDict

from fila_worker.core.settings import Limits


class ReservedCache:
    """The records of some leases, by lease id. ``size_bytes`` is the size of all of them together."""

    def __init__(self, limits: Limits) -> None:
        self._bytes_max = limits.reserved_bytes_max
        self.size_bytes = 0
        self._records: OrderedDict[int, tuple[list[bytes], int]] = OrderedDict()

    def __len__(self) -> int:
        return len(self._records)

    def keep(self, lease_id: int, records: list[bytes], size_bytes: int) -> None:
        """Keep the records of a new lease, in the order of its members."""
        self._records[lease_id] = records, size_bytes
        self.size_bytes += size_bytes
        while self.size_bytes > self._bytes_max:
            _, (_, forgotten_bytes) = self._records.popitem(last=False)
            self.size_bytes -= forgotten_bytes

    def take(self, lease_id: int) -> list[bytes] | None:
        """Return the records of a lease, and forget them; None if they are not in the cache."""
        records, size_bytes = self._records.pop(lease_id, (None, 0))
        self.size_bytes -= size_bytes
        return records
