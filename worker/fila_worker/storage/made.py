"""The shards that were made in a data directory: a list in ``fila.json``, and a mark beside each shard's directory.

RocksDB creates missing databases. So a directory that was deleted, or whose disk is not mounted, would look like a new shard.
It would be served without its messages, and hide them when the disk is back. To accept the loss, an operator takes the shard
from the list and deletes its mark. The mark alone is not enough: ``rm shard-0003*`` removes it with the directory.
"""

import fcntl
import json
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

from fila_process.files import sync_names, write_whole
from fila_proto_zmq.errors import StorageError
from fila_worker.core.store import DamageError

IDENTITY_FILE: Final = "fila.json"
"""The content of ``fila.json``. ``made``: the numbers of the shards that were made in the directory; missing in an
earlier version."""
LOCK_FILE: Final = "fila.json.lock"
"""Held for moments only, unlike the lock of the data directory, which all its processes share."""
MADE: Final = "made"
SUFFIX: Final = ".made"
_PREFIX: Final = "shard-"


def mark_of(path: Path) -> Path:
    """Return the path of the mark of the shard in a directory."""
    return path.with_name(path.name + SUFFIX)


def shards_there(data_dir: Path) -> list[int]:
    """Return the numbers of the shards that have a directory or a mark, in order."""
    names = {path.name.partition(".")[0].removeprefix(_PREFIX) for path in data_dir.glob(f"{_PREFIX}*")}
    return sorted(int(name) for name in names if name.isdigit())


def listed(data_dir: Path) -> list[int]:
    """Return the numbers of the shards that were made in a data directory, as far as its list can be read."""
    made = identity_in(data_dir).get(MADE)
    return sorted(index for index in made if isinstance(index, int)) if isinstance(made, list) else []


def identity_in(data_dir: Path) -> dict[str, Any]:
    """Return the content of the file; empty if it can't be read, which others report."""
    try:
        content = json.loads((data_dir / IDENTITY_FILE).read_bytes())
    except (OSError, ValueError):
        return {}
    return content if isinstance(content, dict) else {}


def refuse_missing(path: Path) -> None:
    """Raise :class:`DamageError` if a database was created here and is missing."""
    mark, name = mark_of(path), path.name.removeprefix(_PREFIX)
    is_listed = name.isdigit() and int(name) in listed(path.parent)
    is_missing = not path.exists() or (path.is_dir() and not any(path.iterdir()))  # a file is left to the database to judge
    if is_missing and (mark.exists() or is_listed):
        forget = [f"delete {mark}"] if mark.exists() else []
        if is_listed:
            forget.append(f'take {int(name)} from "{MADE}" in {path.parent / IDENTITY_FILE}')
        raise DamageError(
            f"{path} is empty or missing, but it held a shard: mount its disk or restore it, then start the worker again; "
            f"to begin without its messages, {' and '.join(forget)}",
            details={"path": str(path), "file": mark.name},
        )


def mark_made(path: Path) -> None:
    """Note durably that a shard was created in a directory. Raise :class:`StorageError` if that fails."""
    mark = mark_of(path)
    try:
        if not mark.exists():
            os.close(os.open(mark, os.O_CREAT | os.O_WRONLY, 0o600))
            sync_names(path.parent)
        _list(path)
    except OSError as cause:
        raise StorageError(f"cannot write {mark}: {cause.strerror}") from cause


def _list(path: Path) -> None:
    """Add a shard to the list, unless it is there. An identity without a list gets one at the next start."""
    data_dir, index = path.parent, int(path.name.removeprefix(_PREFIX))
    if index in listed(data_dir):
        return
    with writing_identity(data_dir):
        identity = identity_in(data_dir)
        if MADE in identity:
            write_identity(data_dir, identity | {MADE: sorted({*listed(data_dir), index})})


@contextmanager
def writing_identity(data_dir: Path) -> Iterator[None]:
    """Keep the file from other processes of the data directory, which may have made another shard at this moment."""
    held = os.open(data_dir / LOCK_FILE, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        fcntl.flock(held, fcntl.LOCK_EX)
        yield
    finally:
        os.close(held)


def write_identity(data_dir: Path, identity: dict[str, Any]) -> None:
    """Write the file. Raise :class:`OSError`."""
    write_whole(data_dir / IDENTITY_FILE, [json.dumps(identity).encode()])
