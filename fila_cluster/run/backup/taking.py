"""Take a backup: cut the cluster, copy what the target lacks, write the manifest last."""

import os
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from hashlib import sha256
from pathlib import Path
from threading import Event, Thread
from typing import TYPE_CHECKING, Any, Final, TypeAlias

from fila_cluster.run.backup.repository import BackupManifest, ManifestStore, Repository, ShardPart, StoredFile, new_id
from fila_cluster.run.backup.target import PIECE_BYTES, explained
from fila_proto_zmq.commands import BackupParts, BeginBackup, CutBackup, KeepBackup, ShardCut
from fila_proto_zmq.errors import FilaError, RequestTimeoutError, ShardUnavailableError, StorageError
from fila_proto_zmq.version import VERSION

if TYPE_CHECKING:
    from fila_cluster import Client

ASK_AGAIN_S: Final = 0.02
"""Between two requests of the same step."""
STEP_S: Final = 30.0
"""How long a step may take: to be ready, or to be cut."""
KEEP_MS: Final = 30_000
RENEW_S: Final = 3.0
TRIES: Final = 20
PAUSE_S: Final = 1.0
"""Before the next try: a worker that was restarted during a cut voids it."""


@dataclass(frozen=True, slots=True)
class Cut:
    """The checkpoints of all shards. Everything that was confirmed before ``cut_at`` is in them."""

    cut_at: datetime
    parts: list[ShardCut]

    @property
    def data_dir(self) -> Path:
        """The data directory of shard 0: ``DATA/checkpoints/BACKUP/shard-0000`` is its checkpoint."""
        return Path(self.parts[0].path).parents[2]

    def refuse_elsewhere(self, hosts: list[str]) -> None:
        """Raise :class:`StorageError` if some of the files are not on this machine."""
        missing = next((part.path for part in self.parts if not Path(part.path, "CURRENT").is_file()), None)
        if missing is not None:
            raise StorageError(
                f"there is no {missing} here: the workers' files are on {', '.join(hosts)}; run `fila-cluster backup` there, "
                "as the user who runs the cluster"
            )


@contextmanager
def cut_of(client: "Client", backup: str) -> Iterator[Cut]:
    """Cut all shards, and keep the checkpoints for a block.

    Raise :class:`FilaError` if the cluster does not answer, or if its files are not on this machine. The end of the block
    raises the error by which checkpoints were lost meanwhile.
    """
    cut, attempt = _cut(client, backup)
    keeping = _Keeping(client, attempt)
    try:
        yield cut
        keeping.check()
    finally:
        keeping.stop()
        _release(client, attempt)


def _cut(client: "Client", backup: str) -> tuple[Cut, str]:
    """Return a cut, and the name under which the workers have it."""
    number = 0
    while True:
        number += 1
        attempt = f"{backup}-{number}"
        try:
            return _try(client, attempt), attempt
        except FilaError as error:
            _release(client, attempt)
            if number == TRIES or not error.retryable:
                raise
            time.sleep(max(PAUSE_S, min(error.retry_after or 0, STEP_S)))
        except BaseException:
            _release(client, attempt)
            raise


def _try(client: "Client", attempt: str) -> Cut:
    _until(client, BeginBackup(attempt), "ready")
    cut_at = datetime.now(UTC)
    _until(client, CutBackup(attempt), "path")
    parts: BackupParts = client.request(KeepBackup(attempt, KEEP_MS))
    _check_rested(parts)
    cut = Cut(cut_at, parts.shards)
    cut.refuse_elsewhere(parts.hosts)
    return cut


def _until(client: "Client", command: BeginBackup | CutBackup, field: str) -> None:
    """Repeat a step until all shards have taken it."""
    give_up_at = time.monotonic() + STEP_S
    while True:
        parts: BackupParts = client.request(command)
        _check_rested(parts)
        if all(getattr(part, field) for part in parts.shards):
            return
        if time.monotonic() > give_up_at:
            late = [part.shard for part in parts.shards if not getattr(part, field)]
            raise RequestTimeoutError(f"shards {late} were not ready for a backup in {STEP_S:g} s: is their disk slow?")
        time.sleep(ASK_AGAIN_S)


def _check_rested(parts: BackupParts) -> None:
    void = [part.shard for part in parts.shards if not part.rested]
    if void:
        raise ShardUnavailableError(f"shards {void} were restarted, or paused, while a backup of them was made: try again")


def _release(client: "Client", attempt: str) -> None:
    """Ask the workers to remove the checkpoints now. Otherwise they remove them later."""
    with suppress(FilaError):
        client.request(KeepBackup(attempt, 0))


