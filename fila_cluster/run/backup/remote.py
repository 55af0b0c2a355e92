"""A target that fsspec reaches: an object store, another machine, …"""

from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import BinaryIO, TypeVar, cast

from fsspec.core import url_to_fs

from fila_proto_zmq.errors import InvalidArgumentError, StorageError

_T = TypeVar("_T")


class Remote:
    """A target at a URL of fsspec."""

    def __init__(self, url: str) -> None:
        self.name = url.rstrip("/")
        try:
            self._fs, root = url_to_fs(url)
        except (ImportError, ValueError) as error:
            raise InvalidArgumentError(f"{url}: {error}") from None
        self._root = str(root).rstrip("/")

    def sizes(self, folder: str) -> dict[str, int]:
        """Return the sizes of all files below a folder."""
        found = self._do(f"cannot list {self.name}/{folder}", lambda: self._find(folder))
        return {path.removeprefix(self._root).lstrip("/"): size for path, size in found.items()}

    def _find(self, folder: str) -> dict[str, int]:
        self._fs.invalidate_cache()  # another process may have written
        try:
            found = self._fs.find(self._path(folder), detail=True)
        except FileNotFoundError:
            return {}
        return {path: each["size"] for path, each in found.items() if each["type"] == "file"}

    def put(self, source: Path, name: str) -> None:
        """Copy a local file there."""
        self._do(f"cannot copy {source} to {self.name}/{name}", lambda: self._put(source, name))

    def _put(self, source: Path, name: str) -> None:
        self._make_folder(name)
        self._fs.put_file(str(source), self._path(name))

    def write(self, name: str, content: bytes) -> None:
        """Write a small file."""
        self._do(f"cannot write {self.name}/{name}", lambda: self._pipe(name, content))

    def _pipe(self, name: str, content: bytes) -> None:
        self._make_folder(name)
        self._fs.pipe_file(self._path(name), content)

    def _make_folder(self, name: str) -> None:
        self._fs.makedirs(self._path(name).rpartition("/")[0], exist_ok=True)  # object stores do nothing

    def read(self, name: str) -> bytes | None:
        """Return a small file; None if it is not there."""
        return self._do(f"cannot read {self.name}/{name}", lambda: self._cat(name))

    def _cat(self, name: str) -> bytes | None:
        try:
            return cast(bytes, self._fs.cat_file(self._path(name)))
        except FileNotFoundError:
            return None

    def open(self, name: str) -> BinaryIO:
        """Open a file for reading."""
        return self._do(f"cannot read {self.name}/{name}", lambda: cast(BinaryIO, self._fs.open(self._path(name), "rb")))

    def delete(self, name: str) -> None:
        """Remove a file."""

        def remove() -> None:
            with suppress(FileNotFoundError):
                self._fs.rm_file(self._path(name))

        self._do(f"cannot remove {self.name}/{name}", remove)

    def _path(self, name: str) -> str:
        return f"{self._root}/{name}" if self._root else name

    def _do(self, what: str, action: Callable[[], _T]) -> _T:
        """Translate errors: libraries for object stores raise exceptions of their own kinds."""
        try:
            return action()
        except StorageError:
            raise
        except Exception as error:
            raise StorageError(f"{what}: {error}") from error
