"""Where backups are kept: a folder, or any URL of fsspec. Names are relative, with ``/`` between their parts.

A file under a name is whole: folders get a draft that is renamed, object stores show an object when all of it is there.
A store that does neither may keep a part of an interrupted copy. It has another size, so the next backup copies it again.
"""

import os
import re
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO, Final, Protocol

from fila_process.files import sync_names, write_whole
from fila_proto_zmq.errors import InvalidArgumentError, StorageError

PIECE_BYTES: Final = 1 << 20
"""The bytes that are read and written at once."""
_URL: Final = re.compile(r"([a-z][a-z0-9+.-]*)://", re.IGNORECASE)


class Target(Protocol):
    """A place for files. Methods raise :class:`StorageError`."""

    name: str
    """For people."""

    def sizes(self, folder: str) -> dict[str, int]:
        """Return the sizes in bytes of all files below a folder, by name; empty if there is no such folder."""

    def put(self, source: Path, name: str) -> None:
        """Copy a local file there."""

    def write(self, name: str, content: bytes) -> None:
        """Write a small file."""

    def read(self, name: str) -> bytes | None:
        """Return a small file; None if it is not there."""

    def open(self, name: str) -> BinaryIO:
        """Open a file for reading."""

    def delete(self, name: str) -> None:
        """Remove a file; no error if it is not there."""


def target_at(place: str) -> Target:
    """Return the target at a path or URL. Raise :class:`InvalidArgumentError` if a library for its kind is missing."""
    found = _URL.match(place)
    if not place:
        raise InvalidArgumentError("the target of a backup is empty: name a folder, or a URL like s3://bucket/folder")
    if found is None:
        return Folder(Path(place))
    try:
        from fila_cluster.run.backup.remote import Remote  # noqa: PLC0415  # an extra
    except ImportError:
        raise InvalidArgumentError(
            f"{place}: backups to a URL need fsspec: pip install 'fila-cluster[backup]'; a folder needs nothing"
        ) from None
    return Remote(place)


@contextmanager
def explained(name: str) -> Iterator[None]:
    """Turn errors of a file system or a library into a :class:`StorageError` that names the place."""
    try:
        yield
    except StorageError:
        raise
    except OSError as error:
        raise StorageError(f"{name}: {error.strerror or error}") from error


class Folder:
    """A folder of this machine. Its files are for the owner alone."""

    def __init__(self, path: Path) -> None:
        self._path = path.expanduser().absolute()
        self.name = str(self._path)

    def sizes(self, folder: str) -> dict[str, int]:
        """Return the sizes of all files below a folder. Drafts of interrupted copies are among them."""
        root = self._path / folder
        with explained(str(root)):
            return {
                str(Path(directory, file).relative_to(self._path)): Path(directory, file).stat().st_size
                for directory, _, files in os.walk(root)
                for file in files
            }

    def put(self, source: Path, name: str) -> None:
        """Copy a local file there, durably."""
        with explained(f"cannot copy {source} to {self._path / name}"), source.open("rb") as file:
            self._write(name, iter(lambda: file.read(PIECE_BYTES), b""))

    def write(self, name: str, content: bytes) -> None:
        """Write a small file, durably."""
        with explained(f"cannot write {self._path / name}"):
            self._write(name, [content])

    def _write(self, name: str, pieces: Iterable[bytes]) -> None:
        path = self._path / name
        _make_folder(path.parent)
        write_whole(path, pieces, draft=f"{os.getpid()}.draft")  # two backups may copy the same file

    def read(self, name: str) -> bytes | None:
        """Return a small file; None if it is not there."""
        with explained(f"cannot read {self._path / name}"):
            try:
                return (self._path / name).read_bytes()
            except FileNotFoundError:
                return None

    def open(self, name: str) -> BinaryIO:
        """Open a file for reading."""
        with explained(f"cannot read {self._path / name}"):
            return (self._path / name).open("rb")

    def delete(self, name: str) -> None:
        """Remove a file."""
        with explained(f"cannot remove {self._path / name}"):
            (self._path / name).unlink(missing_ok=True)


class Within:
    """A folder of a target, as a target of its own."""

    def __init__(self, target: Target, folder: str) -> None:
        self._target, self._folder = target, folder
        self.name = f"{target.name}/{folder}"

    def sizes(self, folder: str) -> dict[str, int]:
        """Return the sizes of all files below a folder."""
        found = self._target.sizes(self._in(folder))
        return {name.removeprefix(f"{self._folder}/"): size for name, size in found.items()}

    def put(self, source: Path, name: str) -> None:
        """Copy a local file there."""
        self._target.put(source, self._in(name))

    def write(self, name: str, content: bytes) -> None:
        """Write a small file."""
        self._target.write(self._in(name), content)

    def read(self, name: str) -> bytes | None:
        """Return a small file; None if it is not there."""
        return self._target.read(self._in(name))

    def open(self, name: str) -> BinaryIO:
        """Open a file for reading."""
        return self._target.open(self._in(name))

    def delete(self, name: str) -> None:
        """Remove a file."""
        self._target.delete(self._in(name))

    def _in(self, name: str) -> str:
        return f"{self._folder}/{name}"


def _make_folder(path: Path) -> None:
    """Make a folder, and those above it that are missing, for the owner alone."""
    if not path.is_dir():
        _make_folder(path.parent)
        path.mkdir(mode=0o700, exist_ok=True)
        sync_names(path.parent)
