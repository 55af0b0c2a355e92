"""Restore a backup onto a new data directory. All is written beside it, and gets its name when it is whole."""

import fcntl
import os
import shutil
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

from fila_cluster.run.backup.repository import BackupManifest, ManifestStore, Repository, ShardPart, StoredFile, Whole
from fila_cluster.run.backup.target import explained
from fila_process.files import sync_names
from fila_proto_zmq.errors import InvalidArgumentError, StorageError
from fila_worker.core.recovery import begin_anew
from fila_worker.storage.made import IDENTITY_FILE, identity_in, mark_made
from fila_worker.storage.rocks import RocksStore

DRAFT_SUFFIX: Final = ".restoring"


def restore(repository: Repository, data_dir: Path, backup: str | None = None) -> BackupManifest:
    """Restore a backup, the last one by default, to a directory that is empty or does not exist. Return its manifest.

    Each shard begins a new epoch and a new stream of transfers, so what belongs to the cluster that was copied (leases,
    fences, messages between shards) is not taken for its own. Raise :class:`FilaError`; the directory is as it was then.
    """
    path = data_dir.expanduser().absolute()
    _refuse_content(path)
    chosen = backup or repository.latest()
    if chosen is None:
        raise InvalidArgumentError(f"{repository.target.name} has no backup")
    manifest = repository.manifest(chosen)
    with explained(f"cannot restore to {path}"), draft_of(path) as draft:
        refuse_lack_of_space(draft, manifest)
        restore_files(repository, manifest.files, draft)
        _refuse_other_number(manifest, draft)  # before the shards, which are listed in that file
        for part in manifest.parts:
            _restore_shard(repository, manifest, part, draft)
        sync(draft)
        _refuse_content(path)
        draft.rename(path)
        sync_names(path.parent)
    return manifest


def _refuse_other_number(manifest: BackupManifest, data_dir: Path) -> None:
    """Raise :class:`StorageError` if the data directory does not say that it has the shards of a backup."""
    found = identity_in(data_dir).get("shards")
    if found != manifest.shards:
        says = f"no {IDENTITY_FILE} that can be read" if found is None else f"a {IDENTITY_FILE} that says {found} shards"
        raise StorageError(
            f"the backup {manifest.id} is damaged: it has {manifest.shards} shards, and {says}; use another backup"
        )


def _refuse_content(path: Path) -> None:
    with explained(f"cannot look into {path}"):
        if path.exists() and (not path.is_dir() or any(path.iterdir())):
            raise InvalidArgumentError(f"{path} is not empty: restore to a directory that is empty or does not exist")


def refuse_lack_of_space(draft: Path, manifest: Whole) -> None:
    """Raise :class:`StorageError` if the files of a manifest do not fit on the disk of a draft."""
    free_bytes = shutil.disk_usage(draft).free
    if free_bytes < manifest.size_bytes:
        raise StorageError(f"{manifest.id} has {manifest.size_bytes:,} bytes, and {draft.parent} has {free_bytes:,} free")


@contextmanager
def draft_of(path: Path) -> Iterator[Path]:
    """Make a directory beside another one, for a block; remove the rest of an interrupted restore."""
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    draft = path.with_name(path.name + DRAFT_SUFFIX)
    draft.mkdir(mode=0o700, exist_ok=True)
    holder = os.open(draft, os.O_RDONLY)
    try:
        try:
            fcntl.flock(holder, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise InvalidArgumentError(
                f"another process restores to {path} now: wait for it, or choose another place"
            ) from None
        _empty(draft)
        try:
            yield draft
        except BaseException:
            shutil.rmtree(draft, ignore_errors=True)
            raise
    finally:
        os.close(holder)


def _empty(folder: Path) -> None:
    for entry in os.scandir(folder):
        if entry.is_dir(follow_symlinks=False):
            shutil.rmtree(entry.path)
        else:
            os.unlink(entry.path)


def _restore_shard(repository: Repository, manifest: BackupManifest, part: ShardPart, draft: Path) -> None:
    folder = draft / f"shard-{part.shard:04d}"
    folder.mkdir(mode=0o700)
    restore_files(repository, part.files, folder)
    store = RocksStore(folder, fsync=True)
    try:
        begin_anew(store, part.shard, manifest.shards)
    finally:
        store.close()
    for path in folder.iterdir():
        path.chmod(0o600)  # RocksDB made some of them anew
    mark_made(folder)


def restore_files(store: ManifestStore[Any], files: Iterable[StoredFile], folder: Path) -> None:
    """Copy files from a target to a folder, and check them."""
    for file in files:
        _restore_file(store, file, folder)


def _restore_file(store: ManifestStore[Any], file: StoredFile, folder: Path) -> None:
    path = folder / file.path
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    with os.fdopen(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb") as copy:
        store.copy(file, copy.write)
        copy.flush()
        os.fsync(copy.fileno())


def sync(folder: Path) -> None:
    """Make the names in a folder and below it durable."""
    for directory, _, _ in os.walk(folder, topdown=False):
        sync_names(Path(directory))
