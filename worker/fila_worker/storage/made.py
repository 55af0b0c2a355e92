"""A mark beside each shard's directory: it means that the shard exists.

RocksDB creates what is not there. So a directory that was deleted, or whose disk is not mounted, would look like a new shard.
It would be served without its messages, and hide them when the disk is back. An operator who accepts the loss deletes the
mark.
"""

import os
from pathlib import Path
from typing import Final

from fila_process.files import sync_names
from fila_proto_zmq.errors import StorageError
from fila_worker.core.store import DamageError

SUFFIX: Final = ".made"


def mark_of(path: Path) -> Path:
    """Return the path of the mark of the shard in a directory."""
    return path.with_name(path.name + SUFFIX)


def refuse_missing(path: Path) -> None:
    """Raise :class:`DamageError` if a database was created here and is missing."""
    mark = mark_of(path)
    if mark.exists() and not (path.is_dir() and any(path.iterdir())):
        raise DamageError(
            f"{path} is empty or missing, but it held a shard: mount its disk or restore it, then start the worker again; "
            f"to begin without its messages, delete {mark}",
            details={"path": str(path), "file": mark.name},
        )


def mark_made(path: Path) -> None:
    """Note durably that a shard was created in a directory. Raise :class:`StorageError` if that fails."""
    mark = mark_of(path)
    try:
        if not mark.exists():
            os.close(os.open(mark, os.O_CREAT | os.O_WRONLY, 0o600))
            sync_names(path.parent)
    except OSError as cause:
        raise StorageError(f"cannot write {mark}: {cause.strerror}") from cause
