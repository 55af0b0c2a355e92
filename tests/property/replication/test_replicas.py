"""Copies of a replicated shard lead, follow, crash and begin again: each has what the log has up to its position, and nothing else."""

import os
import shutil
import signal
import struct
import subprocess
import sys
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from random import Random

import pytest

from fila_worker.storage.replica import DivergedError, FlushLimits, Replica
from tests.support.hosts.copies import STAMP, Leader, MemoryLog, catch_up, contents, random_changes

pytestmark = pytest.mark.whole

LIMITS = FlushLimits(bytes=5_000, pause_bytes=10_000, age_ms=60_000, pause_age_ms=90_000, records=40)
COPIES = 3


def check(copy: Replica, log: MemoryLog) -> None:
    """A copy is at its position, with all its families."""
    found = contents(copy)
    assert found == log.contents(copy.position)
    assert len({family.get(STAMP) for family in found.values()}) == 1


def settle(copy: Replica) -> None:
    """Wait for the end of a flush."""
    while copy._flush_runs():
        pass


def crash_image(path: Path, target: Path) -> None:
    """Copy a directory as it is at one moment, though RocksDB's own threads may be at work there."""
    before, after = None, sizes(path)
    while before != after:
        shutil.rmtree(target, ignore_errors=True)
        with suppress(shutil.Error):  # a file was removed
            shutil.copytree(path, target)
        before, after = after, sizes(path)


def sizes(path: Path) -> dict[str, int]:
    """The files of a directory; RocksDB may remove one meanwhile."""
    found = {}
    for name in os.listdir(path):
        with suppress(FileNotFoundError):
            found[name] = (path / name).stat().st_size
    return found


class Lives:
    """Some copies, one of which leads, with one log."""

    def __init__(self, folder: Path, seed: int) -> None:
        self.random = Random(seed)
        self.folder = folder
        self.log = MemoryLog()
        self.made = self.stamp = self.now_ms = 0
        self.copies = [self.open(self.new_path()) for _ in range(COPIES)]
        self.leader = Leader(self.copies[0], self.log)

    def new_path(self) -> Path:
        self.made += 1
        return self.folder / f"copy-{self.made}"

    def open(self, path: Path) -> Replica:
        return Replica(path, limits=LIMITS)

    def run(self, steps: int) -> None:
        actions: list[Callable[[], None]] = [
            *[self.commit] * 12, *[self.arrive] * 6, *[self.read] * 6, *[self.tend] * 3,
            self.beat, self.crash, self.close, self.bootstrap, self.replace_leader,
        ]  # fmt: skip
        for action in self.random.choices(actions, k=steps):
            action()
        self.leader.arrive()
        for copy in self.copies:
            if copy is not self.leader.copy:
                catch_up(copy, self.log)
            check(copy, self.log)
            copy.close()

    @property
    def followers(self) -> list[Replica]:
        return [copy for copy in self.copies if copy is not self.leader.copy]

    def commit(self) -> None:
        copy = self.leader.copy
        if copy.wants_pause:
            self.leader.arrive()
            settle(copy)
        assert not copy.wants_pause
        self.stamp += 1
        copy.commit(random_changes(self.random, self.stamp))

    def arrive(self) -> None:
        self.leader.arrive(self.random.randint(0, len(self.leader.pending)))

    def beat(self) -> None:
        self.leader.beat()

    def read(self) -> None:
        copy = self.random.choice(self.followers)
        for counted in self.log.counted(copy.position)[: self.random.randint(0, 30)]:
            copy.apply(counted)
        check(copy, self.log)

    def tend(self) -> None:
        self.now_ms += self.random.choice([0, 1000, 50_000])
        for copy in self.copies:
            copy.tend(self.now_ms)

    def crash(self) -> None:
        """A copy begins again with the files that were there."""
        copy = self.random.choice(self.copies)
        settle(copy)
        path = self.new_path()
        crash_image(copy._path, path)
        again = self.open(path)
        assert again.whole
        assert again.position == copy.flushed
        copy._leave()
        self.replace(copy, again)

    def close(self) -> None:
        copy = self.random.choice(self.copies)
        expected = {copy.flushed, copy._running} if copy.confirmed < copy.committed else {copy.position}
        copy.close()
        again = self.open(copy._path)
        assert again.position in expected
        self.replace(copy, again)

    def bootstrap(self) -> None:
        """A follower is begun anew from another copy's checkpoint."""
        source, path = self.random.choice(self.copies), self.new_path()
        if source.confirmed < source.committed:
            self.leader.arrive()
        source.checkpoint(path)
        again = self.open(path)
        assert again.position == source.position == source.flushed
        copy = self.random.choice(self.followers)
        copy.close()
        self.replace(copy, again)

    def replace_leader(self) -> None:
        """Another one claims the shard while the leader lives."""
        old = self.leader.copy
        self.lead(self.random.choice(self.followers))
        if old.confirmed < old.committed:
            with pytest.raises(DivergedError, match="were never confirmed"):
                old.follow()
            old.close()
            self.replace(old, self.open(old._path))
        else:
            old.follow()

    def replace(self, copy: Replica, again: Replica) -> None:
        check(again, self.log)
        led = copy is self.leader.copy
        self.copies[self.copies.index(copy)] = again
        if led:
            self.lead(self.random.choice(self.copies))

    def lead(self, copy: Replica) -> None:
        """A part of what the last leader has appended is in the log, the rest never arrives, or too late."""
        pending = self.leader.pending
        count = self.random.randint(0, len(pending))
        self.log += pending[:count]
        catch_up(copy, self.log)
        self.leader = Leader(copy, self.log)
        self.log += pending[count : self.random.randint(count, len(pending))]


