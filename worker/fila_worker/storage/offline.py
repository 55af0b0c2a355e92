"""A shard's database, read while no process serves it. Nothing is written.

:class:`OfflineStore` implements the reading part of the storage port. It raises an error at damaged data, as the store of a
running shard does. :func:`readable` reads around damage instead, in copies that :func:`copied` makes.
"""

import re
import shutil
from collections import deque
from collections.abc import Generator, Iterator, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, Final, TypeAlias

from rocksdict import AccessType, DBRecoveryMode, Options, Rdict, RdictIter, WriteBatch

from fila_proto_zmq.commands import StoreMetrics
from fila_proto_zmq.errors import StorageError
from fila_worker.core.keys import FIRST, LAST
from fila_worker.core.measures import CHANGES, SPAN_NS, CountedHistogram
from fila_worker.core.store import DamageError, Families, Family, Pin, StoreBatch
from fila_worker.storage.database import cannot_open, failure, scan
from fila_worker.storage.log_files import (
    ChangeRecord,
    changes_of,
    logs_of,
    manifest_of,
    overlooked_damage,
    read_manifest,
    rescued,
)
from fila_worker.storage.options import SharedMemory, database_options, family_options

_KEY_BYTES: Final = 20
_KEYS: Final = 1 << 8 * _KEY_BYTES
_PROBES_MAX: Final = 4096
"""The keys that are tried between two readable ones. A try costs 20 µs."""


class DiscardedBatch:
    """Changes that are not kept."""

    def __len__(self) -> int:
        return 0

    def put(self, key: bytes, value: bytes, family: Family, /) -> None:
        """Do nothing."""

    def delete(self, key: bytes, family: Family, /) -> None:
        """Do nothing."""

    def delete_range(self, begin: bytes, end: bytes, family: Family, /) -> None:
        """Do nothing."""


class OfflineStore:
    """A :class:`fila_worker.core.store.Store` that is only read: commits are discarded. A family that does not exist yet is
    empty.

    ``lenient``: open it also if a log or a table is damaged; :func:`readable` then finds the readable parts.
    """

    committed = confirmed = unconfirmed_bytes = 0
    failure: StorageError | None = None

    def __init__(self, path: Path, *, lenient: bool = False) -> None:
        self.path = path
        memory = SharedMemory()
        options = _options(memory, lenient=lenient)
        try:
            _refuse_missing(path)
            names = set(Rdict.list_cf(str(path), options)) & {*Families._fields}
            self._db = Rdict(
                str(path),
                options,
                column_families={name: family_options(memory, name) for name in names},
                access_type=AccessType.read_only(False),
            )
            self._readers = {name: self._db.get_column_family(name) for name in names}
        except StorageError:
            raise
        except Exception as cause:  # rocksdict raises plain Exception for everything
            raise cannot_open(path, cause) from cause
        self.families = Families(*(self._readers.get(name) for name in Families._fields))

    def new_batch(self) -> StoreBatch:
        """Return a batch that keeps nothing."""
        return DiscardedBatch()

    def commit(self, batch: StoreBatch, *, sync: bool = False) -> None:
        """Do nothing."""

    def push(self) -> bool:
        """Return True: nothing waits."""
        return True

    def get(self, key: bytes, family: Family) -> bytes | None:
        """Return one value, or None."""
        return self.get_many([key], family)[0]

    def get_many(self, keys: Sequence[bytes], family: Family) -> list[bytes | None]:
        """Return the values in the order of ``keys``."""
        if family is None:
            return [None] * len(keys)
        try:
            values: list[bytes | None] = family.get(list(keys))
        except Exception as cause:
            raise failure(self.path, "a read", cause) from cause
        return values

    def scan(self, begin: bytes, end: bytes, family: Family) -> Iterator[tuple[bytes, bytes]]:
        """Return the items of a range. It raises :class:`StorageError` where a read fails."""
        return iter(()) if family is None else scan(self.path, family, begin, end)

    def ready_to_pin(self, families: Sequence[Family]) -> bool:
        """Return False: pins are not supported."""
        return False

    def pin(self, families: Sequence[Family]) -> Pin:
        """Raise :class:`NotImplementedError`: nothing changes while it is open."""
        raise NotImplementedError

    def tidy(self) -> None:
        """Do nothing."""

    def metrics(self) -> StoreMetrics:
        """Return empty metrics."""
        return StoreMetrics(CountedHistogram(SPAN_NS).wire(), CountedHistogram(CHANGES).wire(), 0, 0, 0, stalled=False)

    def close(self) -> None:
        """Release the files."""
        self.families = Families(*[None] * len(Families._fields))
        with suppress(Exception):  # nothing was written that could be lost
            for reader in self._readers.values():
                reader.close()
            self._readers.clear()
            self._db.close()


