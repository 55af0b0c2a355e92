"""Change the number of shards of a data directory, while its cluster is stopped.

The new shards are built beside the old ones (:mod:`fila_worker.reshard`), then the names are exchanged, then the old ones are
removed. The plan has the present phase, and each phase can be repeated::

    reshard.json       the plan
    reshard/new/       the new shards, while they are built
    reshard/old/       the old shards, after the exchange

The exchange first moves all old shards away, and then the new ones to their places. So a directory ``shard-0000`` is an old
one as long as ``reshard/old`` lacks it.
"""

import json
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from fila_cluster.run.supervisor import CannotStartError
from fila_cluster.run.supervisor.data_dir import DataDir, ReshardPhase, ReshardPlan, read_plan, remove_plan, write_plan
from fila_process.files import move, remove, sync_names
from fila_worker.storage.made import mark_made, mark_of
from fila_worker.storage.residence import forget_moves


@dataclass(frozen=True, slots=True)
class CopyProgress:
    """Callbacks during a reshard.

    ``shard(index, messages)``: the copy of an old shard begins, which has so many messages. ``copied(messages)``: so many
    more were copied, or had been. ``step(name)``: before or after a change on disk; tests end the process there.
    """

    shard: Callable[[int, int], None] = lambda index, messages: None
    copied: Callable[[int], None] = lambda messages: None
    step: Callable[[str], None] = lambda name: None


def run_copy(job: dict[str, Any], lock: int, progress: CopyProgress) -> dict[str, int]:
    """Copy shards in a process that holds ``lock``; return the totals. :class:`CannotStartError`: a shard can't be copied."""
    command = [sys.executable, "-P", "-m", "fila_worker.reshard"]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, pass_fds=[lock]) as child:
        assert child.stdin
        assert child.stdout
        child.stdin.write(json.dumps(job).encode() + b"\n")
        child.stdin.close()
        last: list[Any] = []
        try:
            for line in child.stdout:
                last = json.loads(line)
                if last[0] == "shard":
                    progress.shard(last[1], last[2])
                elif last[0] == "copied":
                    progress.copied(last[1])
        except BaseException:
            child.kill()
            raise
    match last:
        case ["done", dict(totals)] if child.returncode == 0:
            return totals
        case ["failed", str(text)]:
            raise CannotStartError(f"{text}; the old shards are as they were, and the same command continues")
    raise CannotStartError(f"the copy ended with exit code {child.returncode}: run the same command again")


SHARDS_MAX = 4096
SHARD_BYTES = 4 * 1024 * 1024
"""The bytes that an empty shard may take on disk."""
LOG_BYTES = 128 * 1024 * 1024
"""The bytes that the log of a shard may take beside its tables (``LOG_BYTES_MAX`` of the storage)."""


@dataclass(frozen=True, slots=True)
class Space:
    """Bytes on disk. ``needed``: for the new shards beside the old ones; ``free``: of the disk."""

    needed: int
    free: int


@dataclass(frozen=True, slots=True)
class ReshardOutcome:
    """The result. ``seconds``: of this run."""

    before: int
    after: int
    queues: int
    messages: int
    size_bytes: int
    seconds: float


def free_bytes(directory: Path) -> int:
    """Return the free bytes of a directory's disk."""
    return shutil.disk_usage(directory).free


def size_of(directory: Path) -> int:
    """Return the bytes that a directory takes on disk, 0 if it does not exist."""
    return sum(file.stat().st_blocks * 512 for file in directory.rglob("*") if file.is_file())


def reshard(
    path: Path,
    shards: int,
    announce: Callable[[ReshardPlan, Space], None],
    progress: CopyProgress,
    measure_free: Callable[[Path], int] = free_bytes,
) -> ReshardOutcome | None:
    """Give a data directory another number of shards, or finish what an earlier run began; None: it has that number.

    ``announce`` is called before shards are copied. Raise :class:`CannotStartError`, also if a shard can't be read or
    written: then the old shards are as they were.
    """
    if not 1 <= shards <= SHARDS_MAX:
        raise CannotStartError(f"{shards} shards: use 1 to {SHARDS_MAX}")
    began = time.monotonic()
    with _opened(path) as (directory, plan):
        if plan is None and directory.shards == shards:
            return None
        if plan is not None and plan.after != shards:
            raise CannotStartError(
                f"{directory.path} is being changed to {plan.after} shards: finish that first with --shards {plan.after}"
                + (", or cancel it with --cancel" if plan.phase == ReshardPhase.COPY else "")
            )
        work = _Work(directory, plan or ReshardPlan(directory.shards or 0, shards), progress)
        if plan is None:
            work.begin(measure_free)
        work.copy(announce, measure_free)
        work.switch()
        work.clean()
    done = work.plan
    return ReshardOutcome(done.before, done.after, done.queues, done.messages, done.size_bytes, time.monotonic() - began)


def cancel(path: Path) -> bool:
    """Drop the new shards of an unfinished reshard. Return False if there is none. Raise :class:`CannotStartError`."""
    with _opened(path) as (directory, plan):
        if plan is None:
            return False
        if plan.phase != ReshardPhase.COPY:
            raise CannotStartError(
                f"the {plan.after} new shards of {directory.path} are complete: finish with "
                f"`fila-cluster reshard --data-dir {directory.path} --shards {plan.after}`"
            )
        remove_plan(directory.path)  # first: the next run removes the rest of the new shards
        _remove_tree(directory.path / "reshard")
    return True


