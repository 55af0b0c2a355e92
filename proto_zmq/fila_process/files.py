"""Changes of names on disk that are whole or not at all, also after a power cut, and the limit of descriptors."""

import os
import resource
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path
from typing import Final


def write_whole(path: Path, pieces: Iterable[bytes], *, draft: str = "new") -> None:
    """Write a file, readable by its owner only, and replace the one that is there. It is on disk when this returns.

    ``draft``: the end of the draft's name. Of those who may write one file at the same time, each needs its own.
    """
    drafted = path.with_name(f"{path.name}.{draft}")
    drafted.unlink(missing_ok=True)  # who made it may have it open, or may have made it readable for all
    try:
        with os.fdopen(os.open(drafted, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb") as file:
            for piece in pieces:
                file.write(piece)
            file.flush()
            os.fsync(file.fileno())
        drafted.rename(path)
    except BaseException:
        with suppress(OSError):
            drafted.unlink()
        raise
    sync_names(path.parent)


def move(source: Path, target: Path) -> None:
    """Rename a file or a directory."""
    source.rename(target)
    sync_names(target.parent)
    sync_names(source.parent)


def remove(path: Path) -> None:
    """Remove a file, if it is there."""
    path.unlink(missing_ok=True)
    sync_names(path.parent)


def sync_names(directory: Path) -> None:
    """Make the names in a directory durable."""
    descriptor = os.open(directory, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


SOCKET_PATH_BYTES_MAX: Final = 107
"""The longest path in a Unix socket's address."""


def allow_many_connections() -> None:
    """Raise the limit of descriptors: every client is one, and the usual soft limit is 1024."""
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))


def connections_allowed(reserved: int) -> int:
    """Return how many connections there is room for beside ``reserved`` other descriptors."""
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return max(0, soft - reserved)
