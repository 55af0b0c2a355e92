"""Which worker hosts a moved shard: a file for each, ``moved/shard-NNNN``, with the worker's name.

A shard without a file is hosted by the worker that was started for it. Only the process with the shard's open database writes
its file, and RocksDB lets only one process have it open. So all workers of a data directory read the same answer, also if one
of them is killed during a move. Until the file is written the shard belongs to the old worker. From then on it belongs to the
next one, which opens it as soon as the old one has closed it. The router takes no part, and may be restarted in the middle of
a move.

``fila-cluster up`` distributes all shards again, and removes the files.
"""

import os
import re
import shutil
import socket
from collections.abc import Iterable
from pathlib import Path
from typing import Final

from fila_process.files import write_whole
from fila_proto_zmq.errors import StorageError

FOLDER: Final = "moved"
"""Below the data directory."""

_NAME: Final = re.compile(r"shard-(\d{4,9})")
_BOOT: Final = Path("/proc/sys/kernel/random/boot_id")


class Residence:
    """The moved shards of a data directory, as one of its workers sees them."""

    def __init__(self, data_dir: Path, worker: str, shards_total: int) -> None:
        self._folder = data_dir / FOLDER
        self._worker = worker
        self._shards_total = shards_total
        self.home = _home(data_dir)
        """The name of the directory on its machine. Two workers with the same ``home`` use the same files."""

    def file_of(self, shard: int) -> Path:
        """Return the file that names a shard's host."""
        return self._folder / f"shard-{shard:04d}"

    def host_of(self, shard: int) -> str | None:
        """Return the worker to which a shard was moved; None: it was not moved. Raise :class:`StorageError`."""
        file = self.file_of(shard)
        try:
            return file.read_text().strip() or None
        except FileNotFoundError:
            return None
        except (OSError, UnicodeDecodeError) as cause:
            raise StorageError(f"cannot read {file}, which names the worker of shard {shard}: {cause}") from cause

    def is_here(self, shard: int) -> bool:
        """Return whether a shard was moved to this worker. Raise :class:`StorageError`."""
        return self.host_of(shard) == self._worker

    def is_elsewhere(self, shard: int) -> bool:
        """Return whether a shard was moved to another worker. Raise :class:`StorageError`."""
        return self.host_of(shard) not in {None, self._worker}

    def arrived(self) -> list[int]:
        """Return the shards that were moved to this worker. Raise :class:`StorageError`."""
        try:
            names = [entry.name for entry in os.scandir(self._folder)]
        except FileNotFoundError:
            return []
        except OSError as cause:
            raise StorageError(f"cannot read {self._folder}, which names the workers of moved shards: {cause}") from cause
        shards = sorted(int(found[1]) for name in names if (found := _NAME.fullmatch(name)))
        return [shard for shard in shards if shard < self._shards_total and self.is_here(shard)]

    def hosted(self, shards: Iterable[int]) -> list[int]:
        """Return the shards of this worker, which was started for ``shards``. Raise :class:`StorageError`."""
        return sorted({shard for shard in shards if not self.is_elsewhere(shard)} | set(self.arrived()))

    def give(self, shard: int, worker: str) -> None:
        """Name another worker as a shard's host. The caller has the shard's database open. Raise :class:`StorageError`."""
        file = self.file_of(shard)
        try:
            self._folder.mkdir(mode=0o700, exist_ok=True)
            write_whole(file, [f"{worker}\n".encode()])
        except OSError as cause:
            raise StorageError(f"cannot write {file}: {cause.strerror}") from cause


def forget_moves(data_dir: Path) -> None:
    """Return each shard to the worker that is started for it. The caller has the lock of the directory."""
    shutil.rmtree(data_dir / FOLDER, ignore_errors=True)


def _home(data_dir: Path) -> str:
    """Return a name that only this directory of this machine has. A copy of the directory elsewhere has another name."""
    try:
        machine = _BOOT.read_text().strip()
    except OSError:
        machine = socket.gethostname()
    found = data_dir.stat()
    return f"{machine}:{found.st_dev}:{found.st_ino}"
