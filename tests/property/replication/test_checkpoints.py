"""Hosts make checkpoints, carry them to a target, trim the log, are killed anywhere, lose their disks, and join: nothing confirmed is lost.

Whatever the order, the log is never emptied, each copy has in the end what the leader has, and so has a host that begins with an empty disk.
"""

import shutil
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from random import Random

import pytest

from fila_cluster.errors import FilaError
from fila_cluster.run.backup import restoring
from fila_cluster.run.backup.log_checkpoints import bring, keep
from fila_cluster.run.backup.target import Target
from fila_proto_zmq.commands import Enqueued
from fila_worker.replication.log_checkpoints import exchange as files
from fila_worker.replication.log_checkpoints.exchange import Exchange
from fila_worker.settings import CheckpointSettings
from tests.support.hosts.copies import contents
from tests.unit.worker.replication.log_checkpoints.test_copies import SHARD, World, copy_of, slot_of
from tests.unit.worker.replication.test_replicated import Machine, enqueue

pytestmark = pytest.mark.whole

SETTINGS = CheckpointSettings(bytes=3_000, every_ms=5_000, idle_records=50)
MACHINES = 3


class Killed(BaseException):
    """The process is dead."""


class Lives(World):
    """Machines that come and go, with what was confirmed to clients."""

    def __init__(self, home: Path, seed: int) -> None:
        self.random = Random(seed)
        self.confirmed: list[bytes] = []
        self.killed = 0
        super().__init__(home, SETTINGS)
        self.fresh("three")

    def pass_ms(self, span_ms: int, *machines: Machine) -> None:
        super().pass_ms(span_ms, *machines)
        for log in self.logs:
            assert log.begin < log.end or log.end == 0, "the log was emptied"

    @property
    def leader(self) -> Machine:
        self.until(lambda: any(SHARD in machine.serves for machine in self.machines))
        return next(machine for machine in self.machines if SHARD in machine.serves)

    # --- what happens -------------------------------------------------------------------------------------------------

    def enqueue(self) -> None:
        payload = b"payload %d." % len(self.confirmed)
        if isinstance(self.leader.ask(enqueue(payload + bytes(self.random.randrange(2_000)))), Enqueued):
            self.confirmed.append(payload)

    def wait(self) -> None:
        self.pass_ms(self.random.choice([100, 1000, 3000]))

    def cut(self) -> None:
        """Have a checkpoint made, unless one is there."""
        leader = self.leader
        self.enqueue()
        if leader.exchanges[SHARD].made() is None:
            self.pass_ms(8_000)
            self.until(lambda: SHARD not in leader.serves or leader.exchanges[SHARD].made() is not None)

    def keep(self) -> None:
        self.carry(keep)
        self.pass_ms(1500)

    def bring(self) -> None:
        self.carry(bring)

    def carry(self, work: Callable[[Exchange, Target], object]) -> None:
        """Let the keepers of all hosts work; some are killed at it."""
        for machine in self.machines:
            with suppress(FilaError), self.dying(self.random.choice([None, None, self.random.randrange(30)])):
                work(machine.exchanges[SHARD], self.target)

    def dying(self, change: int | None) -> "Dying":
        return Dying(self, change)

    def kill(self) -> None:
        """A process is killed, maybe while it replaces its copy."""
        machine = self.random.choice(self.machines)
        if len([each for each in self.machines if each.serves or copy_is_whole(each)]) < 2:
            return
        machine.end()
        with self.dying(self.random.randrange(5)):
            machine.exchanges[SHARD].adopt()
        machine.start()

    def lose_disk(self) -> None:
        """A machine is replaced by one with an empty disk."""
        machine = self.random.choice(self.machines)
        others = [each for each in self.machines if each is not machine]
        if any(copy_is_whole(each) for each in others):
            machine.end()
            shutil.rmtree(machine.home, ignore_errors=True)  # what was replaced there is just being removed
            machine.start()

    # --- a life -------------------------------------------------------------------------------------------------------

    def run(self, steps: int) -> None:
        actions = [
            *[self.enqueue] * 4,
            *[self.cut] * 4,
            *[self.keep] * 4,
            *[self.bring] * 2,
            *[self.wait] * 2,
            self.kill,
            self.lose_disk,
        ]
        for action in self.random.choices(actions, k=steps):
            action()
        for _ in range(10 * steps):
            if self.killed:
                break
            self.random.choice(actions)()
        while self.logs[SHARD].begin == 0:
            self.cut()
            self.care()
        self.fresh("late")
        self.until(self.settled)
        wanted = contents(copy_of(self.leader))
        stored = b"".join(wanted["messages"].values())
        assert all(payload in stored for payload in self.confirmed)

    def care(self) -> None:
        """Let all keepers work, and time pass."""
        for machine in self.machines:
            for work in (keep, bring):
                with suppress(FilaError):
                    work(machine.exchanges[SHARD], self.target)
        self.pass_ms(1500)

    def settled(self) -> bool:
        """Whether one leads, and all others have what it has."""
        self.care()
        if not any(SHARD in machine.serves for machine in self.machines) or not all(
            slot_of(machine).member for machine in self.machines
        ):
            return False
        first, *others = [contents(copy_of(machine)) for machine in self.machines]
        return all(other == first for other in others)


def copy_is_whole(machine: Machine) -> bool:
    """Whether a machine follows or leads, with all of the log so far."""
    member = slot_of(machine).member
    return member is not None and member.copy.position.offset >= machine.cluster.logs[SHARD].end - 5


class Dying:
    """A block that is killed before the nth change of the disk, if there are so many."""

    def __init__(self, lives: Lives, change: int | None) -> None:
        self.lives, self.left = lives, change

    def __enter__(self) -> None:
        self.patched = pytest.MonkeyPatch()
        if self.left is not None:
            for module, name in (
                (files, "move"),
                (files, "remove"),
                (files, "write_whole"),
                (files, "mkdtemp"),
                (restoring, "sync_names"),
            ):
                self.patched.setattr(module, name, self.step(getattr(module, name)))
            for name in ("rename", "unlink", "mkdir"):
                self.patched.setattr(Path, name, self.step(getattr(Path, name)))

    def step(self, do: Callable[..., object]) -> Callable[..., object]:
        def stepped(*arguments: object, **named: object) -> object:
            assert self.left is not None
            self.left -= 1
            if self.left < 0:
                raise Killed
            return do(*arguments, **named)

        return stepped

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> bool:
        self.patched.undo()
        if kind is Killed:
            self.lives.killed += 1
            for mark in (self.lives.home / "target").rglob("writing/*"):
                mark.unlink()  # its process is dead
        return kind is Killed


@pytest.mark.parametrize("seed", range(6))
def test_nothing_confirmed_is_lost(tmp_path: Path, seed: int) -> None:
    lives = Lives(tmp_path, seed)
    try:
        lives.run(40)
        assert lives.logs[SHARD].begin > 0, "the log was trimmed"
        assert lives.killed > 0
    finally:
        lives.close()
