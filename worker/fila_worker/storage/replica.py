"""A host's copy of a replicated shard: a store whose durability is the log on other machines.

The same open database is used in two ways. A *following* copy applies the records that count. A *leading* one is the store of
the shard: a batch is visible at once, goes into the log, and is confirmed by the owner.

**The disk has confirmed changes only.** The database has no write-ahead log of its own, so memtables are lost with the
process. They are flushed only when nothing is unconfirmed, all families together or none. Each batch contains the copy's
position in the log. So after a kill the copy stands at a confirmed state, and reads on from its position. The log has the
rest.

Rejected: RocksDB's own log. A killed leader would have unconfirmed changes on its disk, and its copy would have to be
dropped.

RocksDB must not flush by itself. Its memtables have room for much more than is ever in them, and the budget that other
databases share does not bound them. The options of :func:`fila_worker.storage.options.copy_options` prevent a flush when it
is closed, and rocksdict's own flush, one family after the other, fails because RocksDB was stopped before. That is done also
when the interpreter ends. One way is left: RocksDB recovers from a full disk by a flush, when there is room again. So a copy
may be *ahead* of its position. Then it must find its changes in the log, or it raises :class:`DivergedError`.

**How a flush begins.** rocksdict flushes one family only. But RocksDB can flush all of them once a single one is full. So a
flush begins by filling the ``default`` family, which has no data and the smallest write buffer. The memtables are replaced
within the next write, 0.3 to 0.8 ms. RocksDB's own threads write the files.
"""

from collections import deque
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from struct import Struct
from time import perf_counter_ns, sleep
from typing import Final, NamedTuple
from weakref import finalize

from rocksdict import WriteBatch

from fila_proto_zmq.errors import StorageError
from fila_worker.core.measures import CONFIRM_NS, CountedHistogram
from fila_worker.core.store import DamageError, Families, Family, Pin, StoreBatch, UnfitStoreError
from fila_worker.log.records import Before, Changes, RecordKind, decode_changes, encode_changes
from fila_worker.log.rule import START, Counted, Position
from fila_worker.storage.database import Database, Tidying, figure
from fila_worker.storage.options import TRIGGER_BYTES, SharedMemory, copy_options, family_options

MEMTABLE_BYTES_MAX: Final = 1024 * 1024 * 1024
"""The size at which RocksDB would flush a family by itself."""
BUFFERED_BYTES_MAX: Final = MEMTABLE_BYTES_MAX // 2
"""The size at which a copy refuses more: with an owner that does not pause, RocksDB would flush."""
MARKER_BYTES_MAX: Final = 1024
"""A longer body of a marker is not kept, because it is written with each batch."""
CHANGE_BYTES: Final = 64
"""The size of a change in a memtable beside its key and value."""

POSITION: Final = b"log position"
"""The key in the state family."""
LOG_NAME: Final = b"log name"
"""The key of the name of the log. A position is valid in its log only, and those of young logs are alike."""
_POSITION: Final = Struct(">qqQqQQ")
"""A :class:`Position`, and the number of the last batch in the copy, of the same epoch; then the last marker's body."""
POSITION_BYTES: Final = _POSITION.size

_FILLING: Final = bytes(2 * TRIGGER_BYTES)

Append = Callable[[bytes], int]
"""Append a batch to the log; return its last number. If it raises, nothing was appended."""


class DivergedError(DamageError):
    """The copy has changes that are not in the log. They were never confirmed, so the copy must be dropped."""


class OtherLogError(DamageError):
    """The copy is of another log. It must neither follow this one nor lead."""


class FlushLimits(NamedTuple):
    """When a copy flushes, and when its owner must pause for it."""

    bytes: int = 32 * 1024 * 1024
    """A flush is due with so much in the memtables, estimated."""
    pause_bytes: int = 64 * 1024 * 1024
    """So much at most, if the owner pauses."""
    age_ms: int = 60_000
    """A flush is due so long after the first change."""
    pause_age_ms: int = 120_000
    records: int = 10_000
    """A flush is due so many offsets after the last one, even without changes: the log must keep what a restart reads."""


