"""The storage port on RocksDB with its own write-ahead log.

One log write per batch, synced only with ``durability="fsync"``: without it a batch survives the end of any process, with it
a power cut, too. A worker syncs in a thread (:mod:`fila_worker.log.local`). :mod:`fila_worker.storage.options` has the
options.
"""

from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from threading import Thread
from time import perf_counter_ns

from rocksdict import Rdict, WriteBatch

from fila_proto_zmq.errors import StorageError
from fila_worker.core.store import Families, Family, Pin, StoreBatch
from fila_worker.log.local import GroupLog, PlainLog
from fila_worker.log.port import Log
from fila_worker.storage.database import Database, failure
from fila_worker.storage.options import SharedMemory, database_options, family_options


class RocksStore(Database):
    """A :class:`fila_worker.core.store.Store` in one directory, locked by this process while it is open."""

    def __init__(
        self, path: Path, *, fsync: bool = False, memory: SharedMemory | None = None, wake: Callable[[], None] | None = None
    ) -> None:
        """``fsync``: whether each batch survives a power cut. ``wake``: called in another thread when batches are confirmed;
        None: a commit returns when its batch is."""
        memory = memory or SharedMemory()
        super().__init__(path, database_options(memory), {name: family_options(memory, name) for name in Families._fields})
        self._tidying: Thread | None = None
        self._flushing: Thread | None = None
        self._log: Log = PlainLog(self._sync, every=fsync) if wake is None else GroupLog(self._sync, wake, every=fsync)

    def new_batch(self) -> StoreBatch:
        """Return an empty batch: RocksDB's own, whose methods are the port's."""
        return WriteBatch(raw_mode=True)

    def commit(self, batch: StoreBatch, *, sync: bool = False) -> None:
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

    def push(self) -> bool:
        """Confirm all commits, now or soon. Return whether they are confirmed by now."""
        return self._log.push()

    def _sync(self) -> None:
        """Sync RocksDB's log, in any thread, during further writes."""
        try:
            self._db.flush_wal(sync=True)
        except Exception as cause:
            raise failure(self._path, "a sync", cause) from cause

    def ready_to_pin(self, families: Sequence[Family]) -> bool:
        """Return whether the write buffers of some families are small. Large ones are flushed: 30 MiB in some 100 ms."""
        large = self._readers_to_flush(families)
        for reader in large:
            if not reader.property_int_value("rocksdb.num-immutable-mem-table"):  # else it is being flushed
                reader.flush(False)
        return not large

    def pin(self, families: Sequence[Family]) -> Pin:
        """Return some families as of this moment: less than a millisecond, if :meth:`ready_to_pin` returned True.

        The write buffers of that moment get no further writes.
        """
        pin = self._new_pin(families)
        batch = self.new_batch()
        for family in families:
            batch.delete(b"", family)  # not a valid key: an empty buffer would not be replaced
        self.commit(batch)
        for family in families:
            self._reader_of[id(family)].flush(False)
        return pin

    def tidy(self) -> None:
        """Begin to rewrite the files without removed data, in a thread: RocksDB needs no lock of Python's for it.

        A gigabyte of removed messages takes some seconds; commits and reads continue meanwhile.
        """
        if self._tidying is None or not self._tidying.is_alive():
            self._tidying = Thread(target=_rewrite, args=(list(self._readers.values()),), name="tidy", daemon=True)
            self._tidying.start()

    @property
    def flushing(self) -> bool:
        """Whether :meth:`flush` is under way."""
        return self._flushing is not None and self._flushing.is_alive()

    def flush(self) -> None:
        """Begin to write all memtables to files, some 100 ms for 30 MiB, in a thread without Python's lock."""
        self._flushing = Thread(target=_flush, args=(list(self._readers.values()),), name="flush", daemon=True)
        self._flushing.start()

    def close(self) -> None:
        """Flush the log to disk and release the directory."""
        self._log.close()
        with suppress(StorageError):  # a disk that failed before: data that could not be flushed was not confirmed
            self._sync()
        if self._flushing is not None:
            self._flushing.join()
        tidies = self._tidying is not None and self._tidying.is_alive()
        if self._tidying is not None and tidies:
            self._db.cancel_all_background(True)
            self._tidying.join()
        self._release(flush=not tidies)  # the log has what is in the memtables


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
