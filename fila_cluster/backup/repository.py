"""The backups at a target.

::

    backups/ID.json      the manifest of a backup: it is there when the backup is whole
    files/AB/ABCDEF…     the files of all backups by their SHA-256, each once
    writing/ID.json      the process that writes now: a backup or a prune

Files are never changed. A file without a manifest that names it belongs to an interrupted backup, or to one that was pruned.
``prune`` removes such files, and must not run beside a backup, which may be about to name them. So each of the two first puts a mark
into ``writing``, then looks for other marks, and gives way. That needs no lock, which object stores do not have. A mark is renewed
while its process lives, and a dead one is ignored.
"""

import os
import socket
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from hashlib import sha256
from pathlib import Path
from threading import Event, Thread
from typing import BinaryIO, Final

import msgspec
import psutil

from fila_cluster.backup.manifest import NAME, Manifest, StoredFile, decode, encode
from fila_cluster.backup.target import PIECE_BYTES, Target
from fila_proto_zmq.errors import FilaError, InvalidArgumentError, OverloadedError, StorageError

BACKUPS: Final = "backups"
FILES: Final = "files"
WRITING: Final = "writing"

RENEW_S: Final = 60.0
"""How often a mark is renewed."""
DEAD_S: Final = 900.0
"""A mark of another machine that was not renewed for so long is of a dead process. The clocks of both must agree that far."""


class Mark(msgspec.Struct):
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


class Repository:
    """The backups at one target."""

    def __init__(self, target: Target) -> None:
        self.target = target

    # --- backups ------------------------------------------------------------------------------------------------------

    def ids(self) -> list[str]:
        """Return the names of the whole backups, the oldest first."""
        names = (name.removeprefix(f"{BACKUPS}/").removesuffix(".json") for name in self.target.sizes(BACKUPS))
        return sorted(name for name in names if NAME.fullmatch(name))

    def manifest(self, backup: str) -> Manifest:
        """Return a backup's manifest. Raise :class:`InvalidArgumentError` if there is no such backup."""
        content = self.target.read(_manifest(backup)) if NAME.fullmatch(backup) else None
        if content is None:
            last = ", ".join(self.ids()[-3:]) or "none"
            raise InvalidArgumentError(f"{self.target.name} has no backup {backup!r}; the last ones are: {last}")
        return decode(content, f"{self.target.name}/{_manifest(backup)}")

    def latest(self) -> str | None:
        """Return the name of the last backup; None if there is none."""
        return max(self.ids(), default=None)

    def all(self) -> list[Manifest]:
        """Return all whole backups, the oldest first."""
        return [self.manifest(backup) for backup in self.ids()]

    def add(self, manifest: Manifest) -> None:
        """Write the manifest of a backup whose files are all there."""
        self.target.write(_manifest(manifest.id), encode(manifest))

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
                f"{digest.hexdigest()}, and was stored with {file.size_bytes} bytes: use another backup"
            )

    def verify(self, manifests: Iterable[Manifest]) -> dict[str, list[str]]:
        """Read all files of some backups, each once; return what is wrong, by the names of the backups."""
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
        """Remove all but the last ``keep`` backups, and all files that no backup names.

        Return the names of the removed backups, and how many files were removed with how many bytes.
        """
        with self.writing():
            ids = self.ids()
            old, kept = ids[: max(0, len(ids) - keep)], ids[max(0, len(ids) - keep) :]
            # Before anything is removed: a manifest that cannot be read raises here.
            needed = {file.sha256 for backup in kept for file in self.manifest(backup).every_file}
            for backup in old:
                self.target.delete(_manifest(backup))
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
        mark = Mark(socket.gethostname(), process.pid, process.create_time(), time.time())
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
                mark = msgspec.json.decode(content, type=Mark)
            except msgspec.MsgspecError:
                continue  # a draft that was left behind
            if mark.lives:
                raise OverloadedError(
                    f"process {mark.pid} on {mark.host} writes to {self.target.name} now: try again when it is done"
                )
            self.target.delete(name)


def _manifest(backup: str) -> str:
    return f"{BACKUPS}/{backup}.json"


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