@pytest.mark.parametrize("seed", range(8))
def test_each_copy_has_what_the_log_has_up_to_its_position(tmp_path: Path, seed: int) -> None:
    Lives(tmp_path, seed).run(120)


# --- real kills -------------------------------------------------------------------------------------------------------

SIZE = struct.Struct(">I")

CHILD = """
import os, signal, sys
from pathlib import Path
from random import Random
from tests.property.replication.test_replicas import lead_until_killed
lead_until_killed(Path(sys.argv[1]), Random(int(sys.argv[2])))
"""


class FileLog(MemoryLog):
    """A log that outlives its process."""

    def __init__(self, path: Path) -> None:
        self.file = os.open(path, os.O_CREAT | os.O_RDWR | os.O_APPEND)
        data, at = os.pread(self.file, os.fstat(self.file).st_size, 0), 0
        while at < len(data):
            (size,) = SIZE.unpack_from(data, at)
            at += SIZE.size + size
            super().append(data[at - size : at])

    def append(self, data: bytes) -> None:
        os.write(self.file, SIZE.pack(len(data)) + data)
        super().append(data)


def lead_until_killed(folder: Path, random: Random) -> None:
    """Commit, have some of it confirmed, and end by a signal at some moment, perhaps while a flush is under way."""
    limits = FlushLimits(bytes=200_000, pause_bytes=2_000_000)
    leader = Leader(Replica(folder / "copy", limits=limits), FileLog(folder / "log"))
    steps, flushes, in_flush = random.randint(5, 60), 0, random.random() < 0.7
    for number in range(1, 1_000_000):
        leader.copy.commit(random_changes(random, number, 20_000))
        before = leader.copy._running
        leader.arrive(None if random.random() < 0.3 or leader.copy.wants_pause else random.randint(0, len(leader.pending)))
        flushes += leader.copy._running not in {None, before}
        if number >= steps and flushes and (not in_flush or leader.copy._flush_runs()):
            for _ in range(random.choice([0, 0, 100, 1000, 10_000, 30_000])):
                pass
            leader.copy.commit(random_changes(random, number + 1, 20_000))
            os.kill(os.getpid(), signal.SIGKILL)


@pytest.mark.parametrize("seed", range(4))
def test_a_killed_leader_stands_at_a_confirmed_state(tmp_path: Path, seed: int) -> None:
    for life in range(3):  # each goes on with what the one before has left
        killed = subprocess.run([sys.executable, "-c", CHILD, str(tmp_path), str(seed * 10 + life)], timeout=60, check=False)
        assert killed.returncode == -signal.SIGKILL
        log = FileLog(tmp_path / "log")
        copy = Replica(tmp_path / "copy")
        assert copy.whole
        check(copy, log)
        catch_up(copy, log)
        check(copy, log)
        copy.close()
