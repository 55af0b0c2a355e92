"""The storage port on RocksDB, through rocksdict in raw mode.

Tuned for a queue, whose data is written once, read once in order and deleted soon:

* one write-ahead log write per batch, synced only with ``durability="fsync"``: without it a batch survives the end of any
  process, with it a power cut too. A worker syncs in a thread (:mod:`fila_worker.log.local`);
* memory is bounded by one write-buffer budget and one small block cache, shared by all families of the process;
* a reader never scans from before its cursor, where consumed messages have left tombstones (a seek over 150,000 of them
  costs 110 ms, from a cursor 5 µs). Small families also compact files full of tombstones; ``messages`` does not, because
  there every flush of a busy queue is such a file, and would rewrite the whole backlog below it;
* payloads of 16 KiB and more live in blob files, so that compaction does not copy them again and again;
* damaged data is refused, never skipped: a log that is damaged in its middle does not open (one that ends in a torn
  record, as a crash leaves it, does), and a scan that meets a bad block raises.

RocksDB reports all failures in one kind of exception with a text. :func:`failure` turns it into an error that names the
shard's directory and the file. It separates damage, which does not go away, from failures that may pass, as with a full disk.
"""

import os
import re
from collections.abc import Callable, Iterator, Sequence
from contextlib import nullcontext, suppress
from pathlib import Path
from threading import Thread
from time import perf_counter_ns
from typing import cast
from weakref import WeakSet

from rocksdict import (
    BlockBasedOptions,
    Cache,
    Checkpoint,
    DBCompressionType,
    DBRecoveryMode,
    Options,
    Rdict,
    RdictIter,
    ReadOptions,
    WriteBatch,
    WriteBufferManager,
    WriteOptions,
)

from fila_proto_zmq.commands import StoreMetrics
from fila_proto_zmq.errors import StorageError
from fila_worker.core.measures import CHANGES, SPAN_NS, Histogram
from fila_worker.core.store import Batch, DamageError, Families, Family, InUseError, Pin, UnfitStoreError
from fila_worker.log.local import GroupLog, PlainLog
from fila_worker.log.port import Log

WRITE_BUFFERS_BYTES = 64 * 1024 * 1024
"""Memtables of all shards of this process together."""
BLOCK_CACHE_BYTES = 32 * 1024 * 1024
LOG_BYTES_MAX = 128 * 1024 * 1024
"""Write-ahead log kept before the oldest memtable is flushed: what a restart may have to replay."""
BLOB_BYTES_MIN = 16 * 1024
MESSAGE_BLOCK_BYTES = 16 * 1024
"""The piece of a table that is read at once.

Messages are read in order: a scan of 1 KB messages costs 1.2 µs each, with RocksDB's usual 4 KiB 2.0, and the index takes a quarter. A
single message costs the same up to this size, and twice as much with 32 KiB.
"""
LEVEL_BYTES_BASE = 512 * 1024 * 1024
FILES_BEFORE_COMPACTION = 12
"""Flushed memtables that may lie unsorted.

Messages that a queue holds briefly are gone before a compaction rewrites them, which saves a quarter of the CPU of an
enqueue. The price is a few more files to search for messages that stay.
"""

MEMTABLE_BLOOM_RATIO = 0.02
"""The part of a memtable for a Bloom filter of the ids that are looked up and mostly absent: 0.3 µs instead of 1 to 2."""


class SharedMemory:
    """The memory that all databases of one process share."""

    def __init__(self) -> None:
        self.cache = Cache(BLOCK_CACHE_BYTES)
        self.write_buffers = WriteBufferManager(WRITE_BUFFERS_BYTES, False)


PINNED_BYTES_MAX = 2 * 1024 * 1024
"""The part of a write buffer that a pin may keep in memory; a larger buffer should be flushed first."""