def _refuse_missing(path: Path) -> None:
    current = path / "CURRENT"
    if not current.exists():
        details = {"path": str(path), "file": current.name}
        raise DamageError(f"{current} is missing: restore the directory from a backup", details=details)


def _options(memory: SharedMemory, *, lenient: bool) -> Options:
    options = database_options(memory)
    options.create_if_missing(False)
    options.create_missing_column_families(False)
    if lenient:
        options.set_paranoid_checks(False)
        options.set_wal_recovery_mode(DBRecoveryMode.skip_any_corrupted_record())
    return options


# --- reading around damage --------------------------------------------------------------------------------------------


Gap: TypeAlias = tuple[bytes, bytes]
"""Where nothing can be read: from a key up to, not including, another one."""


def readable(family: Family, gaps: list[Gap]) -> Iterator[tuple[bytes, bytes]]:
    """Yield the readable items of a family, in order. Add the gaps between them to ``gaps``, each before the item behind it.

    RocksDB's iterators end at a damaged block, and do not report where the next one begins. An iterator from the end
    backwards finds where the last one ends, and seeks between find the readable blocks between two damaged ones.
    """
    at: bytes = FIRST
    while family is not None:
        at, more = yield from _run(family, at)
        if not more:
            break
        following = _next_readable(family, at)
        gaps.append((at, LAST if following is None else following))
        if following is None:
            break
        at = following


def _run(family: Family, begin: bytes) -> Generator[tuple[bytes, bytes], None, tuple[bytes, bool]]:
    """Yield items from ``begin`` on. Return the first key that was not reached, and whether there may be more."""
    iterator: RdictIter = family.iter()
    key = begin
    try:
        iterator.seek(begin)
        while iterator.valid():
            key = iterator.key()
            yield key, iterator.value()
            key += b"\0"
            iterator.next()
        iterator.status()
    except Exception:  # rocksdict raises nothing else
        return key, True
    return key, False


def _next_readable(family: Family, after: bytes) -> bytes | None:
    """Return the smallest key found behind ``after`` from which items can be read; None: not found."""
    low, high = _number(after), _last_number(family)
    found = _seek(family, _key(high + 1))
    if high <= low:
        return found
    gaps = deque([(low, high + 1)])
    for _ in range(_PROBES_MAX):
        if not gaps:
            break
        begin, end = gaps.popleft()  # the halves of larger gaps come before those of smaller ones
        middle = (begin + end) // 2
        if middle == begin or (found is not None and begin >= _number(found)):
            continue
        key = _seek(family, _key(middle))
        if key is None:
            gaps += [(begin, middle), (middle, end)]
            continue
        edge, key = _edge(family, begin, middle, key)
        found = key if found is None else min(found, key)
        gaps.append((begin, edge))
    return found


def _edge(family: Family, begin: int, end: int, key: bytes) -> tuple[int, bytes]:
    """Return where the readable stretch around ``end`` begins, and its first key. ``key``: the first from ``end``."""
    while end - begin > 1:
        middle = (begin + end) // 2
        before = _seek(family, _key(middle))
        if before is None:
            begin = middle
        else:
            end, key = middle, before
    return begin, key


def _last_number(family: Family) -> int:
    """Return the last key of a family, as a number; where that can't be read, the last one of all tables."""
    iterator: RdictIter = family.iter()
    with suppress(Exception):
        iterator.seek_to_last()
        if iterator.valid():
            return _number(iterator.key())
    ends = [bytes(file["end_key"]) for file in family.live_files() if file["end_key"] is not None]
    return max((_number(end) for end in ends if len(end) == _KEY_BYTES), default=0)


def _seek(family: Family, key: bytes) -> bytes | None:
    """Return the first key from ``key`` on; None: not found, or not readable."""
    iterator: RdictIter = family.iter()
    with suppress(Exception):
        iterator.seek(key)
        if iterator.valid():
            iterator.value()
            found: bytes = iterator.key()
            return found
    return None


