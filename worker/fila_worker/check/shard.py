"""The check of one shard: every family, record by record, and whether the families agree; and the repair.

Families are read in the order of their keys and compared while they are read, so memory does not grow with the messages: it
holds the queues, the counts of the last ledger entries, and the keys of messages in flight, as a running shard does.

A repair writes again what can be derived from the messages. Findings are applied in portions during the check, each in one
synced batch that leaves the shard no worse. So a repair that is killed has done a part of its work, and the next one does the
rest. Counts are written as a new ledger entry: the last entry of a lane counts, so nothing has to be removed.
"""

from collections.abc import Callable, Iterable, Iterator
from itertools import islice
from pathlib import Path
from struct import error as StructError  # noqa: N812  # it is a class
from typing import Final, cast

from fila_proto_zmq.errors import FilaError, StorageError
from fila_worker.check import leases, lines, queues, schedule, singles
from fila_worker.check.findings import Finding
from fila_worker.check.reading import CheckReading
from fila_worker.core.hooks import no_hooks
from fila_worker.core.keys import FIRST, LAST, pack_u64, u64
from fila_worker.core.model.ledger import LedgerEntry, pack_entry, parse_entry
from fila_worker.core.recovery import recover
from fila_worker.core.settings import ShardSettings
from fila_worker.core.store import Store, StoreBatch
from fila_worker.storage.rocks import RocksStore

PARTS: Final = (
    ("identity", singles.check_identity),
    ("state", singles.check_state),
    ("queues", queues.check_queues),
    ("ledger", queues.check_ledger),
    ("leases", leases.check_leases),
    ("messages", lines.check_lines),
    ("counts", queues.check_totals),
    ("batches", singles.check_batches),
    ("schedule", schedule.check_schedule),
    ("dedup", schedule.check_dedup),
    ("config", singles.check_config),
    ("outbox", singles.check_outbox),
)
"""The parts in their order: later ones use what earlier ones have read."""

Progress = Callable[[str, int], None]


def check_shard(store: Store, index: int, shards: int, progress: Progress | None = None) -> Iterator[Finding]:
    """Yield the faults of shard ``index`` of ``shards``. ``progress`` gets a part's name and how many records were read.

    A part that cannot be read to its end yields a finding with the file. Comparisons with that part are skipped.
    """
    reading = CheckReading(store, index, shards, progress)
    failed = False
    for name, check in PARTS:
        reading.part = name
        try:
            for finding in check(reading):
                failed = True
                yield finding
        except StorageError as error:
            failed = True
            reading.incomplete.add(name)
            yield unreadable(error, name)
    if not failed:
        yield from _recovered(store, index, shards)


def unreadable(error: StorageError, part: str = "") -> Finding:
    """Return the finding for stored data that cannot be read."""
    file = error.details.get("file") if error.details else None
    where = f"while reading {part}: " if part else ""
    return Finding("damaged", f"{where}{error}", file=file if isinstance(file, str) else None)


def _recovered(store: Store, index: int, shards: int) -> Iterator[Finding]:
    """Recover the shard in memory with the core, which compares more than can be compared record by record."""
    try:
        recover(cast("Store", _OneWay(store)), ShardSettings(), no_hooks, index=index, shards=shards, now_ms=0)
    except FilaError as error:
        yield Finding("contradiction", f"a worker would refuse the shard: {error}")


class _OneWay:
    """A store whose commits are dropped. All other methods are those of the store behind it."""

    def __init__(self, store: Store) -> None:
        self._store = store

    def __getattr__(self, name: str) -> object:
        return getattr(self._store, name)

    def commit(self, batch: object, *, sync: bool = False) -> None:
        """Drop a batch."""


PORTION: Final = 500
"""The findings of one batch."""


def repair_shard(path: Path, index: int, shards: int, progress: Progress | None = None) -> int:
    """Write again what can be derived, in a shard that no process serves. Return the number of repairs.

    Raise :class:`StorageError` if the database does not open, or cannot be written.
    """
    store = RocksStore(path)
    try:
        return apply(store, check_shard(store, index, shards, progress))
    finally:
        store.close()


def apply(store: Store, findings: Iterable[Finding]) -> int:
    """Apply the repairs of some findings to a store. Return their number."""
    repairs = (finding for finding in findings if finding.repairable and not finding.opening_repairs)
    ledger, done = _Ledger(store), 0
    while portion := list(islice(repairs, PORTION)):
        batch = store.new_batch()
        for finding in portion:
            _change(store, finding, batch)
        ledger.write(portion, batch)
        store.commit(batch, sync=True)
        done += len(portion)
    return done


def _change(store: Store, finding: Finding, batch: StoreBatch) -> None:
    for family, key, value in finding.changes:
        handle = getattr(store.families, family)
        if value is None:
            batch.delete(key, handle)
        else:
            batch.put(key, value, handle)


class _Ledger:
    """The end of the ledger, to which repairs add entries."""

    def __init__(self, store: Store) -> None:
        self._family = store.families.ledger
        self._next, self._last = 0, LedgerEntry(0, 0, 0, {}, {})
        for key, entry in _entries(store):
            self._next, self._last = key + 1, entry

    def write(self, findings: list[Finding], batch: StoreBatch) -> None:
        """Add the counts of some findings to a batch, as one entry."""
        sequence, lane, clock_ms, *_ = self._last
        lanes = {lane_id: counts for finding in findings for lane_id, counts in finding.lanes.items()}
        sizes = {queue_id: size for finding in findings for queue_id, size in finding.sizes.items()}
        counters = [finding.counters for finding in findings if finding.counters is not None]
        if not (lanes or sizes or counters):
            return
        for used in counters:
            sequence, lane = max(sequence, used[0]), max(lane, used[1])
        self._last = LedgerEntry(sequence, lane, clock_ms, lanes, sizes)
        batch.put(pack_u64(self._next), pack_entry(self._last), self._family)
        self._next += 1


def _entries(store: Store) -> Iterator[tuple[int, LedgerEntry]]:
    for key, data in store.scan(FIRST, LAST, store.families.ledger):
        try:
            yield u64(key), parse_entry(data)
        except StructError:
            continue  # a finding removes it