class RocksPin:
    """An iterator over each of some families, made at one moment: RocksDB keeps what an iterator may still reach.

    Rejected: a snapshot. It would pin all families at once, and rocksdict's scans of a snapshot show later changes too.
    """

    def __init__(self, path: Path, readers: dict[int, Rdict]) -> None:
        self._path = path
        self._iterators: dict[int, RdictIter] = {family: reader.iter() for family, reader in readers.items()}

    def scan(self, begin: bytes, family: Family) -> Iterator[tuple[bytes, bytes]]:
        """Return the items from ``begin`` on: 5 µs, then 0.5 µs each."""
        return walk(self._path, self._iterators[id(family)], begin)

    def close(self) -> None:
        """Drop the iterators."""
        self._iterators.clear()


class RocksStore:
    """A :class:`fila_worker.core.store.Store` in one directory, locked by this process while it is open."""

    def __init__(
        self,
        path: Path,
        *,
        fsync: bool = False,
        memory: SharedMemory | None = None,
        wake: Callable[[], None] | None = None,
    ) -> None:
        """``fsync``: whether each batch survives a power cut. ``wake``: called in another thread when batches are confirmed;
        None: a commit returns when its batch is."""
        memory = memory or SharedMemory()
        self._path = path
        try:
            path.mkdir(mode=0o700, parents=True, exist_ok=True)
            _make_private(path)
            _refuse_remains(path)
            self._db = Rdict(
                str(path),
                database_options(memory),
                column_families={name: family_options(memory, name) for name in Families._fields},
            )
        except StorageError:
            raise
        except (FileExistsError, NotADirectoryError, PermissionError) as cause:
            raise UnfitStoreError(f"cannot use {path} for a shard's database: {cause.strerror}; see what is there") from cause
        except Exception as cause:  # rocksdict raises plain Exception for everything
            raise cannot_open(path, cause) from cause
        self._readers = {name: self._db.get_column_family(name) for name in Families._fields}
        self.families = Families(*(self._db.get_column_family_handle(name) for name in Families._fields))
        self._reader_of = dict(zip(map(id, self.families), self._readers.values(), strict=True))
        self._pins: WeakSet[RocksPin] = WeakSet()
        self._tidying: Thread | None = None
        self._flushing: Thread | None = None
        self._log: Log = PlainLog(self._sync, every=fsync) if wake is None else GroupLog(self._sync, wake, every=fsync)
        self._write_options = WriteOptions()
        self._commit_ns, self._commit_changes = Histogram(SPAN_NS), Histogram(CHANGES)

    def new_batch(self) -> Batch:
        """Return an empty batch: RocksDB's own, whose methods are the port's."""
        return WriteBatch(raw_mode=True)

    def commit(self, batch: Batch, *, sync: bool = False) -> None:
        """Write a batch to RocksDB's log and the memtables, in one write, and append it to the log."""
        assert isinstance(batch, WriteBatch)
        started_ns = perf_counter_ns()
        try:
            changes, size = len(batch), batch.size_in_bytes()
            self._db.write(batch, self._write_options)
        except Exception as cause:
            raise failure(self._path, "a write", cause) from cause
        self._log.append(size, sync=sync)
        self._commit_ns.observe(perf_counter_ns() - started_ns)
        self._commit_changes.observe(changes)

    @property
    def committed(self) -> int:
        """The number of the last batch."""
        return self._log.appended

    @property
    def confirmed(self) -> int:
        """The last batch that is durable, with all before it."""
        return self._log.confirmed

    @property
    def failure(self) -> StorageError | None:
        """The failure of a sync, after which no batch is confirmed."""
        return self._log.failure

    @property
    def unconfirmed_bytes(self) -> int:
        """The size of the batches that are not confirmed."""
        return self._log.unconfirmed_bytes

    def push(self) -> None:
        """Have all that was committed confirmed, now or soon."""
        self._log.push()

    def _sync(self) -> None:
        """Sync RocksDB's log, in any thread: writes go on meanwhile."""
        try:
            self._db.flush_wal(sync=True)
        except Exception as cause:
            raise failure(self._path, "a sync", cause) from cause

    def get(self, key: bytes, family: Family) -> bytes | None:
        """Return one value, or None."""
        try:
            value: bytes | None = self._reader_of[id(family)].get(key)
        except Exception as cause:
            raise failure(self._path, "a read", cause) from cause
        return value

    def get_many(self, keys: Sequence[bytes], family: Family) -> list[bytes | None]:
        """Return the values in the order of ``keys``: 1.3 µs each."""
        try:
            return cast("list[bytes | None]", self._reader_of[id(family)].get(list(keys)))
        except Exception as cause:
            raise failure(self._path, "a read", cause) from cause

    def scan(self, begin: bytes, end: bytes, family: Family) -> Iterator[tuple[bytes, bytes]]:
        """Return the items of a range as of this moment: 7 µs, then 0.3 µs each."""
        return scan(self._path, self._reader_of[id(family)], begin, end)

    def ready_to_pin(self, families: Sequence[Family]) -> bool:
        """Return whether the write buffers of some families are small.

        Large ones are flushed in the background, some 100 ms for 30 MiB.

        An iterator keeps the write buffer that exists, and what is written to it later: 64 MiB a pin was measured.
        """
        large = [reader for family in families if _buffered(reader := self._reader_of[id(family)]) > PINNED_BYTES_MAX]
        for reader in large:
            if not reader.property_int_value("rocksdb.num-immutable-mem-table"):  # else it is being flushed
                reader.flush(False)
        return not large

    def pin(self, families: Sequence[Family]) -> Pin:
        """Return some families as of this moment: less than a millisecond, if :meth:`ready_to_pin` returned True.

        The write buffers of that moment get no further writes.
        """
        readers = {id(family): self._reader_of[id(family)] for family in families}
        pin = RocksPin(self._path, readers)
        batch = self.new_batch()
        for family in families:
            batch.delete(b"", family)  # not a valid key: an empty buffer would not be replaced
        self.commit(batch)
        for reader in readers.values():
            reader.flush(False)
        self._pins.add(pin)
        return pin

    def tidy(self) -> None:
        """Begin to rewrite the files without what was removed, in a thread: RocksDB needs no lock of Python's for it.

        A gigabyte of removed messages takes some seconds; commits and reads go on meanwhile.
        """
        if self._tidying is None or not self._tidying.is_alive():
            self._tidying = Thread(target=_rewrite, args=(list(self._readers.values()),), name="tidy", daemon=True)
            self._tidying.start()

    @property
    def buffered_bytes(self) -> int:
        """What memtables take: 1 MiB at least for each family with a change since the last flush."""
        return self._property("cur-size-all-mem-tables")

    @property
    def flushing(self) -> bool:
        """Whether :meth:`flush` is under way."""
        return self._flushing is not None and self._flushing.is_alive()

    def flush(self) -> None:
        """Begin to write all memtables to files, some 100 ms for 30 MiB, in a thread: RocksDB needs no lock of Python's for it."""
        self._flushing = Thread(target=_flush, args=(list(self._readers.values()),), name="flush", daemon=True)
        self._flushing.start()

    def checkpoint(self, path: Path) -> None:
        """Make a copy of what is committed in a new directory, of hard links.

        It flushes the memtables itself, and holds Python's lock meanwhile: 4 to 12 ms right after a :meth:`flush`, more than 100 ms
        for 10 MiB. RocksDB writes it under another name first, so it is there as a whole or not at all.
        """
        try:
            Checkpoint(self._db).create_checkpoint(str(path))
        except Exception as cause:
            raise failure(self._path, "a checkpoint", cause) from cause

    def metrics(self) -> StoreMetrics:
        """Return the times and sizes of commits, and RocksDB's own figures: 60 µs."""
        return StoreMetrics(
            self._commit_ns.wire(),
            self._commit_changes.wire(),
            self._property("cur-size-all-mem-tables"),
            self._property("total-sst-files-size") + self._property("total-blob-file-size"),
            self._property("estimate-pending-compaction-bytes"),
            stalled=any(map(self._property, ("is-write-stopped", "actual-delayed-write-rate"))),
        )

    def _property(self, name: str) -> int:
        """Return the sum of a property over all families."""
        return sum(reader.property_int_value(f"rocksdb.{name}") or 0 for reader in self._readers.values())

    def close(self) -> None:
        """Flush the log to disk and release the directory."""
        for pin in self._pins:
            pin.close()  # an iterator holds the lock, too
        self._log.close()
        with suppress(StorageError):  # a disk that failed before: data that could not be flushed was not confirmed
            self._sync()
        if self._flushing is not None:
            self._flushing.join()
        cancelled = self._tidying is not None and self._tidying.is_alive()
        if self._tidying is not None and cancelled:
            self._db.cancel_all_background(True)
            self._tidying.join()
        self._reader_of.clear()
        # After the cancellation RocksDB refuses to flush memtables; the log has what is in them.
        with suppress(Exception) if cancelled else nullcontext():
            for reader in self._readers.values():
                reader.close()
        self._readers.clear()
        del self.families  # the lock is held as long as a handle lives
        with suppress(Exception) if cancelled else nullcontext():
            self._db.close()


