"""A disk: what was committed, which commits have reached the durable, and how it fails.

The store is the product's twin in memory with a memory of its own commits, so that a power cut can undo the last of them. With
``durability="os"`` a killed process loses nothing and a power cut loses the commits since some moment; a synced commit, and all
before it, stay.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from fila_proto_zmq.errors import StorageError
from fila_worker.core.store import InUseError
from fila_worker.storage.memory import MemoryBatch, MemoryStore
from fila_worker.storage.residence import Residence
from tests.simulation.world.log import Appended, LogNature, SimLog
from tests.simulation.world.world import Process, World


class SimBatch(MemoryBatch):
    """Changes as values, so that they can be undone and looked at."""

    def __init__(self) -> None:
        super().__init__()
        self.changes: list[Any] = []

    def put(self, key: bytes, value: bytes, family: Any, /) -> None:
        self.changes.append((family, key, value))

    def delete(self, key: bytes, family: Any, /) -> None:
        self.changes.append((family, key, None))

    def delete_range(self, begin: bytes, end: bytes, family: Any, /) -> None:
        self.changes.append((family, begin, end, True))


@dataclass
class Committed:
    """One commit, and what takes it back: ``(family, key, the value before)``, in order."""

    at_us: int
    undo: list[tuple[Any, bytes, bytes | None]]


@dataclass
class Disk:
    """The store of one shard, through all lives of its worker."""

    world: World
    shard: int
    store: "SimStore" = field(init=False)
    commits: int = 0
    log: list[Committed] = field(default_factory=list)
    """All commits that were not undone."""
    durable: int = 0
    """How many of them have reached the durable: no power cut undoes these."""
    fail_in: int | None = None
    """Which of the next commits fails: 1 is the next one."""
    watchers: list[Any] = field(default_factory=list)
    """Who sees every commit: ``watch(shard, changes, families)``."""
    nature: LogNature | None = None
    """How its log confirms commits; None: at once, as RocksDB's log does without syncs."""
    slow_log: SimLog | None = None
    deaths: list[tuple[str, int]] = field(default_factory=list)
    """Who ended, and when."""
    holder: tuple[Process, int] | None = None
    """The process that has it open, and in which of its lives it opened it."""

    def __post_init__(self) -> None:
        self.store = SimStore(self)
        if self.nature is not None:
            self.slow_log = SimLog(self.world, self.shard, self.nature, self.show, self.break_off)

    def open(self, process: Process, wake: Callable[[], None] | None = None) -> "SimStore":
        """Open the store for a process; another one that lives and has it open keeps it."""
        if self.holder is not None and self.holder[0] is not process:
            other, life = self.holder
            if other.alive and other.lives == life:
                raise InUseError(f"shard {self.shard}: {other.name} has it open")
        self.holder = process, process.lives
        if self.slow_log is not None:
            self.slow_log.open(wake)
        return self.store

    def break_off(self) -> None:
        """The shard is dropped with what was not sent yet, as if its process had ended.

        That is what depends on commits that are not confirmed, and on earlier commits of the same turn.
        """
        self.deaths.append((f"shard {self.shard}", self.world.now_us))

    def show(self, changes: list[Any]) -> None:
        """Show a commit that is there to stay to those who watch."""
        for watch in self.watchers:
            watch(self.shard, changes, self.store.families)

    def cut_power(self, back_us: int) -> int | None:
        """Undo the commits of the last ``back_us``; returns the time of the first that is undone.

        With a slow log only what is not confirmed can be undone. Nothing that was said depends on it, so None is returned.
        """
        if self.slow_log is not None:
            self.slow_log.lose_power()
            return None
        return self._go_back(back_us, self.durable)

    def put_back(self, back_us: int) -> int | None:
        """Undo the commits of the last ``back_us``, as who puts an earlier copy of the directory in its place.

        Returns the time of the first that is undone; None: none is.
        """
        first = self._go_back(back_us, 0)
        self.durable = min(self.durable, len(self.log))
        return first

    def _go_back(self, back_us: int, kept: int) -> int | None:
        horizon_us = self.world.now_us - back_us
        first: int | None = None
        while len(self.log) > kept and self.log[-1].at_us > horizon_us:
            commit = self.log.pop()
            first = commit.at_us
            for family, key, value in reversed(commit.undo):
                if value is None:
                    family.pop(key, None)
                else:
                    family[key] = value
        return first

    def synced(self) -> None:
        """Everything up to now has reached the durable."""
        self.durable = len(self.log)


