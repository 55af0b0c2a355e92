"""A shard's database: the part that :class:`fila_worker.storage.rocks.RocksStore` and
:class:`fila_worker.storage.replica.Replica` share.

It opens, reads and closes RocksDB, through rocksdict in raw mode. They define commits, and when these are durable.

* A reader never scans from before its cursor, where consumed messages have left tombstones: a seek over 150,000 of them costs
  110 ms, from a cursor 5 µs.
* A scan that meets a bad block raises.

*Failures.* RocksDB reports all failures in one kind of exception with a text. :func:`failure` turns it into an error that
names the shard's directory and the file, and separates lasting damage from failures that may pass, as with a full disk.

*Space.* RocksDB's ``compact_range`` flushes the memtables first, at an unknown moment. While memtables must not be flushed,
:class:`Tidying` provokes RocksDB's own rewriting instead: for a while each flushed file is rewritten at once, together with
the files below that it overlaps.
"""

import os
import re
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Final, cast
from weakref import WeakSet

from rocksdict import Checkpoint, Options, Rdict, RdictIter, ReadOptions, WriteBatch, WriteOptions

from fila_proto_zmq.commands import StoreMetrics
from fila_proto_zmq.errors import StorageError
from fila_worker.core.measures import CHANGES, SPAN_NS, CountedHistogram
from fila_worker.core.store import DamageError, Families, Family, InUseError, UnfitStoreError
from fila_worker.storage.options import FILES_BEFORE_COMPACTION

_DAMAGE = re.compile(r"corruption|checksum|no such file", re.IGNORECASE)
"""RocksDB's words for failures that stay. Its I/O errors (a full disk, no permission) may pass."""

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


def cannot_open(path: Path, cause: Exception) -> StorageError:
    """Return the error for a database that RocksDB does not open."""
    if "lock" in str(cause).lower() and "block" not in str(cause).lower():
        return InUseError(
            f"the shard's database in {path} is in use: stop the process that has it open, or use another data directory"
        )
    return failure(path, "to open", cause)


PINNED_BYTES_MAX = 2 * 1024 * 1024
"""The part of a write buffer that a pin may keep in memory; a larger buffer should be flushed first."""


