"""The data directory: its lock, and the facts that are fixed when it is made.

``fila.json`` is its identity. ``lock`` is an open file description that the supervisor shares with its children, so it is
held until the *last* of them is gone. Killed supervisors leave orphans for a moment; the next process waits for those, so
that ports and storage are free.
"""

import fcntl
import json
import os
import time
from dataclasses import asdict, dataclass
from enum import StrEnum
from pathlib import Path
from typing import Any, NamedTuple

import psutil

from fila_cluster.run.supervisor import CannotStartError
from fila_process.files import remove, write_whole
from fila_worker.settings import Replication
from fila_worker.storage.made import IDENTITY_FILE, MADE, shards_there, write_identity, writing_identity

PLAN_FILE = "reshard.json"
_PLAN_FORMAT = 1


class ReshardPhase(StrEnum):
    """The present phase. The old shards are whole until ``SWITCH``, and the new ones from ``SWITCH`` on."""

    COPY = "copy"
    """The new shards are built beside the old ones."""
    SWITCH = "switch"
    """The new shards are complete, and take the places of the old ones."""
    CLEAN = "clean"
    """The new shards are in their places. The old ones are removed."""


@dataclass(frozen=True, slots=True)
class ReshardPlan:
    """The numbers of shards. ``queues``, ``messages`` and ``size_bytes``: of the new shards, once complete."""

    before: int
    after: int
    phase: ReshardPhase = ReshardPhase.COPY
    queues: int = 0
    messages: int = 0
    size_bytes: int = 0


def read_plan(data_dir: Path) -> ReshardPlan | None:
    """Return the plan of an unfinished reshard, or None. Raise :class:`CannotStartError` if it can't be read."""
    file = data_dir / PLAN_FILE
    try:
        content = json.loads(file.read_text())
        found = content.pop("format")
        plan = ReshardPlan(**content | {"phase": ReshardPhase(content["phase"])}) if found == _PLAN_FORMAT else None
    except FileNotFoundError:
        return None
    except (ValueError, KeyError, TypeError, AttributeError):
        raise CannotStartError(f"{file} is damaged: restore it from a backup") from None
    if plan is None:
        raise CannotStartError(f"{file} has format {found}, this version reads {_PLAN_FORMAT}: use a matching version")
    return plan


def write_plan(data_dir: Path, plan: ReshardPlan) -> None:
    """Make a plan durable. Raise :class:`OSError`."""
    write_whole(data_dir / PLAN_FILE, [json.dumps({"format": _PLAN_FORMAT, **asdict(plan)}).encode()])


def remove_plan(data_dir: Path) -> None:
    """Remove the plan durably: the reshard is finished or cancelled. Raise :class:`OSError`."""
    remove(data_dir / PLAN_FILE)


def refuse_unfinished(data_dir: Path) -> None:
    """Raise :class:`CannotStartError` if a reshard of a data directory is not finished."""
    plan = read_plan(data_dir)
    if plan is not None:
        cancel = ", or cancel it with --cancel" if plan.phase == ReshardPhase.COPY else ""
        raise CannotStartError(
            f"the change of {data_dir} from {plan.before} to {plan.after} shards is not finished: run "
            f"`fila-cluster reshard --data-dir {data_dir} --shards {plan.after}` again{cancel}"
        )


FORMAT = 1
FORMAT_OF_A_HOST = 2
"""Of a host of several: its shards are copies, which only `fila-cluster node` may open. Earlier versions refuse it."""
LOCK_FILE = "lock"

ORPHANS_S_MAX = 10.0
"""Children whose supervisor was killed stop within this time."""

_LOOK_AGAIN_S = 0.02


class DirectoryIdentity(NamedTuple):
    """The content of ``fila.json``; empty for a new directory."""

    shards: int | None = None
    host: str | None = None
    """The name of the host whose copies it holds; None: it holds the only ones."""
    log: str = ""
    """The name of the log of the host's copies; empty: unknown."""
    keys: str = ""
    """The fingerprint of the keys with which the host was last in that log."""
    made: list[int] | None = None
    """The shards that were made in it; None: it has no list yet, or is a host's, whose copies may be made anew."""

    def plain(self) -> dict[str, Any]:
        """Return the JSON form."""
        if self.host is None:
            return {"format": FORMAT, "shards": self.shards, MADE: self.made or []}
        return {"format": FORMAT_OF_A_HOST, "shards": self.shards, "host": self.host, "log": self.log, "keys": self.keys}


class DirectoryInUseError(CannotStartError):
    """Another process has the data directory's lock."""


class HostDirectoryError(CannotStartError):
    """The data directory is that of one host of several, or is not, and this process is for the other kind."""