def _rewrite(readers: list[Rdict]) -> None:
    """Write all memtables to files, so that no log is needed for them, and merge the files of each family."""
    with suppress(Exception):  # a disk that refuses, which the next commit will report, or the end of the process
        for reader in readers:
            reader.flush(True)
        for reader in readers:
            reader.compact_range(None, None)


def _flush(readers: list[Rdict]) -> None:
    """Write all memtables to files."""
    with suppress(Exception):  # a disk that refuses, which the next commit will report
        for reader in readers:
            reader.flush(True)


def _buffered(reader: Rdict) -> int:
    return reader.property_int_value("rocksdb.cur-size-all-mem-tables") or 0


def scan(path: Path, reader: Rdict, begin: bytes, end: bytes) -> Iterator[tuple[bytes, bytes]]:
    """Return the items of a range of a family. Raise :class:`StorageError` where a read fails.

    ``items`` is the fast iterator, but it just ends when a read fails. So a second iterator, made at the same moment,
    goes on where the first one ended: it finds nothing and has no error, or it raises the failure.
    """
    options = ReadOptions()
    options.set_iterate_lower_bound(begin)
    options.set_iterate_upper_bound(end)
    items = cast("Iterator[tuple[bytes, bytes]]", reader.items(from_key=begin, read_opt=options))
    return _to_the_end(path, items, reader.iter(options), begin, end, options)


