"""Take a backup: cut the cluster, copy what the target lacks, write the manifest last."""

import os
from collections.abc import Iterator
from datetime import UTC, datetime
from hashlib import sha256
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, TypeAlias

from fila_cluster.run.backup.cut import Cut, cut_of
from fila_cluster.run.backup.manifest import Manifest, ShardPart, StoredFile, new_id
from fila_cluster.run.backup.repository import Repository, Store
from fila_cluster.run.backup.target import PIECE_BYTES, explained
from fila_proto_zmq.errors import FilaError, StorageError
from fila_proto_zmq.version import VERSION

if TYPE_CHECKING:
    from fila_cluster import Client

FACTS: Final = "*.json"
"""What a data directory has beside its shards: ``fila.json``, which says how many shards there are."""
AUTH_FOLDER: Final = "auth"
"""The keys of the cluster, below its data directory."""

IMMUTABLE: Final = frozenset({".sst", ".blob"})
"""RocksDB writes such a file once."""


def take(client: "Client", repository: Repository) -> Manifest:
    """Back up a running cluster whose files are on this machine; return the new backup's manifest.

    Raise :class:`FilaError`. What was copied until then is used by the next backup, or removed by the next prune.
    """
    with repository.writing():
        began_at = datetime.now(UTC)
        copying = Copying(repository, _last_tables(repository))
        backup = new_id(began_at)
        with cut_of(client, backup) as cut:
            parts = [ShardPart(part.shard, part.epoch, copying.shard(Path(part.path), part.shard)) for part in cut.parts]
            files = copying.data_dir(cut)
        manifest = Manifest(
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

    def __init__(self, store: Store[Any], known: Tables) -> None:
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
