"""The backups at a target, and their manifests: JSON files that are written when all other files are there.

::

    backups/ID.json      the manifest of a backup: it is there when the backup is whole
    files/AB/ABCDEF…     the files of all backups by their SHA-256, each once
    writing/ID.json      the process that writes now: a backup or a prune

Files are never changed. A file without a manifest that names it belongs to an interrupted backup, or to one that was pruned.
``prune`` removes such files, and must not run beside a backup, which may be about to name them. So each of the two first puts
a mark into ``writing``, then looks for other marks, and gives way. That needs no lock, which object stores do not have. A
mark is renewed while its process lives, and a dead one is ignored.
"""

import os
import re
import secrets
import socket
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from hashlib import sha256
from pathlib import Path, PurePosixPath
from re import Pattern
from threading import Event, Thread
from typing import BinaryIO, ClassVar, Final, Generic, Protocol, TypeVar

import msgspec
import psutil

from fila_cluster.run.backup.target import PIECE_BYTES, Target
from fila_proto_zmq.errors import FilaError, InvalidArgumentError, OverloadedError, StorageError

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
    """Bytes that were not at the target before."""

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


def encode(manifest: object) -> bytes:
    """Return the JSON text of a manifest."""
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


BACKUPS: Final = "backups"
FILES: Final = "files"
WRITING: Final = "writing"

RENEW_S: Final = 60.0
"""How often a mark is renewed."""
DEAD_S: Final = 900.0
"""A mark of another machine that was not renewed for so long is of a dead process. The clocks of both must agree that far."""


class WriterMark(msgspec.Struct):
    """A process that writes to the target. Times are Unix seconds."""

    host: str
    pid: int
    started_s: float
    """When the process was started: ids of processes are used again."""
    renewed_s: float

    @property
    def lives(self) -> bool:
        """Whether the process may still write."""
        if self.host != socket.gethostname():
            return time.time() - self.renewed_s < DEAD_S
        try:
            return abs(psutil.Process(self.pid).create_time() - self.started_s) < 1.0
        except psutil.NoSuchProcess:
            return False


class Whole(Protocol):
    """A manifest: it is written when all files that it names are there."""

    @property
    def id(self) -> str:
        """Its name. Names sort as what they name follows each other."""

    @property
    def every_file(self) -> list[StoredFile]:
        """All files."""

    @property
    def size_bytes(self) -> int:
        """The size of all files."""


_M = TypeVar("_M", bound=Whole)


