"""The data directory: its lock, and what is fixed when it is made.

``fila.json`` is its identity. ``lock`` keeps a second cluster out; it is an open file description that the supervisor
shares with its children, so it is held until the *last* of them is gone. Killed supervisors leave orphans for a moment; the
next process waits for those, and finds ports and storage free.
"""

import fcntl
import json
import os
import time
from pathlib import Path

import psutil

from fila_cluster.supervisor import CannotStartError
from fila_cluster.supervisor.reshard_plan import refuse_unfinished
from fila_process.files import write_whole

FORMAT = 1
FORMAT_OF_A_HOST = 2
"""Of a host of several: its shards are copies, which only `fila-cluster node` may open. Earlier versions refuse it."""
IDENTITY_FILE = "fila.json"
LOCK_FILE = "lock"

ORPHANS_S_MAX = 10.0
"""Children whose supervisor was killed stop within this time."""

_LOOK_AGAIN_S = 0.02


class DirectoryInUseError(CannotStartError):
    """Another process has the data directory's lock."""


class HostDirectoryError(CannotStartError):
    """The data directory is that of one host of several, or is not, and this process is for the other kind."""


class DataDir:
    """A data directory that belongs to this process, as long as its lock is open here or in a child.

    Opening changes nothing; :meth:`claim` makes what is missing. ``shards``: None if it is new. ``host``: the name of the host
    whose copies it holds, None if it is new or holds the only ones.
    """

    def __init__(
        self,
        path: Path,
        *,
        shared: bool = False,
        damaged: bool = False,
        resharding: bool = False,
        of_host: bool = False,
    ) -> None:
        """Take the lock if there is one; ``shared``: beside other holders of single shards.

        ``damaged``: open it also if ``fila.json`` is missing or cannot be read. ``problem`` is then what is wrong with it.

        ``of_host``: this process is a host of several, and nothing else may open what such a host has.

        Raises :class:`CannotStartError` if another process has it (:class:`DirectoryInUseError`), if it is of the other kind
        (:class:`HostDirectoryError`), if this is no data directory of fila-cluster, or if the change of its number of shards is not
        finished and this process is not ``resharding``.
        """
        self.path = path.expanduser().absolute()
        self._lock_fd: int | None = None
        self._mode = fcntl.LOCK_SH if shared else fcntl.LOCK_EX
        self._of_host = of_host
        self.shards: int | None = None
        self.host: str | None = None
        self.problem: str | None = None
        try:
            if self._lock_file.exists():
                self._take_lock()
            if not resharding:
                refuse_unfinished(self.path)
            self.shards, self.host = self._read_identity()
        except DirectoryInUseError:
            raise
        except HostDirectoryError:
            self.release()
            raise
        except CannotStartError as error:
            if not damaged:
                self.release()
                raise
            self.problem = str(error)
        except OSError as error:
            self.release()
            raise self._unusable(error) from None

    @property
    def lock(self) -> int:
        """The claimed lock's descriptor, for children to inherit."""
        assert self._lock_fd is not None
        return self._lock_fd

    def claim(self, shards: int, host: str | None = None) -> None:
        """Make the directory if it is new, with ``shards``, and put this process's name on the lock. ``host``: the name of a host of
        several."""
        try:
            self.path.mkdir(mode=0o700, parents=True, exist_ok=True)  # messages are private
            if self._lock_fd is None:
                self._take_lock()
            os.fchmod(self.lock, 0o600)
            os.truncate(self.lock, 0)
            os.pwrite(self.lock, f"{os.getpid()}\n".encode(), 0)
            if self._read_identity() != (self.shards, self.host):
                raise CannotStartError(f"another process made {self.path} at the same moment: start again")
            if self.shards is None:
                self._write_identity(shards, host)
        except OSError as error:
            raise self._unusable(error) from None

    def restore_identity(self, shards: int) -> None:
        """Write ``fila.json`` again, where it is lost and the shards say how many they are."""
        try:
            self._write_identity(shards)
        except OSError as error:
            raise self._unusable(error) from None

    @property
    def _lock_file(self) -> Path:
        return self.path / LOCK_FILE

    def _take_lock(self) -> None:
        fd = os.open(self._lock_file, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        give_up_at = time.monotonic() + ORPHANS_S_MAX
        while not self._try_lock(fd):
            holder = _pid_in(fd)
            if time.monotonic() > give_up_at or _is_alive(holder):
                os.close(fd)
                raise DirectoryInUseError(
                    f"data directory {self.path} is in use by process {holder}: stop that one, or choose another --data-dir"
                )
            time.sleep(_LOOK_AGAIN_S)
        self._lock_fd = fd

    def _try_lock(self, fd: int) -> bool:
        try:
            fcntl.flock(fd, self._mode | fcntl.LOCK_NB)
        except BlockingIOError:
            return False
        return True

    def _read_identity(self) -> tuple[int | None, str | None]:
        """Return the number of shards, and the name of the host if it is one of several."""
        identity = self.path / IDENTITY_FILE
        try:
            content = json.loads(identity.read_text())
            known, shards = content["format"], content["shards"]
            host = str(content["host"]) if known == FORMAT_OF_A_HOST else None
        except FileNotFoundError:
            self._refuse_lost_identity()
            return None, None
        except (ValueError, KeyError, TypeError):
            raise CannotStartError(f"{identity} is damaged: restore it from a backup") from None
        if known not in {FORMAT, FORMAT_OF_A_HOST} or not isinstance(shards, int):
            raise CannotStartError(
                f"{identity} has format {known}, this version reads {FORMAT} and {FORMAT_OF_A_HOST}: use a matching version"
            )
        self._refuse_other_kind(host)
        return shards, host

    def _refuse_other_kind(self, host: str | None) -> None:
        if host is not None and not self._of_host:
            raise HostDirectoryError(
                f"{self.path} holds the copies of host {host!r} of a cluster on several hosts, which only `fila-cluster node` may open; "
                "a copy that is damaged may be removed, the node makes it anew"
            )
        if host is None and self._of_host:
            raise HostDirectoryError(
                f"{self.path} holds the shards of a cluster on one host, which are in no log: choose another --data-dir"
            )

    def _refuse_lost_identity(self) -> None:
        if any(self.path.glob("shard-*")):
            raise CannotStartError(f"{self.path} holds shards but no {IDENTITY_FILE}: restore that file from a backup")

    def release(self) -> None:
        """Give the lock back, if this process has it."""
        if self._lock_fd is not None:
            os.close(self._lock_fd)
            self._lock_fd = None

    def renumber(self, shards: int) -> None:
        """Set the number of shards, after they were exchanged. Raises :class:`OSError`."""
        self._write_identity(shards)

    def _write_identity(self, shards: int, host: str | None = None) -> None:
        identity: dict[str, object] = {"format": FORMAT, "shards": shards}
        if host is not None:
            identity |= {"format": FORMAT_OF_A_HOST, "host": host}
        write_whole(self.path / IDENTITY_FILE, [json.dumps(identity).encode()])
        self.shards, self.host = shards, host

    def _unusable(self, error: OSError) -> CannotStartError:
        return CannotStartError(f"cannot use data directory {self.path}: {error.strerror}; choose another --data-dir")


def _pid_in(fd: int) -> int:
    text = os.pread(fd, 32, 0).strip()
    return int(text) if text.isdigit() else 0


def _is_alive(pid: int) -> bool:
    if pid in {0, os.getpid()}:  # not written yet, or of an earlier process: in a container pids repeat
        return False
    try:
        return bool(psutil.Process(pid).status() != psutil.STATUS_ZOMBIE)
    except psutil.NoSuchProcess:
        return False
    except psutil.AccessDenied:
        return True
