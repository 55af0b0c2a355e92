"""RocksDB's failures as errors of this package.

RocksDB reports all failures in one kind of exception with a text. :func:`failure` turns it into an error that names the
shard's directory and the file. It separates damage, which does not go away, from failures that may pass, as with a full disk.
"""

import re
from contextlib import suppress
from pathlib import Path

from fila_proto_zmq.errors import StorageError
from fila_worker.core.store import DamageError, InUseError

_DAMAGE = re.compile(r"corruption|checksum|no such file", re.IGNORECASE)
"""RocksDB's words for failures that a repetition does not cure.

What it calls an I/O error (a full disk, no permission) may pass.
"""

_FILE = re.compile(r"\b(\d{6,}\.(?:sst|log|blob|ldb)|MANIFEST-\d+|CURRENT|OPTIONS-\d+|IDENTITY)\b")


def failure(path: Path, what: str, cause: Exception) -> StorageError:
    """Return the error for what RocksDB refused. Its text names the shard's directory, and the file if RocksDB named it."""
    text = str(cause)
    damaged = _DAMAGE.search(text) is not None
    found = _FILE.search(text) or (_log_dropped(path) if damaged else None)
    file = path / found[1] if found else path
    details = {"path": str(path), "file": found[1] if found else None}
    if damaged:
        return DamageError(f"{file} is damaged: {text}", details=details)
    return StorageError(f"RocksDB refused {what} in {file}: {text}", details=details)


def _log_dropped(path: Path) -> re.Match[str] | None:
    """Return which write-ahead log RocksDB could not read: only its own journal has that name."""
    with suppress(OSError), (path / "LOG").open(errors="replace") as journal:
        for line in journal:
            if "dropping" in line and (found := _FILE.search(line)):
                return found
    return None


def cannot_open(path: Path, cause: Exception) -> StorageError:
    """Return the error for a database that RocksDB does not open."""
    if "lock" in str(cause).lower() and "block" not in str(cause).lower():
        return InUseError(
            f"the shard's database in {path} is in use: stop the process that has it open, or use another data directory"
        )
    return failure(path, "to open", cause)