def _to_the_end(
    path: Path, items: Iterator[tuple[bytes, bytes]], rest: RdictIter, begin: bytes, *_bounds: object
) -> Iterator[tuple[bytes, bytes]]:
    """Yield the items, and then what ``rest`` still finds behind the last of them.

    ``_bounds`` keeps the bounds alive as long as the scan. RocksDB only points to them, and would stop at whatever their
    memory contains later.
    """
    item: tuple[bytes, bytes] | None = None
    for item in items:  # the last one is needed
        yield item
    yield from walk(path, rest, begin if item is None else item[0] + b"\0")


def walk(path: Path, iterator: RdictIter, begin: bytes) -> Iterator[tuple[bytes, bytes]]:
    """Yield the items from ``begin`` on to the iterator's end; raise :class:`StorageError` if it ends at a failed read."""
    iterator.seek(begin)
    while iterator.valid():
        yield iterator.key(), iterator.value()
        iterator.next()
    try:
        iterator.status()
    except Exception as cause:
        raise failure(path, "a read", cause) from cause


_DAMAGE = re.compile(r"corruption|checksum|no such file", re.IGNORECASE)
"""RocksDB's words for failures that a repetition does not cure.

What it calls an I/O error (a full disk, no permission) may pass.
"""

_FILE = re.compile(r"\b(\d{6,}\.(?:sst|log|blob|ldb)|MANIFEST-\d+|CURRENT|OPTIONS-\d+|IDENTITY)\b")


