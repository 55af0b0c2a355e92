"""The storage port in memory, for tests and for an embedded broker that need not survive its process.

There is one sorted dict for each family. Committed data stays when a shard is dropped. So a test recovers a second shard from
the same store and sees exactly what a restart after a crash would see.
"""

from collections.abc import Callable, Iterator, Sequence

from sortedcontainers import SortedDict

from fila_proto_zmq.commands import StoreMetrics
from fila_proto_zmq.errors import StorageError
from fila_worker.core.measures import CHANGES, SPAN_NS, CountedHistogram
from fila_worker.core.store import Families, Family, Pin, StoreBatch

_Change = Callable[[], object]


class MemoryBatch:
    """Changes in order, applied by :meth:`MemoryStore.commit`."""

    def __init__(self) -> None:
        self.changes: list[_Change] = []

    def __len__(self) -> int:
        return len(self.changes)

    def put(self, key: bytes, value: bytes, family: Family, /) -> None:
        """Set ``key``."""
        self.changes.append(lambda: family.__setitem__(key, value))

    def delete(self, key: bytes, family: Family, /) -> None:
        """Remove ``key``."""
        self.changes.append(lambda: family.pop(key, None))

    def delete_range(self, begin: bytes, end: bytes, family: Family, /) -> None:
        """Remove a range."""
        self.changes.append(lambda: [family.pop(key) for key in list(family.irange(begin, end, (True, False)))])


class MemoryPin:
    """Copies of some families."""

    def __init__(self, families: Sequence[Family]) -> None:
        self._copies = {id(family): SortedDict(family) for family in families}

    def scan(self, begin: bytes, family: Family) -> Iterator[tuple[bytes, bytes]]:
        """Return the items from ``begin`` on."""
        copy = self._copies[id(family)]
        return ((key, copy[key]) for key in copy.irange(begin))

    def close(self) -> None:
        """Forget the copies."""
        self._copies.clear()


class MemoryStore:
    """A :class:`fila_worker.core.store.Store` whose data ends with its process."""

    failure: StorageError | None = None

    def __init__(self) -> None:
        self.families = Families(*(SortedDict() for _ in Families._fields))
        self.committed = 0
        self._changes = CountedHistogram(CHANGES)

    @property
    def confirmed(self) -> int:
        """The last batch: each is confirmed at once, and lives as long as its process."""
        return self.committed

    @property
    def unconfirmed_bytes(self) -> int:
        """0: no batch waits."""
        return 0

    def new_batch(self) -> MemoryBatch:
        """Return an empty batch."""
        return MemoryBatch()

    def commit(self, batch: StoreBatch, *, sync: bool = False) -> None:
        """Apply a batch."""
        assert isinstance(batch, MemoryBatch)
        for change in batch.changes:
            change()
        self.committed += 1
        self._changes.observe(len(batch))

    def push(self) -> bool:
        """Return whether all is confirmed."""
        return self.confirmed == self.committed

    def get(self, key: bytes, family: Family) -> bytes | None:
        """Return one value, or None."""
        value: bytes | None = family.get(key)
        return value

    def get_many(self, keys: Sequence[bytes], family: Family) -> list[bytes | None]:
        """Return the values in the order of ``keys``."""
        return [family.get(key) for key in keys]

    def scan(self, begin: bytes, end: bytes, family: Family) -> Iterator[tuple[bytes, bytes]]:
        """Return the items of a range as of this moment; commits during the scan do not change it."""
        return iter([(key, family[key]) for key in family.irange(begin, end, (True, False))])

    def ready_to_pin(self, families: Sequence[Family]) -> bool:
        """Return True: a pin copies the items."""
        return True

    def pin(self, families: Sequence[Family]) -> Pin:
        """Return some families as of this moment."""
        return MemoryPin(families)

    def tidy(self) -> None:
        """Do nothing: removed data takes no space."""

    def metrics(self) -> StoreMetrics:
        """Return the sizes of the batches; all other figures are 0."""
        return StoreMetrics(CountedHistogram(SPAN_NS).wire(), self._changes.wire(), 0, 0, 0, stalled=False)

    def close(self) -> None:
        """Do nothing: there is nothing to release."""
