"""Take a backup: cut the cluster, copy what the target lacks, write the manifest last."""

import os
from collections.abc import Iterator
from datetime import UTC, datetime
from hashlib import sha256
from pathlib import Path
from typing import TYPE_CHECKING, Final

from fila_cluster.backup.cut import Cut, cut_of
from fila_cluster.backup.manifest import Manifest, ShardPart, StoredFile, new_id
from fila_cluster.backup.repository import Repository
from fila_cluster.backup.target import PIECE_BYTES, explained
from fila_proto_zmq.commands import ShardCut
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
        copying = _Copying(repository)
        backup = new_id(began_at)
        with cut_of(client, backup) as cut:
            parts = [ShardPart(part.shard, part.epoch, copying.shard(part)) for part in cut.parts]
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


class _Copying:
    """Brings files to a repository that lacks them."""

    def __init__(self, repository: Repository) -> None:
        self.copied_bytes = 0
        self._repository = repository
        self._stored = repository.stored()
        self._known = _last_tables(repository)

    def shard(self, part: ShardCut) -> list[StoredFile]:
        """Copy the files of a checkpoint."""
        folder = Path(part.path)
        return [self._copy(folder / name, name, part.shard) for name in _names(folder)]

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
            self._repository.put(source, hash_)
            self._stored[hash_] = facts.st_size
            self.copied_bytes += facts.st_size
        return StoredFile(name, facts.st_size, hash_, facts.st_mtime_ns)


def _last_tables(repository: Repository) -> dict[tuple[int, str, int, int], str]:
    """Return the hashes of the tables in the last backup, by shard, name, size and time."""
    latest = repository.latest()
    try:
        last = repository.manifest(latest) if latest else None
    except FilaError:
        return {}  # a damaged one: all files are read again
    return {
        (part.shard, file.path, file.size_bytes, file.modified_ns): file.sha256
        for part in (last.parts if last else [])
        for file in part.files
        if Path(file.path).suffix in IMMUTABLE
    }


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