class _Keeping:
    """Renews the checkpoints in a thread."""

    def __init__(self, client: "Client", attempt: str) -> None:
        self._client = client
        self._attempt = attempt
        self._stopped = Event()
        self._lost: FilaError | None = None
        self._thread = Thread(target=self._renew, name="keep-backup", daemon=True)
        self._thread.start()

    def _renew(self) -> None:
        heard_at = time.monotonic()
        while not self._stopped.wait(RENEW_S):
            try:
                self._client.request(KeepBackup(self._attempt, KEEP_MS))
                heard_at = time.monotonic()
            except FilaError as error:
                if time.monotonic() - heard_at > KEEP_MS / 1000:
                    self._lost = error

    def check(self) -> None:
        """Raise the error by which the checkpoints were lost, if they were."""
        if self._lost is not None:
            raise StorageError(f"the checkpoints were removed before all was copied: {self._lost}; begin the backup again")

    def stop(self) -> None:
        """Renew no more."""
        self._stopped.set()
        self._thread.join()


FACTS: Final = "*.json"
"""Files of a data directory beside its shards: ``fila.json``, with the number of shards."""
AUTH_FOLDER: Final = "auth"
"""The keys of the cluster, below its data directory."""

IMMUTABLE: Final = frozenset({".sst", ".blob"})
"""RocksDB writes such a file once."""


def take(client: "Client", repository: Repository) -> BackupManifest:
    """Back up a running cluster whose files are on this machine, or raise :class:`FilaError`; return the backup's manifest."""
    with repository.writing():
        began_at = datetime.now(UTC)
        copying = Copying(repository, _last_tables(repository))
        backup = new_id(began_at)
        with cut_of(client, backup) as cut:
            parts = [ShardPart(part.shard, part.epoch, copying.shard(Path(part.path), part.shard)) for part in cut.parts]
            files = copying.data_dir(cut)
        manifest = BackupManifest(
            id=backup,
            began_at=began_at,
            cut_at=cut.cut_at,
            ended_at=datetime.now(UTC),
            version=VERSION,
            shards=len(parts),
            parts=parts,
            files=files,
            copied_bytes=copying.copied_bytes,
        )
        repository.add(manifest)
        return manifest


Tables: TypeAlias = dict[tuple[int, str, int, int], str]
"""The hashes of tables by shard, name, size and time."""


def tables_of(shard: int, files: list[StoredFile]) -> Tables:
    """Return those among the files of a shard."""
    return {
        (shard, file.path, file.size_bytes, file.modified_ns): file.sha256
        for file in files
        if Path(file.path).suffix in IMMUTABLE
    }


class Copying:
    """Brings files to a target that lacks them. ``known``: tables that need not be read again."""

    def __init__(self, store: ManifestStore[Any], known: Tables) -> None:
        self.copied_bytes = 0
        self._store, self._known = store, known
        self._stored = store.stored()

    def shard(self, folder: Path, shard: int) -> list[StoredFile]:
        """Copy the files of a checkpoint."""
        return [self._copy(folder / name, name, shard) for name in _names(folder)]

    def data_dir(self, cut: Cut) -> list[StoredFile]:
        """Copy the files of the data directory itself."""
        folder, auth = cut.data_dir, cut.data_dir / AUTH_FOLDER
        names = sorted(path.name for path in folder.glob(FACTS))
        names += [f"{AUTH_FOLDER}/{name}" for name in (_names(auth) if auth.is_dir() else [])]
        return [self._copy(folder / name, name) for name in names]

    def _copy(self, source: Path, name: str, shard: int = -1) -> StoredFile:
        """Copy a file, unless it is there."""
        with explained(f"cannot read {source}"):
            facts = source.stat()
            hash_ = self._known.get((shard, name, facts.st_size, facts.st_mtime_ns)) or _hash(source)
        if self._stored.get(hash_) != facts.st_size:
            self._store.put(source, hash_)
            self._stored[hash_] = facts.st_size
            self.copied_bytes += facts.st_size
        return StoredFile(name, facts.st_size, hash_, facts.st_mtime_ns)


def _last_tables(repository: Repository) -> Tables:
    """Return the tables in the last backup."""
    latest = repository.latest()
    try:
        last = repository.manifest(latest) if latest else None
    except FilaError:
        return {}  # a damaged one: all files are read again
    tables: Tables = {}
    for part in last.parts if last else []:
        tables |= tables_of(part.shard, part.files)
    return tables


def _names(folder: Path) -> list[str]:
    """Return the files below a folder, relative to it. Sockets and the like are left out."""
    with explained(f"cannot list {folder}"):
        return sorted(str(path.relative_to(folder)) for path in _walk(folder) if path.is_file())


def _walk(folder: Path) -> Iterator[Path]:
    for directory, _, files in os.walk(folder, onerror=_raise):
        yield from (Path(directory, name) for name in files)


def _raise(error: OSError) -> None:
    raise StorageError(f"cannot list {error.filename}: {error.strerror}")


def _hash(source: Path) -> str:
    digest = sha256()
    with source.open("rb") as file:
        while piece := file.read(PIECE_BYTES):
            digest.update(piece)
    return digest.hexdigest()
