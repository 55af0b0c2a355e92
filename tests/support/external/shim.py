"""Faults of disk and clock for the processes of a cluster: a library that is compiled here and preloaded into them."""

import errno
import mmap
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from struct import Struct

from tests.support.machine import COMPILER, require

SOURCE = Path(__file__).with_name("shim.c")
_LAYOUT = Struct("iiiiqq")


class Shim:
    """What goes wrong below ``data_dir``, from now on, in every process that has :attr:`env` in its environment."""

    def __init__(self, directory: Path, data_dir: Path) -> None:
        require(COMPILER)
        library, control = directory / "shim.so", directory / "shim.control"
        subprocess.run(["cc", "-shared", "-fPIC", "-O1", "-w", "-o", library, SOURCE, "-ldl"], check=True)
        control.write_bytes(bytes(_LAYOUT.size))
        with control.open("r+b") as file:
            self._map = mmap.mmap(file.fileno(), _LAYOUT.size)
        self.env = {
            "LD_PRELOAD": str(library), "FILA_SHIM_CONTROL": str(control), "FILA_SHIM_PREFIX": f"{data_dir}/shard-",
        }  # fmt: skip
        self._realtime_ms = 0

    def fail(self, *, write: int = 0, sync: int = 0, read: int = 0, create: int = 0) -> None:
        """Let calls fail with these error numbers; without any, all work again."""
        self._map[:16] = _LAYOUT.pack(write, sync, read, create, 0, 0)[:16]

    def step_clock(self, milliseconds: int) -> None:
        """Let the wall clock be so far from the true one."""
        self._map[16:24] = milliseconds.to_bytes(8, "little", signed=True)

    @property
    def failures(self) -> int:
        """How many calls were failed so far."""
        return int(_LAYOUT.unpack(self._map[:])[5])

    @contextmanager
    def failing(self, **errors: int) -> Iterator[None]:
        """Let calls fail within a block."""
        self.fail(**errors)
        try:
            yield
        finally:
            self.fail()


FULL_DISK = {"write": errno.ENOSPC, "create": errno.ENOSPC}
READ_ONLY = {"write": errno.EROFS, "create": errno.EROFS}
BROKEN_DISK = {"write": errno.EIO, "sync": errno.EIO}