def _number(key: bytes) -> int:
    return int.from_bytes(key[:_KEY_BYTES].ljust(_KEY_BYTES, b"\0"), "big")


def _key(number: int) -> bytes:
    return number.to_bytes(_KEY_BYTES, "big")


# --- copies -----------------------------------------------------------------------------------------------------------


def copied(path: Path, scratch: Path, *, without_damaged: bool = False) -> OfflineStore:
    """Return a copy of a database in the new directory ``scratch``, with all that can be read of its logs.

    ``without_damaged``: RocksDB makes a new manifest, and leaves out the tables that it cannot read from end to end. Messages
    that were removed may come back then, because removals are lost with the tables that had them.

    Tables are linked where the file system allows it, as RocksDB never changes one. Raise :class:`StorageError`.
    """
    try:
        scratch.mkdir(mode=0o700, parents=True)
        for file in path.iterdir():
            if file.is_file() and file.suffix != ".log" and not file.name.startswith("LO"):
                _link_or_copy(file, scratch / file.name)
        _name_manifest(scratch)
        if without_damaged:
            (scratch / _ROCKSDICT_FILE).unlink(missing_ok=True)
            Rdict.repair(str(scratch), _copy_options(SharedMemory()))
        _apply_logs(path, scratch)
        return OfflineStore(scratch, lenient=True)
    except StorageError:
        raise
    except Exception as cause:  # rocksdict raises plain Exception for everything
        raise failure(path, "to copy it", cause) from cause


_ROCKSDICT_FILE: Final = "rocksdict-config.json"
"""A file of rocksdict. It only repeats what the options say."""


def _name_manifest(scratch: Path) -> None:
    """Write the newest manifest into ``CURRENT``, if the one named there is missing."""
    manifest = manifest_of(scratch)
    if manifest is not None:
        (scratch / "CURRENT").write_text(f"{manifest.name}\n")


def _copy_options(memory: SharedMemory) -> Options:
    options = database_options(memory)
    options.set_paranoid_checks(False)
    options.set_disable_auto_compactions(True)
    return options


def _link_or_copy(file: Path, target: Path) -> None:
    if file.suffix in {".sst", ".blob"}:
        with suppress(OSError):
            target.hardlink_to(file)
            return
    shutil.copyfile(file, target)


def _apply_logs(path: Path, scratch: Path) -> None:
    """Write what the logs of a database hold to its copy."""
    first, names = _log_families(path)
    memory = SharedMemory()
    families = {name: family_options(memory, name) for name in Families._fields}
    for options in families.values():
        options.set_disable_auto_compactions(True)
    database = Rdict(str(scratch), _copy_options(memory), column_families=families)
    handles = {number: database.get_column_family_handle(name) for number, name in names.items() if name in families}
    try:
        for log in logs_of(path, first):
            for record in rescued(log):
                batch = WriteBatch(raw_mode=True)
                for change in changes_of(record):
                    _repeat(change, handles, batch)
                database.write(batch)
    finally:
        handles.clear()
        database.close()


def _repeat(change: ChangeRecord, handles: dict[int, Any], batch: WriteBatch) -> None:
    handle = handles.get(change.family)
    if handle is None:
        return
    if change.end is not None:
        batch.delete_range(change.key, change.end, handle)
    elif change.value is None:
        batch.delete(change.key, handle)
    else:
        batch.put(change.key, change.value, handle)


def trustworthy(path: Path) -> bool:
    """Return whether the manifest of a database is whole, so that it names all tables."""
    return all(damage.file.suffix == ".log" for damage in overlooked_damage(path))


def _log_families(path: Path) -> tuple[int, dict[int, str]]:
    """Return the first log that is needed, and the families by their numbers in logs.

    If the manifest is lost, the file with the options lists the families in the order of their numbers.
    """
    manifest_path = manifest_of(path)
    if manifest_path is not None:
        manifest = read_manifest(manifest_path)
        if {*manifest.families.values()} >= {*Families._fields}:
            return manifest.first_log, manifest.families
    for options in sorted(path.glob("OPTIONS-*"), reverse=True):
        names = _FAMILY_NAME.findall(options.read_text(errors="replace"))
        if {*names} >= {*Families._fields}:
            return 0, dict(enumerate(names))
    return 0, dict(enumerate(["default", *Families._fields]))


_FAMILY_NAME: Final = re.compile(r'\[CFOptions "(.+?)"\]')