class ManifestStore(Generic[_M]):
    """Manifests of one kind at a target, and the files that they name."""

    what: ClassVar[str]
    """The kind of a manifest's content, for people."""
    folder: ClassVar[str]
    """Of the manifests."""
    names: ClassVar[Pattern[str]]

    def __init__(self, target: Target) -> None:
        self.target = target

    def _decode(self, content: bytes, name: str) -> _M:
        """Return the manifest in a file; raise :class:`StorageError` if it is damaged."""
        raise NotImplementedError

    # --- manifests ----------------------------------------------------------------------------------------------------

    def ids(self) -> list[str]:
        """Return the names of all manifests, the oldest first."""
        names = (name.removeprefix(f"{self.folder}/").removesuffix(".json") for name in self.target.sizes(self.folder))
        return sorted(name for name in names if self.names.fullmatch(name))

    def manifest(self, name: str) -> _M:
        """Return a manifest. Raise :class:`InvalidArgumentError` if it does not exist."""
        content = self.target.read(self._path(name)) if self.names.fullmatch(name) else None
        if content is None:
            last = ", ".join(self.ids()[-3:]) or "none"
            raise InvalidArgumentError(f"{self.target.name} has no {self.what} {name!r}; the last ones are: {last}")
        return self._decode(content, f"{self.target.name}/{self._path(name)}")

    def latest(self) -> str | None:
        """Return the last name; None if there is none."""
        return max(self.ids(), default=None)

    def all(self) -> list[_M]:
        """Return all manifests, the oldest first."""
        return [self.manifest(name) for name in self.ids()]

    def add(self, manifest: _M) -> None:
        """Write the manifest of what is there with all files."""
        self.target.write(self._path(manifest.id), encode(manifest))

    def _path(self, name: str) -> str:
        return f"{self.folder}/{name}.json"

    # --- files --------------------------------------------------------------------------------------------------------

    def stored(self) -> dict[str, int]:
        """Return the sizes of the files there, by their hashes. Drafts are among them, under their names."""
        return {name.rpartition("/")[2]: size for name, size in self.target.sizes(FILES).items()}

    def put(self, source: Path, hash_: str) -> None:
        """Copy a local file there."""
        self.target.put(source, _file(hash_))

    def copy(self, file: StoredFile, write: Callable[[bytes], object]) -> None:
        """Pass on a file in pieces, and check it. Raise :class:`StorageError` if it is missing or not what was stored."""
        digest, size_bytes = sha256(), 0
        with self.target.open(_file(file.sha256)) as source:
            for piece in _pieces(source, f"{self.target.name}/{_file(file.sha256)}"):
                digest.update(piece)
                size_bytes += len(piece)
                write(piece)
        if (digest.hexdigest(), size_bytes) != (file.sha256, file.size_bytes):
            raise StorageError(
                f"{self.target.name}/{_file(file.sha256)} ({file.path}) is damaged: it has {size_bytes} bytes with hash "
                f"{digest.hexdigest()}, and was stored with {file.size_bytes} bytes: use another {self.what}"
            )

    def verify(self, manifests: Iterable[_M]) -> dict[str, list[str]]:
        """Read all files of some manifests, each once; return the errors by manifest."""
        faults: dict[str, str] = {}
        checked: set[str] = set()
        wrong: dict[str, list[str]] = {}
        for manifest in manifests:
            for file in manifest.every_file:
                if file.sha256 not in checked:
                    checked.add(file.sha256)
                    try:
                        self.copy(file, len)
                    except FilaError as fault:
                        faults[file.sha256] = str(fault)
            found = {file.sha256 for file in manifest.every_file} & faults.keys()
            wrong[manifest.id] = sorted(faults[each] for each in found)
        return wrong

    # --- pruning ------------------------------------------------------------------------------------------------------

    def prune(self, keep: int) -> tuple[list[str], int, int]:
        """Remove all but the last ``keep`` manifests, and all files that none of those names. Return the names of the removed
        ones, and how many files were removed with how many bytes."""
        with self.writing():
            ids = self.ids()
            old, kept = ids[: max(0, len(ids) - keep)], ids[max(0, len(ids) - keep) :]
            # Before anything is removed: a manifest that cannot be read raises here.
            needed = {file.sha256 for name in kept for file in self.manifest(name).every_file}
            for name in old:
                self.target.delete(self._path(name))
            unneeded = {
                name: size for name, size in self.target.sizes(FILES).items() if name.rpartition("/")[2] not in needed
            }
            for name in unneeded:
                self.target.delete(name)
            return old, len(unneeded), sum(unneeded.values())

    # --- one writer at a time -----------------------------------------------------------------------------------------

    @contextmanager
    def writing(self) -> Iterator[None]:
        """Be the only writer. Raise :class:`OverloadedError` if there is another one."""
        name = f"{WRITING}/{socket.gethostname()}-{os.getpid()}-{time.monotonic_ns()}.json"
        self._renew(name)
        ended = Event()
        renewing = Thread(target=self._renew_until, args=(name, ended), name="renew", daemon=True)
        renewing.start()
        try:
            self._refuse_others(name)
            yield
        finally:
            ended.set()
            renewing.join()
            self.target.delete(name)

    def _renew(self, name: str) -> None:
        process = psutil.Process()
        mark = WriterMark(socket.gethostname(), process.pid, process.create_time(), time.time())
        self.target.write(name, msgspec.json.encode(mark))

    def _renew_until(self, name: str, ended: Event) -> None:
        while not ended.wait(RENEW_S):
            try:
                self._renew(name)
            except StorageError:  # the writer itself finds out whether the target is gone
                continue

    def _refuse_others(self, own: str) -> None:
        for name in self.target.sizes(WRITING):
            content = self.target.read(name) if name != own else None
            if content is None:
                continue  # its own, or one that has just ended
            try:
                mark = msgspec.json.decode(content, type=WriterMark)
            except msgspec.MsgspecError:
                continue  # a draft that was left behind
            if mark.lives:
                raise OverloadedError(
                    f"process {mark.pid} on {mark.host} writes to {self.target.name} now: try again when it is done"
                )
            self.target.delete(name)


class Repository(ManifestStore[BackupManifest]):
    """The backups at one target."""

    what, folder, names = "backup", BACKUPS, NAME

    def _decode(self, content: bytes, name: str) -> BackupManifest:
        return decode(content, name)


def _file(hash_: str) -> str:
    return f"{FILES}/{hash_[:2]}/{hash_}"


def _pieces(source: BinaryIO, name: str) -> Iterator[bytes]:
    while True:
        try:
            piece = source.read(PIECE_BYTES)
        except Exception as error:  # libraries for object stores have their own kinds
            raise StorageError(f"cannot read {name}: {error}") from error
        if not piece:
            return
        yield piece
