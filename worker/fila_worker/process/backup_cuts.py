"""Cuts of a worker's shards for a backup: made on request, kept while a client renews them, then removed.

A client asks all workers for each step, through the router, and takes the next one when all have taken it::

    begin   transfers between shards rest, memtables are flushed     until all shards are ready
    cut     a checkpoint of each shard, one a turn                   until all shards are cut
    keep    transfers continue; the client copies the files, and renews the cuts

Each step may be repeated, so no frame is essential. If a worker is restarted, its shards have not ``rested``, and the client
begins another backup. Only one backup is open at a time. A backup without renewal ends, so the number and the age of
checkpoints are bounded. A checkpoint consists of hard links, and costs disk space as soon as the shard drops the files.

A worker that starts after it was killed keeps the checkpoints that it finds for a while: the client may be copying them.
Unfinished ones have another name, and are removed.
"""

import re
import shutil
from collections.abc import Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from threading import Thread
from typing import TYPE_CHECKING, Final, Protocol, TypeAlias, runtime_checkable

from fila_proto_zmq import outages
from fila_proto_zmq.commands import BackupParts, BeginBackup, CutBackup, KeepBackup, ShardCut
from fila_proto_zmq.errors import InvalidArgumentError, OverloadedError, ShardUnavailableError, StorageError
from fila_worker.core.due_time import AT_ONCE
from fila_worker.core.effects import ClientCall
from fila_worker.core.shard import Shard
from fila_worker.process.feature import ProcessFeature

if TYPE_CHECKING:
    from fila_worker.process.shard_process import ShardProcess

FOLDER: Final = "checkpoints"
"""Below the data directory: ``checkpoints/BACKUP/shard-NNNN``."""

REST_MS: Final = 5_000
"""How long transfers rest after a request of the client, and how long its backup stays open."""
KEEP_MS_MAX: Final = 60_000
FOUND_MS: Final = 30_000
"""How long checkpoints of an earlier process are kept, unless a client renews them."""
BUFFERED_BYTES_MAX: Final = 2 * 1024 * 1024
"""Smaller memtables are not flushed before the cut begins. Each flush makes files that RocksDB merges with others soon."""

LOOK_MS: Final = 2
"""How often to check whether a shard to be cut is flushed."""

DRAFT: Final = ".tmp"
"""The end of the name of a checkpoint that RocksDB is making, or that is being removed here."""
_NAME: Final = re.compile(r"[A-Za-z0-9-]{8,64}")

BackupCommand: TypeAlias = BeginBackup | CutBackup | KeepBackup


@runtime_checkable
class Checkpointed(Protocol):
    """A store of which a checkpoint can be made."""

    @property
    def buffered_bytes(self) -> int:
        """The bytes that a checkpoint would have to flush."""

    @property
    def flushing(self) -> bool:
        """Whether a flush is under way."""

    def flush(self) -> None:
        """Begin one in the background."""

    def checkpoint(self, path: Path) -> None:
        """Copy what is committed to a new directory."""


@dataclass(slots=True)
class _Part:
    """A shard in a backup, as it was opened with ``epoch``. It holds no shard: the memory of a failed one must be freed."""

    index: int
    epoch: int
    path: Path
    prepared: bool = False
    """Whether its memtables were flushed since the backup began, or are being flushed."""
    ready: bool = False
    flushed: bool = False
    """Whether the last flush before its checkpoint has begun."""
    rested: bool = True
    size_bytes: int | None = None
    """The size of its checkpoint; None: not cut yet."""

    def prepare(self, store: Checkpointed) -> None:
        """Flush what is in memory once, in the background. Note whether that is done."""
        if self.ready or store.flushing:
            self.ready = not store.flushing
        elif self.prepared or store.buffered_bytes <= BUFFERED_BYTES_MAX:
            self.ready = True
        else:
            self.prepared = True
            store.flush()

    def wire(self) -> ShardCut:
        """Return it for the answer."""
        path = "" if self.size_bytes is None else str(self.path)
        return ShardCut(self.index, self.epoch, self.ready, self.rested, path, self.size_bytes or 0)