class Replica(Database):
    """A :class:`fila_worker.core.store.Store` while it leads. It has no thread; call :meth:`tend` at least once a second.

    After :attr:`failure` is set, close it. Unconfirmed changes are gone then, and it can be opened again.
    """

    def __init__(
        self, path: Path, *, log: str = "", memory: SharedMemory | None = None, limits: FlushLimits | None = None
    ) -> None:
        """``log``: the name of its log from the first opening on; empty: unchecked. Raise :class:`StorageError`."""
        memory = memory or SharedMemory()
        families = {name: family_options(memory, name, MEMTABLE_BYTES_MAX) for name in Families._fields}
        super().__init__(path, copy_options(memory), families, numbered=True)
        self._stop = finalize(self, self._db.cancel_all_background, True)
        """Stops all flushes of RocksDB. It is called when the interpreter ends, at the latest."""
        self._write_options.disable_wal = True  # type: ignore[method-assign,assignment]  # rocksdict's stub says a method
        self._default = self._db.get_column_family_handle("default")
        self._limits = limits or FlushLimits()
        self._append: Append | None = None
        self.committed = 0
        self._waiting: deque[tuple[int, int, int]] = deque()
        """The number and the size of each batch that is not confirmed, and when it was committed."""
        self.confirm_ns = CountedHistogram(CONFIRM_NS)
        """How long each commit took to be confirmed."""
        self.unconfirmed_bytes = 0
        self.taken_bytes = 0
        """The size of all batches since it was opened."""
        self.failure: StorageError | None = None
        self._buffered = 0
        self._since_ms: int | None = None
        self._now_ms = 0
        self._asked = self._pressing = False
        self._running: Position | None = None
        """The position that a flush is writing."""
        self._tidy_wanted = False
        self._tidying: Tidying | None = None
        self.marker = b""
        """The body of the last marker: it names the leader."""
        try:
            self.position, self._ahead = self._stored()
            self._check_log(log)
        except StorageError:
            self._leave()
            raise
        self.flushed = self.position
        """Where the copy would stand if the process were killed."""

    def _stored(self) -> tuple[Position, int]:
        data = self.get(POSITION, self.families.state)
        if data is None:
            if any(next(reader.keys(), None) is not None for reader in self._readers.values()):
                raise UnfitStoreError(
                    f"{self._path} has data, but no position in the replicated log: it is not a copy of a replicated shard; "
                    "use another data directory, or serve it on one host as before"
                )
            return START, 0
        if len(data) < POSITION_BYTES:
            raise self._bad(f"its position in the log has {len(data)} bytes, less than {POSITION_BYTES}")
        offset, epoch, number, before_epoch, before_number, ahead = _POSITION.unpack_from(data)
        self.marker = data[POSITION_BYTES:]
        return Position(offset, epoch, number, Before(before_epoch, before_number)), ahead

    def _check_log(self, log: str) -> None:
        """Raise :class:`OtherLogError` if the copy is of another log than ``log``. Note the name in one without a name."""
        stored = (self.get(LOG_NAME, self.families.state) or b"").decode(errors="replace")
        if not log or stored == log:
            return
        if stored:
            raise OtherLogError(
                f"{self._path} is a copy of the log {stored}, and the shard's log is {log}: its topic was deleted and made "
                "again, or the directory is another cluster's; stop this host, move the directory away, and start it: the "
                "copy begins again from the log",
                details={"path": str(self._path), "log": stored},
            )
        batch = WriteBatch(raw_mode=True)
        batch.put(LOG_NAME, log.encode(), self._handles.state)
        batch.put(POSITION, _packed(self.position, self._ahead) + self.marker, self._handles.state)
        self._write(batch)

    def _bad(self, problem: str) -> DamageError:
        return DamageError(f"{self._path}: {problem}; {_ADVICE}", details={"path": str(self._path)})

    # --- the log ------------------------------------------------------------------------------------------------------

    @property
    def whole(self) -> bool:
        """Whether all its changes were found in the log. If not, it must not be read, nor lead."""
        return self._ahead <= self.position.number

    def apply(self, counted: Counted) -> None:
        """Apply what counts in the log, behind :attr:`position`.

        Raise :class:`DivergedError`, or :class:`fila_worker.log.records.RecordError` for a batch that can't be read.
        """
        assert self._append is None, "a leading copy is written by commits"
        position = counted.position
        assert position.offset > self.position.offset, f"{position} does not come behind {self.position}"
        self._refuse_changes()
        if not self.whole:
            if counted.kind is RecordKind.MARKER or position.number > self._ahead:
                raise self._diverged()
        elif counted.kind is RecordKind.BATCH:
            self._store(decode_changes(counted.body, position.offset), position, position.number, len(counted.body))
        elif counted.kind is RecordKind.MARKER:
            self._ahead = 0
            self.marker = counted.body if len(counted.body) <= MARKER_BYTES_MAX else b""
        self.position = position
        self._flush_if_due()

    def _diverged(self) -> DivergedError:
        ahead = f"number {self._ahead} of epoch {self.position.epoch}"
        return DivergedError(
            f"{self._path} has changes up to {ahead}, but the log has them only up to number {self.position.number}: the "
            "others were never confirmed, so the copy has to be dropped, and begun again from the log",
            details={"path": str(self._path)},
        )

    def lead(self, append: Append) -> None:
        """Be the store of the shard. :attr:`position` is the own marker in the log."""
        assert self.position.number == 0 <= self.position.offset, f"{self.position} is not a marker"
        if not self.whole:
            raise self._diverged()
        self._append = append

    def follow(self) -> None:
        """Lead no more. Raise :class:`DivergedError` if something is unconfirmed: then close the copy, and open it again."""
        if self._waiting:
            raise self._diverged()
        self._append = None

    def confirm(self, position: Position) -> None:
        """Note that all is confirmed up to the last record of a batch, or another record of this leader's epoch."""
        assert position.epoch == self.position.epoch, f"{position} is of another epoch than {self.position}"
        now_ns = perf_counter_ns() if self._waiting else 0
        while self._waiting and self._waiting[0][0] <= position.number:
            _, size, committed_ns = self._waiting.popleft()
            self.unconfirmed_bytes -= size
            self.confirm_ns.observe(now_ns - committed_ns)
        self.position = position
        self._flush_if_due()

    def fail(self, failure: StorageError) -> None:
        """Note that the unconfirmed changes will never be confirmed, or have an unknown outcome."""
        self.failure = self.failure or failure

    # --- the storage port ---------------------------------------------------------------------------------------------

    @property
    def confirmed(self) -> int:
        """The last batch that is confirmed, with all before it."""
        return self.committed - len(self._waiting)

    def new_batch(self) -> Changes:
        """Return an empty batch."""
        return Changes()

    def commit(self, batch: StoreBatch, *, sync: bool = False) -> None:
        """Append a batch to the log, and write it to the memtables; in this order, because the log may refuse a batch.

        ``sync`` changes nothing: the log decides what survives a power cut.
        """
        assert isinstance(batch, Changes)
        assert self._append is not None, f"{self._path} does not lead: only the log changes it"
        self._refuse_changes()
        started_ns = perf_counter_ns()
        data = encode_changes(batch)
        number = self._append(data)
        self.committed += 1
        self._waiting.append((number, len(data), started_ns))
        self.unconfirmed_bytes += len(data)
        try:
            self._store(batch, self.position, number, len(data))
        except StorageError as error:
            self.fail(error)  # the log has a batch that the copy has not
            raise
        self._commit_ns.observe(perf_counter_ns() - started_ns)
        self._commit_changes.observe(len(batch))

    def push(self) -> bool:
        """Return whether all is confirmed; the rest is on its way."""
        return not self._waiting

    def _store(self, changes: Changes, position: Position, ahead: int, size: int) -> None:
        """Write changes and the position in one write."""
        batch = WriteBatch(raw_mode=True)
        changes.apply(batch, self._handles)
        batch.put(POSITION, _packed(position, ahead) + self.marker, self._handles.state)
        self._write(batch)
        self._ahead = ahead
        self.taken_bytes += size
        self._buffered += size + CHANGE_BYTES * len(changes)

    def ready_to_pin(self, families: Sequence[Family]) -> bool:
        """Return whether the write buffers of some families are small. Else flush as soon as nothing is unconfirmed."""
        large = self._readers_to_flush(families)
        if large and self._running is None:
            self._asked = True
            self._flush_if_due()
        return not large

    def pin(self, families: Sequence[Family]) -> Pin:
        """Return some families as of this moment.

        The write buffers of that moment get further writes until nothing is unconfirmed and all are flushed.
        """
        pin = self._new_pin(families)
        self._asked = True
        self._flush_if_due()
        return pin

    def tidy(self) -> None:
        """Begin to rewrite files without removed data. :meth:`tend` continues it after a flush."""
        if self._tidying is None and not self._tidy_wanted:
            self._asked = self._tidy_wanted = True
            self._flush_if_due()

    # --- flushes ------------------------------------------------------------------------------------------------------

    @property
    def flush_due(self) -> bool:
        """Whether a flush begins as soon as nothing is unconfirmed."""
        limits = self._limits
        return (
            self._asked
            or self._buffered >= limits.bytes
            or self._age_ms >= limits.age_ms
            or self.position.offset - self.flushed.offset >= limits.records
        )

    @property
    def _age_ms(self) -> int:
        return 0 if self._since_ms is None else self._now_ms - self._since_ms

    @property
    def wants_pause(self) -> bool:
        """Whether the owner should neither commit nor apply anything until this is False.

        Under load there may always be something unconfirmed, and then nothing can be flushed.
        """
        if self._buffered >= self._limits.pause_bytes:
            return bool(self._waiting) or self._asked or self._flush_runs()
        overdue = self._pressing or self._age_ms >= self._limits.pause_age_ms
        return overdue and bool(self._waiting)

    @property
    def flushing(self) -> bool:
        """Whether a flush is under way, or waits for the one before, or for the confirmation of what was committed."""
        self._flush_if_due()
        return self._asked or self._flush_runs()

    def flush(self) -> None:
        """Write all memtables to files, in RocksDB's own threads, as soon as nothing is unconfirmed. Pause for it."""
        self._asked = self._pressing = True
        self._flush_if_due()

    def tend(self, now_ms: int) -> None:
        """Begin a flush that is due, and continue those under way."""
        self._now_ms = now_ms
        if self._buffered and self._since_ms is None:
            self._since_ms = now_ms
        self._flush_runs()
        self._flush_if_due()
        if self._tidying is not None and self._tidying.step():
            self._tidying = None

    def _flush_if_due(self) -> None:
        if self.flush_due and not self._waiting and self.failure is None and not self._flush_runs():
            self._begin_flush()

    def _flush_runs(self) -> bool:
        """Return whether a flush is under way. Take in its end."""
        state = self._readers["state"]
        if self._running is None:
            return False
        if figure(state, "num-immutable-mem-table"):
            if figure(self._db, "background-errors"):  # it counts those of all families
                self.fail(StorageError(f"RocksDB could not flush {self._path}: see {self._path / 'LOG'}, and open it again"))
            return self.failure is None
        self.flushed, self._running = self._running, None
        if self._tidy_wanted:
            self._tidying, self._tidy_wanted = Tidying(self._readers.values()), False
        return False

    def _begin_flush(self) -> None:
        """Replace all memtables, and write the old ones to files."""
        assert not self._waiting, "what is not confirmed must not reach the disk"
        batch = WriteBatch(raw_mode=True)
        batch.put(POSITION, _packed(self.position, self._ahead) + self.marker, self._handles.state)
        batch.put(b"", _FILLING, self._default)
        batch.delete(b"", self._default)
        try:
            self._write(batch)
            self._write(WriteBatch(raw_mode=True))  # before it, RocksDB replaces the memtables
        except StorageError as error:
            self.fail(error)
            raise
        self._running = self.position
        self._buffered, self._since_ms = 0, None
        self._asked = self._pressing = False

    def _refuse_changes(self) -> None:
        """Raise :class:`StorageError` after a failure, and before the memtables are so large that RocksDB flushes them."""
        if self.failure is not None:
            raise self.failure
        if self._buffered > BUFFERED_BYTES_MAX:
            raise StorageError(
                f"{self._path} has {self._buffered:,} bytes in memory, more than {BUFFERED_BYTES_MAX:,}: they can't be "
                "flushed before they are confirmed; pause as long as the copy wants it"
            )

    def checkpoint(self, path: Path) -> None:
        """Make a copy in a new directory, at :attr:`position`, of hard links: some ms right after a flush, else the time of a
        flush.

        Raise :class:`StorageError` if something is unconfirmed: call :meth:`flush`, and pause until ``flushing`` is False.
        """
        if self._waiting or not self.whole:
            raise StorageError(
                f"a checkpoint of {self._path} would have what is not confirmed ({len(self._waiting)} batches): pause until "
                "it is"
            )
        self._flush_to_the_end()  # RocksDB's own flush for a checkpoint misses what was written during another one
        super().checkpoint(path)

    def close(self) -> None:
        """Release the directory. Flush first, if all is confirmed and no flush has failed; the rest is lost, as by a kill."""
        if not self._waiting and self.failure is None:
            with suppress(StorageError):  # a disk that refuses: the log has the rest
                self._flush_to_the_end()
        self._leave()

    def _flush_to_the_end(self) -> None:
        """Flush, and return when nothing is in memory only."""
        self._wait_for_flush()
        if self.position != self.flushed:
            self._begin_flush()
            self._wait_for_flush()

    def _wait_for_flush(self) -> None:
        while self._flush_runs():
            sleep(0.001)
        if self.failure is not None:
            raise self.failure

    def _leave(self) -> None:
        self._stop()
        self._append = None
        del self._default
        self._release(flush=False)


_ADVICE: Final = "remove the directory, and let this host copy the shard again from a checkpoint and the log"


def _packed(position: Position, ahead: int) -> bytes:
    return _POSITION.pack(position.offset, position.epoch, position.number, *position.before, ahead)