class DataDir:
    """A data directory with an open lock, here or in a child. Opening changes nothing, :meth:`claim` makes the rest."""

    def __init__(
        self, path: Path, *, shared: bool = False, damaged: bool = False, resharding: bool = False, of_host: bool = False
    ) -> None:
        """Take the lock if there is one; ``shared``: beside other holders of single shards.

        ``damaged``: open it also if ``fila.json`` is missing or cannot be read; ``problem`` is the reason then. ``of_host``:
        this process is a host of several, and only such a process may open its directory.

        Raises :class:`CannotStartError` if another process has it (:class:`DirectoryInUseError`), if it is of the other kind
        (:class:`HostDirectoryError`), if this is not a data directory of fila-cluster, or if the change of its number of
        shards is not finished and this process is not ``resharding``.
        """
        self.path = path.expanduser().absolute()
        self._lock_fd: int | None = None
        self._shared, self._of_host = shared, of_host
        self.identity = DirectoryIdentity()
        self.problem: str | None = None
        try:
            if self._lock_file.exists():
                self._take_lock()
            if not resharding:
                refuse_unfinished(self.path)
            self.identity = self._read_identity()
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

    @property
    def shards(self) -> int | None:
        """How many shards its cluster has; None: it is new."""
        return self.identity.shards

    def claim(self, shards: int, replication: Replication | None = None) -> None:
        """Make the directory if it is new, with ``shards``, and note this process in the lock. ``replication``: of a host."""
        try:
            self.path.mkdir(mode=0o700, parents=True, exist_ok=True)  # messages are private
            if self._lock_fd is None:
                self._take_lock()
            os.fchmod(self.lock, 0o600)
            os.truncate(self.lock, 0)
            os.pwrite(self.lock, f"{os.getpid()}\n".encode(), 0)
            with writing_identity(self.path):
                self._claim(shards, replication)
        except OSError as error:
            raise self._unusable(error) from None

    def _claim(self, shards: int, replication: Replication | None) -> None:
        found = self._read_identity()
        if found[:2] != self.identity[:2]:
            raise CannotStartError(f"another process made {self.path} at the same moment: start again")
        if replication is not None:
            wanted = DirectoryIdentity(shards, replication.host, replication.log, replication.keys)
        else:
            wanted = DirectoryIdentity(shards, made=found.made if found.made is not None else self._made_before(shards))
        if wanted != found:
            write_identity(self.path, wanted.plain())
        self.identity = wanted

    def _made_before(self, shards: int) -> list[int]:
        """Return the shards that were made in a directory without a list (it is new, or of an earlier version): all of them,
        by the first start, unless their workers may have directories of their own."""
        there = shards_there(self.path)
        return list(range(shards)) if there and not self._shared else there

    def restore_identity(self, shards: int) -> None:
        """Write a lost ``fila.json`` again, by the number in the shards."""
        try:
            self._write_identity(DirectoryIdentity(shards, made=shards_there(self.path)))
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
            fcntl.flock(fd, (fcntl.LOCK_SH if self._shared else fcntl.LOCK_EX) | fcntl.LOCK_NB)
        except BlockingIOError:
            return False
        return True

    def _read_identity(self) -> DirectoryIdentity:
        identity = self.path / IDENTITY_FILE
        try:
            content = json.loads(identity.read_text())
            known, shards = content["format"], content["shards"]
            host = str(content["host"]) if known == FORMAT_OF_A_HOST else None
            log, keys = str(content.get("log", "")), str(content.get("keys", ""))
            made = None if host is not None or content.get(MADE) is None else [int(index) for index in content[MADE]]
        except FileNotFoundError:
            self._refuse_lost_identity()
            return DirectoryIdentity()
        except (ValueError, KeyError, TypeError):
            raise CannotStartError(f"{identity} is damaged: restore it from a backup") from None
        if known not in {FORMAT, FORMAT_OF_A_HOST} or not isinstance(shards, int):
            raise CannotStartError(
                f"{identity} has format {known}, this version reads {FORMAT} and {FORMAT_OF_A_HOST}: use a matching version"
            )
        self._refuse_other_kind(host)
        return DirectoryIdentity(shards, host, log, keys, made)

    def _refuse_other_kind(self, host: str | None) -> None:
        if host is not None and not self._of_host:
            raise HostDirectoryError(
                f"{self.path} holds the copies of host {host!r} of a cluster on several hosts, which only `fila-cluster "
                "node` may open; a copy that is damaged may be removed, the node makes it anew"
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
        self._write_identity(DirectoryIdentity(shards, made=list(range(shards))))

    def _write_identity(self, identity: DirectoryIdentity) -> None:
        with writing_identity(self.path):
            write_identity(self.path, identity.plain())
        self.identity = identity

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