@contextmanager
def _opened(path: Path) -> Iterator[tuple[DataDir, ReshardPlan | None]]:
    """Hold the lock of a data directory; yield it with the plan of an unfinished reshard."""
    directory = DataDir(path, resharding=True)
    try:
        if directory.shards is None:
            raise CannotStartError(f"{directory.path} holds no shards: choose the --data-dir of the cluster")
        directory.claim(directory.shards)
        yield directory, read_plan(directory.path)
    except OSError as error:
        raise CannotStartError(f"cannot change {path}: {error.strerror or error}; run the same command again") from None
    finally:
        directory.release()


class _Work:
    """The steps of a reshard. ``plan`` says which are done."""

    def __init__(self, directory: DataDir, plan: ReshardPlan, progress: CopyProgress) -> None:
        self.plan = plan
        self._directory, self._progress = directory, progress
        self._path = directory.path
        self._work = self._path / "reshard"

    def begin(self, measure_free: Callable[[Path], int]) -> None:
        """Check that all shards are here and that there is room, and write the plan."""
        for index in range(self.plan.before):
            shard = _shard(self._path, index)
            if not (shard.is_dir() and any(shard.iterdir())):
                raise CannotStartError(
                    f"{shard} is missing: bring all {self.plan.before} shards into {self._path}, or start the cluster once "
                    "if it is new"
                )
        _remove_tree(self._work)  # of a run that was cancelled
        self._refuse_full(self._space(measure_free))
        self._note(self.plan)

    def _note(self, plan: ReshardPlan) -> None:
        self._progress.step(f"plan to {plan.phase}")
        write_plan(self._path, plan)
        self.plan = plan
        self._progress.step(f"planned {plan.phase}")

    # --- copy ---------------------------------------------------------------------------------------------------------

    def copy(self, announce: Callable[[ReshardPlan, Space], None], measure_free: Callable[[Path], int]) -> None:
        """Build the new shards."""
        if self.plan.phase != ReshardPhase.COPY:
            return
        space = self._space(measure_free)
        announce(self.plan, space)
        self._refuse_full(space)
        new = self._work / "new"
        for each in (self._work, new, self._work / "old"):
            each.mkdir(mode=0o700, exist_ok=True)
        job = {"old": str(self._path), "new": str(new), "before": self.plan.before, "after": self.plan.after}
        totals = run_copy(job, self._directory.lock, self._progress)
        sync_names(new)
        sync_names(self._work)
        self._note(replace(self.plan, phase=ReshardPhase.SWITCH, **totals))

    def _space(self, measure_free: Callable[[Path], int]) -> Space:
        """Return the space for the copy: the messages once more, and RocksDB's logs until they are in tables."""
        old = sum(size_of(_shard(self._path, index)) for index in range(self.plan.before))
        logs = min(old, self.plan.after * LOG_BYTES)
        return Space(old + logs + self.plan.after * SHARD_BYTES, measure_free(self._path) + size_of(self._work / "new"))

    def _refuse_full(self, space: Space) -> None:
        if space.free < space.needed:
            raise CannotStartError(
                f"{self.plan.after} shards beside the old ones may need {_mebibytes(space.needed)}, and the disk of "
                f"{self._path} has {_mebibytes(space.free)} free: make room; the old shards are as they were"
            )

    # --- exchange -----------------------------------------------------------------------------------------------------

    def switch(self) -> None:
        """Exchange the names."""
        if self.plan.phase != ReshardPhase.SWITCH:
            return
        forget_moves(self._path)  # they are about the old shards
        for index in range(self.plan.before):
            self._move(_shard(self._path, index), _shard(self._work / "old", index), once=True)
        for index in range(self.plan.after):
            self._move(_shard(self._work / "new", index), _shard(self._path, index))
            mark_made(_shard(self._path, index))
        for index in range(self.plan.after, self.plan.before):
            remove(mark_of(_shard(self._path, index)))
        self._progress.step("renumber")
        self._directory.renumber(self.plan.after)
        self._note(replace(self.plan, phase=ReshardPhase.CLEAN))

    def _move(self, source: Path, target: Path, *, once: bool = False) -> None:
        """Move a shard, unless an earlier run did. ``once``: then another shard may have its name."""
        if source.is_dir() and not (once and target.is_dir()):
            self._progress.step(f"move {source.name}")
            move(source, target)

    def clean(self) -> None:
        """Remove the old shards, and then the plan."""
        self._progress.step("clean")
        _remove_tree(self._work)
        self._progress.step("cleaned")
        remove_plan(self._path)


def _shard(folder: Path, index: int) -> Path:
    return folder / f"shard-{index:04d}"


def _remove_tree(folder: Path) -> None:
    if folder.exists():
        shutil.rmtree(folder)
        sync_names(folder.parent)


def _mebibytes(size_bytes: int) -> str:
    return f"{-(-size_bytes // 2**20):,} MiB"
