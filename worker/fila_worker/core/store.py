"""The storage port: the operations that a shard needs of a disk.

A shard collects a turn's changes in one :class:`StoreBatch`, commits it, and reads only committed data. A committed batch may
be durable later (:attr:`Store.confirmed`); the shard's owner waits for that before it sends what depends on the batch. Any
ordered key-value store can provide this. RocksDB implements it (:mod:`fila_worker.storage.rocks`), and so does a sorted dict
for tests (:mod:`fila_worker.storage.memory`), under the same contract tests.

:class:`DiskSpace` decides when a shard asks its storage to give back the space of removed messages. The storage drops them
when it rewrites files, which it does for writes. An emptied queue gets none, so its space would stay taken. Rewriting takes
time of the disk and of a core. So it waits for a quiet moment, and for waste that is worth it.
"""

from collections.abc import Callable, Iterator, Sequence
from typing import Any, Final, NamedTuple, Protocol, TypeAlias

from fila_proto_zmq.commands import StoreMetrics
from fila_proto_zmq.errors import StorageError

Family: TypeAlias = Any
"""An opaque handle of a column family, valid with the store that gave it."""


class DamageError(StorageError):
    """The stored data is not the written data. A retry does not help: the shard must not be served, nor written to."""


class UnfitStoreError(StorageError):
    """This process can't use the store for this shard. The stored data is not damaged."""


class InUseError(UnfitStoreError):
    """Another process has the store open."""


class WrongStoreError(UnfitStoreError):
    """The store holds another shard, or a format that this version does not read."""


class Families(NamedTuple):
    """The column families. Keys are big-endian, so that they sort as their numbers do; see :mod:`core.keys`."""

    messages: Family
    """``lane u64 · priority u32 (biased) · sequence u64`` → record. Pending and leased messages."""
    delayed: Family
    """Message key → ``due u64 · flags u8`` · record. The key is the message's place once it is due."""
    schedule: Family
    """``due u64 · kind u8 · subject`` → a note, mostly empty; see :mod:`core.model.due_index`."""
    leases: Family
    """``lease u64`` → :class:`core.model.leases.LeaseRecord`, one for each delivery batch. Once the whole batch is acked, the
    mark of :mod:`core.model.acked_messages`. When its messages are gone, its client, remembered for repeated settlements."""
    lanes: Family
    """``lane u64`` → :class:`core.model.ledger.LaneRecord`: identity and folded counts of a lane."""
    ledger: Family
    """``entry u64`` → counts of the lanes that changed since the last fold; see :mod:`core.model.ledger`."""
    queues: Family
    """``queue u32`` → :class:`core.model.queues.QueueRecord`."""
    dedup: Family
    """``queue u32 · dedup id`` → ``expiry u64 · id high u64 · id low u64 [· message key]``."""
    outbox: Family
    """``shard u32 · number u64`` → a message on its way to another shard; see :mod:`core.settle.transfers`."""
    config: Family
    """Key → value of the runtime config, as text."""
    state: Family
    """The shard's identity, epoch and other single values, by name."""


class StoreBatch(Protocol):
    """Changes that become visible together, and durable together."""

    def put(self, key: bytes, value: bytes, family: Family, /) -> None:
        """Set ``key``."""

    def delete(self, key: bytes, family: Family, /) -> None:
        """Remove ``key``, if it is there."""

    def delete_range(self, begin: bytes, end: bytes, family: Family, /) -> None:
        """Remove all keys from ``begin`` up to, not including, ``end``."""

    def __len__(self) -> int:
        """Return the number of changes in it."""


class Pin(Protocol):
    """Families as they were committed at one moment. A pin costs memory and disk until it is closed."""

    def scan(self, begin: bytes, family: Family) -> Iterator[tuple[bytes, bytes]]:
        """Yield items from ``begin`` on, in key order, one scan of a family at a time.

        A scan reads no further than the items that are taken: behind them there may be any number of tombstones.
        """

    def close(self) -> None:
        """Release the pinned data."""


class Store(Protocol):
    """Committed data. Any method may raise :class:`StorageError`. The shard is then dropped, and recovered again."""

    families: Families

    @property
    def committed(self) -> int:
        """The number of the last batch since the store was opened: 1, 2, 3 …"""

    @property
    def confirmed(self) -> int:
        """The last batch that is durable, with all before it."""

    @property
    def failure(self) -> StorageError | None:
        """Why some batch will never be confirmed; None: each will be."""

    @property
    def unconfirmed_bytes(self) -> int:
        """The size of the batches that are not confirmed."""

    def new_batch(self) -> StoreBatch:
        """Return an empty batch."""

    def commit(self, batch: StoreBatch, *, sync: bool = False) -> None:
        """Make a batch visible, and durable once it is confirmed, all or nothing. The batch cannot be used again.

        ``sync``: when it is confirmed it, and all before it, survives a power cut, whatever the store's durability is
        otherwise.
        """

    def push(self) -> bool:
        """Confirm all commits, now or soon. Call it after a turn's last commit. Return whether all are confirmed."""

    def get(self, key: bytes, family: Family) -> bytes | None:
        """Return one value, or None."""

    def get_many(self, keys: Sequence[bytes], family: Family) -> list[bytes | None]:
        """Return the values in the order of ``keys``, None for keys that do not exist."""

    def scan(self, begin: bytes, end: bytes, family: Family) -> Iterator[tuple[bytes, bytes]]:
        """Yield items from ``begin`` up to, not including, ``end``, in key order, as of the call."""

    def ready_to_pin(self, families: Sequence[Family]) -> bool:
        """Return whether a pin of these would keep little memory. If not, this is prepared in the background: call again."""

    def pin(self, families: Sequence[Family]) -> Pin:
        """Return a pin of some families, for reads that take many turns."""

    def tidy(self) -> None:
        """Begin to give back the disk space of what was removed, in the background. No effect while that is under way."""

    def metrics(self) -> StoreMetrics:
        """Return its counters."""

    def close(self) -> None:
        """Flush and release the disk, and all pins."""


LOOKS_QUIET: Final = 5
"""The shard must be quiet at so many looks in a row, a second apart."""

COMMITS_QUIET_MAX: Final = 20
"""A shard that commits less often between two looks is quiet."""

LOOKS_BETWEEN: Final = 30
"""At least so many looks pass between two comparisons, because the messages' bytes are summed over all queues for one."""


class DiskSpace:
    """Decides from sizes. ``waste_bytes_min``: waste that is not worth the work."""

    def __init__(self, waste_bytes_min: int) -> None:
        self._waste_bytes_min = waste_bytes_min
        self._commits = 0
        self._quiet = 0
        """Looks in a row that found the shard quiet."""
        self._since_comparison = LOOKS_BETWEEN

    def look(self, used_bytes: int, held_bytes: Callable[[], int], commits: int) -> bool:
        """Return whether to ask for disk space now. Call it once a second.

        ``used_bytes``: the files of the storage; ``held_bytes``: of all messages; ``commits``: since the storage was opened.
        """
        made, self._commits = commits - self._commits, commits
        self._quiet = self._quiet + 1 if made <= COMMITS_QUIET_MAX else 0
        self._since_comparison += 1
        if self._quiet < LOOKS_QUIET or self._since_comparison < LOOKS_BETWEEN or used_bytes < self._waste_bytes_min:
            return False
        self._since_comparison = 0
        held = held_bytes()
        return used_bytes - held - held // 4 >= self._waste_bytes_min