class SimStore(MemoryStore):
    """The store that a shard sees."""

    def __init__(self, disk: Disk) -> None:
        super().__init__()
        self._disk = disk

    def new_batch(self) -> SimBatch:
        return SimBatch()

    def commit(self, batch: Any, *, sync: bool = False) -> None:
        disk = self._disk
        process = disk.world.current
        if process is not None:
            process.touch(f"commit {disk.commits + 1} of shard {disk.shard}")
            if disk.holder is None or disk.holder[0] is not process:
                disk.world.fail("two owners", f"{process.name} commits to shard {disk.shard}, which it does not have open")
        if disk.fail_in is not None:
            disk.fail_in -= 1
            if disk.fail_in <= 0:
                disk.fail_in = None
                disk.break_off()
                raise StorageError(f"shard {disk.shard}: no space left on device (simulated)")
        undo: list[tuple[Any, bytes, bytes | None]] = []
        for change in batch.changes:
            _apply(change, undo)
        disk.commits += 1
        self.committed += 1
        self._changes.observe(len(batch))
        if disk.slow_log is not None:
            disk.slow_log.append(Appended(sum(map(_size, batch.changes)), undo, batch.changes))
        else:
            disk.log.append(Committed(disk.world.now_us, undo))
            if sync:
                disk.synced()
            disk.show(batch.changes)
        if process is not None:
            process.touch(f"what follows commit {disk.commits} of shard {disk.shard}")

    @property
    def confirmed(self) -> int:
        log = self._disk.slow_log
        return self.committed if log is None else self.committed - log.waiting

    @property
    def unconfirmed_bytes(self) -> int:
        log = self._disk.slow_log
        return 0 if log is None else log.unconfirmed_bytes

    @property
    def failure(self) -> StorageError | None:  # type: ignore[override]  # the twin never fails
        log = self._disk.slow_log
        return None if log is None else log.failure

    def close(self) -> None:
        process, disk = self._disk.world.current, self._disk
        if process is not None:
            process.touch(f"close shard {disk.shard}")
        if disk.holder is not None and disk.holder[0] is process:
            disk.holder = None
            if disk.slow_log is not None:
                disk.slow_log.close()
        if process is not None:
            process.touch(f"what follows the end of shard {disk.shard}")


class SimResidence(Residence):
    """The files that name the workers of moved shards: those of a dictionary that all workers share."""

    def __init__(self, world: World, hosts: dict[int, str], worker: str) -> None:
        self._world = world
        self._hosts = hosts
        self._worker = worker
        self._folder = Path("moved")
        self.home = "the data directory"

    def host_of(self, shard: int) -> str | None:
        return self._hosts.get(shard)

    def arrived(self) -> list[int]:
        return sorted(shard for shard, host in self._hosts.items() if host == self._worker)

    def give(self, shard: int, worker: str) -> None:
        process = self._world.current
        process.touch(f"give shard {shard} to {worker}")
        self._hosts[shard] = worker
        process.touch(f"what follows the gift of shard {shard}")


def _size(change: Sequence[Any]) -> int:
    return sum(len(part) for part in change[1:] if isinstance(part, bytes))


def _apply(change: Sequence[Any], undo: list[tuple[Any, bytes, bytes | None]]) -> None:
    family = change[0]
    if len(change) == 4:
        keys = list(family.irange(change[1], change[2], (True, False)))
        undo.extend((family, key, family.pop(key)) for key in keys)
        return
    _, key, value = change
    undo.append((family, key, family.get(key)))
    if value is None:
        family.pop(key, None)
    else:
        family[key] = value
