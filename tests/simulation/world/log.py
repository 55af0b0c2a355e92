"""The log under a shard's store: commits that are confirmed later, or never.

A commit is visible at once. The log confirms it after a while, which may be long, or fails. With ``volatile`` the end of the process
takes some of the commits that are not confirmed with it, as a replicated log may whose leader changes; without, only a power cut does,
as with RocksDB's log and a sync in a thread.
"""

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from random import Random
from typing import Any

from fila_proto_zmq.errors import StorageError
from tests.simulation.world.world import World

STALLS = 0.03
"""How often a confirmation takes long."""
STALL_US = (200_000, 1_500_000, 4_000_000)


@dataclass(frozen=True)
class LogNature:
    """How the log of a run is."""

    confirm_us: tuple[int, int]
    volatile: bool


def draw_log(random: Random) -> LogNature:
    """Return the nature of a seed's log."""
    return LogNature(random.choice([(0, 300), (200, 5000), (5000, 100_000)]), random.random() < 0.7)


class WakeSignal:
    """Stands in for the descriptor that wakes a loop."""

    def __init__(self) -> None:
        self.signalled = False


class SimWakeup:
    """Stands in for :class:`fila_worker.loop.Wakeup`."""

    world: World

    def __init__(self) -> None:
        self._process = self.world.current
        self.descriptor = WakeSignal()

    def set(self) -> None:
        self.descriptor.signalled = True
        self._process.notice(self.descriptor)

    def clear(self) -> None:
        self.descriptor.signalled = False

    def close(self) -> None:
        """Nothing to close."""


@dataclass
class Appended:
    """One commit that is not confirmed: its size, what takes it back, and what it changed."""

    size: int
    undo: list[tuple[Any, bytes, bytes | None]]
    changes: list[Any]
    number: int = 0


class SimLog:
    """The log of one disk, through all lives of its worker. ``watch``: called with the changes of each confirmed commit;
    ``broken``: called when it fails."""

    def __init__(
        self, world: World, shard: int, nature: LogNature, watch: Callable[[list[Any]], None], broken: Callable[[], None]
    ) -> None:
        self._world = world
        self._shard = shard
        self._nature = nature
        self._watch = watch
        self._broken = broken
        self._random: Random = world.random(f"log of shard {shard}")
        self._waiting: deque[Appended] = deque()
        self._life = 0
        self._last_us = 0
        self._wake: Callable[[], None] = lambda: None
        self.fails = False
        """Whether the next confirmation fails."""
        self._calm = False
        self._number = 0
        """Of the last commit, lost ones included."""
        self.failure: StorageError | None = None

    @property
    def waiting(self) -> int:
        """How many commits are not confirmed."""
        return len(self._waiting)

    @property
    def unconfirmed_bytes(self) -> int:
        return sum(each.size for each in self._waiting)

    def open(self, wake: Callable[[], None] | None) -> None:
        """A process opens the store: what the last one had not confirmed is there, or some of it is lost."""
        self._life += 1
        self._wake = wake or (lambda: None)
        self.failure = None
        if self._nature.volatile and self._waiting:
            self._lose(self._random.randint(0, len(self._waiting)))
        while self._waiting:
            self._confirm()

    def append(self, appended: Appended) -> None:
        """Take in a commit; it is confirmed later."""
        self._number += 1
        appended.number = self._number
        self._waiting.append(appended)
        delay_us = self._random.randint(*self._nature.confirm_us)
        if self._random.random() < STALLS and not self._calm:
            delay_us = self._random.choice(STALL_US)
        self._last_us = max(self._last_us, self._world.now_us + delay_us)
        self._world.at(self._last_us, self._due, self._life, self._number)

    def close(self) -> None:
        """The process ends in good order: it waits for the log."""
        while self._waiting and self.failure is None:
            self._confirm()
        self._life += 1

    def heal(self) -> None:
        """Neither fail nor take long from now on."""
        self.fails, self._calm = False, True
        self._last_us = self._world.now_us
        self._world.after(self._nature.confirm_us[1], self._due, self._life, self._number)

    def lose_power(self) -> None:
        """What is not confirmed is gone, or some of it."""
        self._lose(self._random.randint(0, len(self._waiting)))

    def _lose(self, count: int) -> None:
        for _ in range(count):
            for family, key, value in reversed(self._waiting.pop().undo):
                if value is None:
                    family.pop(key, None)
                else:
                    family[key] = value
        if count:
            self._world.tell(f"shard {self._shard}", f"{count} commits that were not confirmed are gone")

    def _due(self, life: int, number: int) -> None:
        if life != self._life or self.failure is not None:
            return
        if self.fails:
            self.fails = False
            self.failure = StorageError(f"shard {self._shard}: the log refuses to confirm (simulated)")
            self._broken()
            self._wake()
            return
        while self._waiting and self._waiting[0].number <= number:
            self._confirm()
        self._wake()

    def _confirm(self) -> None:
        self._watch(self._waiting.popleft().changes)
