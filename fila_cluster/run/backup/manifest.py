"""The manifest of a backup: a JSON file, written when all files are at the target."""

import re
import secrets
from datetime import UTC, datetime
from pathlib import PurePosixPath
from typing import Final

import msgspec

from fila_proto_zmq.errors import StorageError

FORMAT: Final = 1

NAME: Final = re.compile(r"\d{8}T\d{9}Z-[0-9a-f]{6}")
"""Date, time with milliseconds, and six digits by chance."""


class StoredFile(msgspec.Struct, frozen=True):
    """A file: its path in its directory, and the hash under which the target has it."""

    path: str
    size_bytes: int
    sha256: str
    modified_ns: int = 0
    """When the cluster wrote it: a table with the same name, size and time is not read again."""


class ShardPart(msgspec.Struct, frozen=True):
    """A shard's database. ``epoch``: of the opening in which it was cut."""

    shard: int
    epoch: int
    files: list[StoredFile]


class BackupManifest(msgspec.Struct, frozen=True, kw_only=True):
    """A whole backup. ``files``: of the data directory itself."""

    format: int = FORMAT
    id: str
    began_at: datetime
    cut_at: datetime
    """Everything that was confirmed before this time is in it."""
    ended_at: datetime
    version: str
    """Of fila-cluster."""
    shards: int
    parts: list[ShardPart]
    files: list[StoredFile]
    copied_bytes: int = 0
    """What was not at the target before."""

    @property
    def every_file(self) -> list[StoredFile]:
        """All files, those of the shards too."""
        return [*self.files, *(file for part in self.parts for file in part.files)]

    @property
    def size_bytes(self) -> int:
        """The size of a restored data directory."""
        return sum(file.size_bytes for file in self.every_file)


def new_id(now: datetime) -> str:
    """Return a name that sorts by time."""
    moment = now.astimezone(UTC)
    return f"{moment:%Y%m%dT%H%M%S}{moment.microsecond // 1000:03d}Z-{secrets.token_hex(3)}"


def encode(manifest: BackupManifest) -> bytes:
    """Return the JSON text."""
    return msgspec.json.format(msgspec.json.encode(manifest), indent=1) + b"\n"


def decode(content: bytes, name: str) -> BackupManifest:
    """Return the manifest in a JSON text; :class:`StorageError` if it is damaged, newer, or names a foreign place."""
    try:
        manifest = msgspec.json.decode(content, type=BackupManifest)
    except msgspec.MsgspecError as cause:
        raise StorageError(f"the manifest {name} is damaged: {cause}; use another backup") from None
    if manifest.format != FORMAT:
        raise StorageError(
            f"the manifest {name} has format {manifest.format}, this version reads {FORMAT}: upgrade fila-cluster"
        )
    if manifest.shards < 1 or sorted(part.shard for part in manifest.parts) != list(range(manifest.shards)):
        raise StorageError(
            f"the manifest {name} is damaged: it does not have each of {manifest.shards} shards once; use another backup"
        )
    refuse_foreign(manifest.every_file, name)
    return manifest


def refuse_foreign(files: list[StoredFile], name: str) -> None:
    """Raise :class:`StorageError` if a file of the manifest ``name`` has a path out of its directory, or no hash."""
    for file in files:
        path = PurePosixPath(file.path)
        if path.is_absolute() or ".." in path.parts or not path.parts or not re.fullmatch("[0-9a-f]{64}", file.sha256):
            raise StorageError(f"the manifest {name} is damaged: a file is called {file.path!r} with hash {file.sha256!r}")