class BackupCuts(ProcessFeature):
    """The backup that is open at this worker, if any. ``host``: the name of this machine."""

    def __init__(self, data_dir: Path, host: str, shards: Iterable[int], now_ms: int) -> None:
        super().__init__()
        self.commands = dict.fromkeys((BeginBackup, CutBackup, KeepBackup), self._carry_out)
        self._folder = data_dir / FOLDER
        self._host = host
        self._removing: Thread | None = None
        self._backup: str | None = None
        self._until_ms = 0
        self._parts: dict[int, _Part] = {}
        self._cutting = self._resting = False
        self._failure: StorageError | None = None
        self._find({f"shard-{index:04d}": index for index in shards}, now_ms)

    # --- requests -----------------------------------------------------------------------------------------------------

    def _carry_out(self, call: ClientCall, command: BackupCommand) -> BackupParts:
        """Take a step of a backup. Raise the error that refuses it."""
        now_ms = call.now_ms
        if not _NAME.fullmatch(command.backup):
            raise InvalidArgumentError(f"{command.backup[:80]!r} is not a name of a backup: use 8 to 64 of A-Z a-z 0-9 -")
        if isinstance(command, BeginBackup):
            self.process.check_known(call)
            self._begin(command, now_ms)
        elif isinstance(command, CutBackup):
            self._cut(command, now_ms)
        else:
            self._keep(command, now_ms)
        self._look_soon()
        return BackupParts([part.wire() for part in self._parts.values()], [self._host])

    def _begin(self, command: BeginBackup, now_ms: int) -> None:
        if self._backup not in {None, command.backup}:
            left_s = max(0, self._until_ms - now_ms) / 1000
            raise OverloadedError(f"backup {self._backup} is under way: wait until it is done", retry_after=left_s)
        if self._backup is None:
            self._open(command.backup, now_ms)
        elif not self._resting:
            raise _ended(command.backup)
        self._rest_on(now_ms)
        for part, shard in self._alive():
            assert isinstance(shard.store, Checkpointed)
            part.prepare(shard.store)

    def _open(self, backup: str, now_ms: int) -> None:
        parts = {}
        for slot in self.process.slots.values():
            if slot.shard is None:
                assert slot.outage is not None
                raise outages.unavailable(slot.outage)
            if not isinstance(slot.shard.store, Checkpointed):
                raise InvalidArgumentError(f"shard {slot.index} is not on a disk: there is nothing to back up")
            path = self._folder / backup / f"shard-{slot.index:04d}"
            parts[slot.index] = _Part(slot.index, slot.shard.epoch, path)
            slot.shard.rest_transfers(now_ms + REST_MS)
        self._backup, self._parts = backup, parts
        self._cutting, self._resting, self._failure = False, True, None

    def _cut(self, command: CutBackup, now_ms: int) -> None:
        self._check_open(command.backup)
        if self._resting:  # else the request is repeated, and a later step has begun
            self._cutting = True
            self._rest_on(now_ms)

    def _keep(self, command: KeepBackup, now_ms: int) -> None:
        if not 0 <= command.for_ms <= KEEP_MS_MAX:
            raise InvalidArgumentError(f"for_ms is {command.for_ms}: use 0 to {KEEP_MS_MAX}")
        if command.for_ms == 0:
            if self._backup == command.backup:  # else it was removed already
                self._end(now_ms)
            return
        self._check_open(command.backup)
        self._go_on(now_ms)
        self._until_ms = now_ms + command.for_ms

    def _check_open(self, backup: str) -> None:
        if self._backup != backup:
            raise _ended(backup)
        if self._failure is not None:
            raise self._failure

    # --- the rest of transfers ----------------------------------------------------------------------------------------

    def _alive(self) -> Iterator[tuple[_Part, Shard]]:
        """Yield the parts whose shard was not opened again since the backup began. Mark the others as not rested."""
        for part in self._parts.values():
            shard = self.process.shards.get(part.index)
            if shard is not None and shard.epoch == part.epoch:
                yield part, shard
            else:
                part.rested = False

    def _rest_on(self, now_ms: int) -> None:
        """Extend the rest of transfers. A part whose rest ended in between has not rested."""
        self._until_ms = now_ms + REST_MS
        for part, shard in self._alive():
            part.rested = part.rested and shard.transfers_rest(now_ms)
            shard.rest_transfers(self._until_ms)

    def _go_on(self, now_ms: int) -> None:
        """End the rest of transfers, once."""
        if self._resting:
            self._resting = self._cutting = False
            for part, shard in self._alive():
                part.rested = part.rested and shard.transfers_rest(now_ms)
                shard.rest_transfers(0)

    # --- turns --------------------------------------------------------------------------------------------------------

    def attach(self, process: "ShardProcess", now_ms: int) -> None:
        """Keep the checkpoints that were found for a while."""
        super().attach(process, now_ms)
        self._look_soon()

    def _look_soon(self) -> None:
        """Set the timer after a request."""
        if self._backup is not None:
            self.timer.by(AT_ONCE if self._cutting else self._until_ms)

    def turn(self, now_ms: int) -> int | None:
        """Cut a shard if one is to be cut, as of its last commit, or end a backup that was not renewed."""
        if self._backup is None:
            return None
        if now_ms >= self._until_ms:
            self._end(now_ms)
            return None
        if self._cutting:
            self._cut_next()
        return now_ms + LOOK_MS if self._cutting else self._until_ms

    def _cut_next(self) -> None:
        uncut = ((part, shard) for part, shard in self._alive() if part.size_bytes is None and part.rested)
        found = next(uncut, None)
        if found is None:
            self._cutting = False
            return
        part, shard = found
        store = shard.store
        assert isinstance(store, Checkpointed)
        if not part.flushed:
            part.flushed = True
            store.flush()  # so the checkpoint flushes little: the writes during this short flush
        if not store.flushing:
            self._checkpoint(part, store)

    def _checkpoint(self, part: _Part, store: Checkpointed) -> None:
        try:
            part.path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            store.checkpoint(part.path)
            part.size_bytes = sum(file.stat().st_size for file in part.path.iterdir())
        except (StorageError, OSError) as error:
            self._failure = StorageError(f"no checkpoint of shard {part.index} in {part.path}: {error}")
            self._cutting = False

    # --- the end ------------------------------------------------------------------------------------------------------

    def _end(self, now_ms: int) -> None:
        self._go_on(now_ms)
        paths = [part.path for part in self._parts.values()]
        self._backup, self._parts = None, {}
        self._remove(paths)

    def _find(self, shards: dict[str, int], now_ms: int) -> None:
        """Keep the last backup that an earlier process had of these shards, and remove its others, but no other worker's."""
        names = [f"{name}{suffix}" for name in shards for suffix in ("", DRAFT)]
        found = [path for backup in _entries(self._folder) for name in names if (path := backup / name).exists()]
        whole = [path for path in found if path.name in shards]
        if whole:
            self._backup = max(path.parent.name for path in whole)
            self._until_ms = now_ms + FOUND_MS
        for path in found:
            if path in whole and path.parent.name == self._backup:
                index = shards[path.name]
                self._parts[index] = _Part(index, 0, path, rested=False, size_bytes=0)
        self._remove([path for path in found if path not in [part.path for part in self._parts.values()]])

    def _remove(self, paths: list[Path]) -> None:
        """Remove checkpoints in a thread: to free gigabytes takes the file system a while."""
        if paths:
            self._removing = Thread(
                target=_delete, args=(paths, self._folder, self._removing), name="checkpoints", daemon=True
            )
            self._removing.start()

    def close(self) -> None:
        """Remove all checkpoints: no client can renew them any more."""
        self._remove([part.path for part in self._parts.values()])
        if self._removing is not None:
            self._removing.join()


def _entries(folder: Path) -> list[Path]:
    try:
        return sorted(folder.iterdir())
    except OSError:  # it is missing, or another worker removes it at this moment
        return []


def _ended(backup: str) -> ShardUnavailableError:
    return ShardUnavailableError(
        f"backup {backup} is not open at this worker: it was not renewed in time, or the worker was restarted; begin "
        "another one"
    )


def _delete(paths: list[Path], folder: Path, before: Thread | None) -> None:
    if before is not None:
        before.join()
    for path in paths:
        draft = path.with_name(path.name.removesuffix(DRAFT) + DRAFT)
        if path != draft:
            shutil.rmtree(draft, ignore_errors=True)
            with suppress(OSError):  # it was not made
                path.rename(draft)
        shutil.rmtree(draft, ignore_errors=True)
        with suppress(OSError):  # another worker's checkpoint is still there
            path.parent.rmdir()
    with suppress(OSError):
        folder.rmdir()