class RocksPin:
    """An iterator over each of some families, made at one moment: RocksDB keeps what an iterator may still reach.

    Rejected: a snapshot. It would pin all families at once, and rocksdict's scans of a snapshot show later changes, too.
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


class Database:
    """A shard's database, locked by this process while it is open."""

    def __init__(self, path: Path, options: Options, families: dict[str, Options], *, numbered: bool = False) -> None:
        """``numbered``: whether the handle of a family is its place in :class:`Families`, not RocksDB's own handle."""
        self._path = path
        try:
            path.mkdir(mode=0o700, parents=True, exist_ok=True)
            _make_private(path)
            _refuse_remains(path)
            self._db = Rdict(str(path), options, column_families=families)
        except StorageError:
            raise
        except (FileExistsError, NotADirectoryError, PermissionError) as cause:
            raise UnfitStoreError(f"cannot use {path} for a shard's database: {cause.strerror}; see what is there") from cause
        except Exception as cause:  # rocksdict raises plain Exception for everything
            raise cannot_open(path, cause) from cause
        self._readers = {name: self._db.get_column_family(name) for name in Families._fields}
        self._handles = Families(*(self._db.get_column_family_handle(name) for name in Families._fields))
        self.families = Families(*range(len(self._handles))) if numbered else self._handles
        self._reader_of = dict(zip(map(id, self.families), self._readers.values(), strict=True))
        self._pins: WeakSet[RocksPin] = WeakSet()
        self._write_options = WriteOptions()
        self._commit_ns, self._commit_changes = CountedHistogram(SPAN_NS), CountedHistogram(CHANGES)

    def _write(self, batch: WriteBatch) -> None:
        try:
            self._db.write(batch, self._write_options)
        except Exception as cause:
            raise failure(self._path, "a write", cause) from cause

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

    def _readers_to_flush(self, families: Sequence[Family]) -> list[Rdict]:
        """Return those whose write buffers are too large for a pin, which keeps them with later writes: 64 MiB was seen."""
        readers = [self._reader_of[id(family)] for family in families]
        return [reader for reader in readers if figure(reader, "cur-size-all-mem-tables") > PINNED_BYTES_MAX]

    def _new_pin(self, families: Sequence[Family]) -> RocksPin:
        pin = RocksPin(self._path, {id(family): self._reader_of[id(family)] for family in families})
        self._pins.add(pin)
        return pin

    @property
    def buffered_bytes(self) -> int:
        """The size of the memtables: 1 MiB at least for each family with a change since the last flush."""
        return self._sum("cur-size-all-mem-tables")

    def checkpoint(self, path: Path) -> None:
        """Make a copy of the committed data in a new directory, of hard links.

        It flushes the memtables, and holds Python's lock meanwhile: 4 to 12 ms right after a flush, more than 100 ms for 10
        MiB. RocksDB writes it under another name first, so it is there as a whole or not at all.
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
            self._sum("cur-size-all-mem-tables"),
            self._sum("total-sst-files-size") + self._sum("total-blob-file-size"),
            self._sum("estimate-pending-compaction-bytes"),
            stalled=any(map(self._sum, ("is-write-stopped", "actual-delayed-write-rate"))),
        )

    def _sum(self, name: str) -> int:
        """Return the sum of a property over all families."""
        return sum(figure(reader, name) for reader in self._readers.values())

    def _release(self, *, flush: bool) -> None:
        """Close RocksDB and remove the tables that it leaves behind. ``flush``: have all of its changes in tables first."""
        for pin in self._pins:
            pin.close()  # an iterator holds the lock, too
        try:
            if flush:
                for reader in self._readers.values():
                    reader.flush(True)
        finally:
            self._db.cancel_all_background(True)
            leftovers = self._leftovers()
            self._reader_of.clear()
            with suppress(Exception):  # it flushes each family, and refuses that now
                self._close_readers()
            self._readers.clear()
            del self.families, self._handles  # a handle keeps the lock
            with suppress(Exception):
                self._db.close()
            for table in leftovers:
                with suppress(OSError):  # the next opening removes it
                    table.unlink(missing_ok=True)

    def _leftovers(self) -> list[Path]:
        """Return the tables that RocksDB was rewriting or has rewritten, which a check would take for lost.

        Empty after an error in the background: the manifest may then name more than RocksDB takes into account.
        """
        if self._sum("background-errors"):
            return []
        live = {Path(table["name"]).name for table in self._db.live_files()}
        return [table for table in self._path.glob("*.sst") if table.name not in live]

    def _close_readers(self) -> None:
        for reader in self._readers.values():
            reader.close()


def figure(reader: Rdict, name: str) -> int:
    """Return one of RocksDB's own figures of a family, 0 if it has none."""
    return reader.property_int_value(f"rocksdb.{name}") or 0


def scan(path: Path, reader: Rdict, begin: bytes, end: bytes) -> Iterator[tuple[bytes, bytes]]:
    """Return the items of a range of a family. Raise :class:`StorageError` where a read fails.

    ``items`` is the fast iterator, but it just ends when a read fails. So a second iterator, made at the same moment, reads
    on from there: it finds nothing, or it raises the failure.
    """
    options = ReadOptions()
    options.set_iterate_lower_bound(begin)
    options.set_iterate_upper_bound(end)
    items = cast("Iterator[tuple[bytes, bytes]]", reader.items(from_key=begin, read_opt=options))
    return _to_the_end(path, items, reader.iter(options), begin, end, options)


def _to_the_end(
    path: Path, items: Iterator[tuple[bytes, bytes]], rest: RdictIter, begin: bytes, *_bounds: object
) -> Iterator[tuple[bytes, bytes]]:
    """Yield the items, then the rest behind the last of them. ``_bounds`` is kept because RocksDB only points to them."""
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


_TRIGGER: Final = "level0_file_num_compaction_trigger"


class Tidying:
    """Rewrites the flushed files of some families, one family after the other."""

    def __init__(self, readers: Iterable[Rdict]) -> None:
        self._left = [reader for reader in readers if figure(reader, "num-files-at-level0")]
        self._current: Rdict | None = None

    def step(self) -> bool:
        """Take a step of some 8 ms; return whether all is done. RocksDB's own threads do the work."""
        if self._current is not None:
            if figure(self._current, "compaction-pending") or figure(self._current, "num-running-compactions"):
                return False
            self._set(self._current, FILES_BEFORE_COMPACTION)
        self._current = self._left.pop() if self._left else None
        if self._current is not None:
            self._set(self._current, 1)
        return self._current is None

    @staticmethod
    def _set(reader: Rdict, files: int) -> None:
        with suppress(Exception):  # a disk that refuses, which the next flush will report
            reader.set_options({_TRIGGER: str(files)})