def failure(path: Path, what: str, cause: Exception) -> StorageError:
    """Return the error for what RocksDB refused. Its text names the shard's directory, and the file if RocksDB named it."""
    text = str(cause)
    damaged = _DAMAGE.search(text) is not None
    found = _FILE.search(text) or (_log_dropped(path) if damaged else None)
    file = path / found[1] if found else path
    details = {"path": str(path), "file": found[1] if found else None}
    if damaged:
        return DamageError(f"{file} is damaged: {text}", details=details)
    return StorageError(f"RocksDB refused {what} in {file}: {text}", details=details)


def _log_dropped(path: Path) -> re.Match[str] | None:
    """Return which write-ahead log RocksDB could not read: only its own journal has that name."""
    with suppress(OSError), (path / "LOG").open(errors="replace") as journal:
        for line in journal:
            if "dropping" in line and (found := _FILE.search(line)):
                return found
    return None


def _make_private(path: Path) -> None:
    """Take the directory and its files away from other users, whichever process made them: payloads are in log and tables."""
    path.chmod(0o700)
    for entry in os.scandir(path):
        with suppress(FileNotFoundError):  # another process has the database open, and removes a file that it needs no more
            os.chmod(entry.path, 0o600)


def _refuse_remains(path: Path) -> None:
    """Raise :class:`DamageError` for a database without its ``CURRENT``: RocksDB would take it for a new one."""
    if not (path / "CURRENT").exists() and (remains := next(path.glob("MANIFEST-*"), None)):
        raise DamageError(
            f"{path / 'CURRENT'} is missing beside {remains.name}: restore the directory from a backup",
            details={"path": str(path), "file": "CURRENT"},
        )


def cannot_open(path: Path, cause: Exception) -> StorageError:
    """Return the error for a database that RocksDB does not open."""
    if "lock" in str(cause).lower() and "block" not in str(cause).lower():
        return InUseError(
            f"the shard's database in {path} is in use: stop the process that has it open, or use another data directory"
        )
    return failure(path, "to open", cause)


def database_options(memory: SharedMemory) -> Options:
    """Return the options of a shard's database."""
    options = family_options(memory, "default")
    options.create_if_missing(True)
    options.create_missing_column_families(True)
    options.set_paranoid_checks(True)
    options.set_wal_recovery_mode(DBRecoveryMode.tolerate_corrupted_tail_records())
    options.set_max_total_wal_size(LOG_BYTES_MAX)
    options.set_max_background_jobs(2)
    options.set_keep_log_file_num(4)
    options.set_max_log_file_size(4 * 1024 * 1024)
    options.set_stats_dump_period_sec(0)
    options.set_write_buffer_manager(memory.write_buffers)
    return options


def family_options(memory: SharedMemory, name: str) -> Options:
    """Return the options of one of its column families."""
    options = Options(raw_mode=True)
    blocks = BlockBasedOptions()
    blocks.set_block_cache(memory.cache)
    blocks.set_cache_index_and_filter_blocks(True)
    blocks.set_bloom_filter(10, False)
    if name == "messages":
        blocks.set_block_size(MESSAGE_BLOCK_BYTES)
    options.set_block_based_table_factory(blocks)
    options.set_write_buffer_size(WRITE_BUFFERS_BYTES // 2)
    options.set_max_write_buffer_number(3)
    options.set_level_zero_file_num_compaction_trigger(FILES_BEFORE_COMPACTION)
    options.set_level_zero_slowdown_writes_trigger(3 * FILES_BEFORE_COMPACTION)
    options.set_level_zero_stop_writes_trigger(5 * FILES_BEFORE_COMPACTION)
    options.set_max_bytes_for_level_base(LEVEL_BYTES_BASE)
    if name != "messages":
        options.add_compact_on_deletion_collector_factory(10_000, 5_000, 0.5)
    options.set_compression_type(DBCompressionType.lz4() if name != "messages" else DBCompressionType.none())
    if name == "dedup":
        options.set_memtable_prefix_bloom_ratio(MEMTABLE_BLOOM_RATIO)
        options.set_memtable_whole_key_filtering(True)
    if name in {"messages", "delayed", "outbox"}:
        options.set_enable_blob_files(True)
        options.set_min_blob_size(BLOB_BYTES_MIN)
        options.set_enable_blob_gc(True)
    return options
