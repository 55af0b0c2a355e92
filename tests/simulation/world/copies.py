"""The copies that hosts have of a shard on the shared log.

:class:`SimCopy` stands in for :class:`fila_worker.storage.replica.Replica` and keeps its contract: on the disk is only what was flushed, and flushed
is only what is confirmed. A process that ends without closing its copy leaves it as of the last flush that had ended.
"""

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple

from fila_proto_zmq.errors import StorageError
from fila_worker.core.measures import CONFIRM_NS, CountedHistogram
from fila_worker.core.store import InUseError
from fila_worker.log.records import Changes, RecordKind, decode_changes, encode_changes
from fila_worker.log.rule import START, Counted, Position
from fila_worker.storage.memory import MemoryStore
from fila_worker.storage.replica import DivergedError, FlushLimits
from tests.simulation.world.disk import SimBatch, _apply
from tests.simulation.world.shared_log import SharedLog, digest
from tests.simulation.world.world import Process, World

FLUSH_US = (0, 3000, 400_000)
"""How long a flush takes."""


class Stored(NamedTuple):
    """What a copy says of itself, beside its data."""

    position: Position = START
    ahead: int = 0
    """The number of the last batch in it."""
    marker: bytes = b""
    digest: bytes = b""
    """Of all batches in it: for the checkers."""


@dataclass
class CopyDisk:
    """The directory of one shard's copy on one host, through all lives of its worker."""

    world: World
    host: str
    log: SharedLog
    limits: FlushLimits

    def __post_init__(self) -> None:
        self.name = f"copy of shard {self.log.shard} on {self.host}"
        self.random = self.world.random(self.name)
        self.fail_in: int | None = None
        """Which of the next commits fails: 1 is the next one."""
        self.holder: tuple[Process, int] | None = None
        self.slow_log = None
        self.opened = 0
        self.erase()

    def erase(self) -> None:
        """Be a new disk."""
        self.store = MemoryStore()
        self.flushed = Stored()
        self.undo: list[tuple[Any, bytes, bytes | None]] = []
        """What takes the copy back to the last flush."""

    def open(self, process: Process) -> "SimCopy":
        """Open it for a process. What was not flushed is gone."""
        if self.holder is not None:
            other, life = self.holder
            if other.alive and other.lives == life:
                raise InUseError(f"the {self.name}: {other.name} has it open")
        self.holder = process, process.lives
        self.opened += 1
        for family, key, value in reversed(self.undo):
            if value is None:
                family.pop(key, None)
            else:
                family[key] = value
        self.undo.clear()
        return SimCopy(self)


class SimExchange:
    """Stands in for :class:`fila_worker.replication.log_checkpoints.exchange.Exchange`, without a target for checkpoints. ``copy``: what is opened as the copy."""

    def __init__(self, copy: CopyDisk) -> None:
        self.copy = copy

    def adopt(self) -> bool:
        """Return that no checkpoint was brought."""
        return False

    def discard(self) -> None:
        """Drop the copy, which is closed. Only what was flushed may be there, and that has counted."""
        self.copy.world.fail("copies", f"the {self.copy.name} is dropped, because it has what is not in the log")
        self.copy.erase()

    def sweep(self) -> None:
        """Find nothing that was replaced."""


class SimCopy(MemoryStore):
    """A :class:`fila_worker.log.member.Copy`."""

    def __init__(self, disk: CopyDisk) -> None:
        super().__init__()
        self.disk = disk
        self.families = disk.store.families
        self._numbers = {id(family): number for number, family in enumerate(self.families)}
        self._life = disk.opened
        self.position, self._ahead, self.marker, self._digest = disk.flushed
        self._append: Callable[[bytes], int] | None = None
        self._waiting: deque[tuple[int, int, int]] = deque()
        self.confirm_ns = CountedHistogram(CONFIRM_NS)
        self._unconfirmed = 0
        self._buffered = 0
        self._since_ms: int | None = None
        self._now_ms = 0
        self._running: tuple[Stored, int] | None = None
        """What a flush is writing, and how much of ``undo`` that is."""
        self._failure: StorageError | None = None
        self.compare("when it was opened")

    def compare(self, when: str) -> None:
        """What a copy has is what counts in the log up to its position, unless it is ahead."""
        log = self.disk.log
        if self.whole and self._digest != log.digests[self.position.offset]:
            log.world.fail("copies", f"the {self.disk.name} is not what the log has up to {self.position}, {when}")

    # --- the log --------------------------------------------------------------------------------------------------------

    @property
    def whole(self) -> bool:
        """Whether all that it has was seen in the log."""
        return self._ahead <= self.position.number

    def apply(self, counted: Counted) -> None:
        """Take in what counts."""
        assert self._append is None
        position = counted.position
        assert position.offset > self.position.offset
        self._refuse_changes()
        if not self.whole:
            if counted.kind is RecordKind.MARKER or position.number > self._ahead:
                raise self._diverged()
        elif counted.kind is RecordKind.BATCH:
            batch = SimBatch()
            decode_changes(counted.body, position.offset).apply(batch, self.families)
            self._write(batch, position.number, counted.body)
        elif counted.kind is RecordKind.MARKER:
            self._ahead, self.marker = 0, counted.body
        self.position = position
        self._flush_if_due()

    def _diverged(self) -> DivergedError:
        return DivergedError(f"the {self.disk.name} has number {self._ahead} of an epoch, and the log {self.position}")

    def lead(self, append: Callable[[bytes], int]) -> None:
        """Be the store of the shard."""
        assert self.position.number == 0 <= self.position.offset
        if not self.whole:
            raise self._diverged()
        self._append = append

    def follow(self) -> None:
        """Lead no more."""
        if self._waiting:
            raise self._diverged()
        self._append = None

    def confirm(self, position: Position) -> None:
        """Take that all is confirmed up to a position."""
        assert position.epoch == self.position.epoch
        log = self.disk.log
        if log.places.get((position.epoch, position.number)) != position.offset:
            log.world.fail(
                "confirmed",
                f"{log.world.current.name} takes {position} of shard {log.shard} as confirmed, and it does not count",
            )
        while self._waiting and self._waiting[0][0] <= position.number:
            _, size, committed_us = self._waiting.popleft()
            self._unconfirmed -= size
            self.confirm_ns.observe(1000 * (log.world.now_us - committed_us))
        self.position = position
        self._flush_if_due()

    # --- the storage port -----------------------------------------------------------------------------------------------

    @property
    def confirmed(self) -> int:
        return self.committed - len(self._waiting)

    @property
    def unconfirmed_bytes(self) -> int:
        return self._unconfirmed

    @property
    def failure(self) -> StorageError | None:  # type: ignore[override]  # the twin never fails
        return self._failure

    def new_batch(self) -> SimBatch:
        return SimBatch()

    def commit(self, batch: Any, *, sync: bool = False) -> None:
        assert self._append is not None, "only the log changes it"
        disk = self.disk
        process = disk.world.current
        process.touch(f"a commit of shard {disk.log.shard}")
        self._refuse_changes()
        data = encode_changes(self._encoded(batch))
        number = self._append(data)
        self.committed += 1
        self._waiting.append((number, len(data), disk.world.now_us))
        self._unconfirmed += len(data)
        if disk.fail_in is not None:
            disk.fail_in -= 1
            if disk.fail_in <= 0:
                disk.fail_in = None
                self._failure = StorageError(f"the {disk.name}: no space left on device (simulated)")
                raise self._failure
        self._write(batch, number, data)
        self._changes.observe(len(batch))
        process.touch(f"what follows a commit of shard {disk.log.shard}")

    def _encoded(self, batch: SimBatch) -> Changes:
        changes = Changes()
        for family, *rest in batch.changes:
            number = self._numbers[id(family)]
            if len(rest) == 3:
                changes.delete_range(rest[0], rest[1], number)
            elif rest[1] is None:
                changes.delete(rest[0], number)
            else:
                changes.put(rest[0], rest[1], number)
        return changes

    def _write(self, batch: SimBatch, ahead: int, data: bytes) -> None:
        for change in batch.changes:
            _apply(change, self.disk.undo)
        self._ahead = ahead
        self._digest = digest(self._digest, data)
        self._buffered += len(data)

    def close(self) -> None:
        """Flush, unless something is unconfirmed or was refused."""
        self.disk.world.current.touch(f"close the {self.disk.name}")
        if not self._waiting and self._failure is None:
            self._begin_flush()
            self._end_flush(self._life)
        self._life = -1
        self._append = None
        self.disk.holder = None

    # --- flushes --------------------------------------------------------------------------------------------------------

    @property
    def wants_pause(self) -> bool:
        """Whether nothing should be committed or applied until this is False."""
        limits = self.disk.limits
        if self._buffered >= limits.pause_bytes:
            return bool(self._waiting) or self._running is not None
        return self._age_ms >= limits.pause_age_ms and bool(self._waiting)

    @property
    def _age_ms(self) -> int:
        return 0 if self._since_ms is None else self._now_ms - self._since_ms

    def tend(self, now_ms: int) -> None:
        """Begin a flush that is due."""
        self._now_ms = now_ms
        if self._buffered and self._since_ms is None:
            self._since_ms = now_ms
        self._flush_if_due()

    def _flush_if_due(self) -> None:
        limits = self.disk.limits
        behind = self.position.offset - self.disk.flushed.position.offset
        due = self._buffered >= limits.bytes or self._age_ms >= limits.age_ms or behind >= limits.records
        if due and self._may_flush() and self._failure is None and self._running is None:
            self._begin_flush()
            self.disk.world.after(self.disk.random.choice(FLUSH_US), self._end_flush, self._life)

    def _may_flush(self) -> bool:
        return not self._waiting

    def _begin_flush(self) -> None:
        self._running = Stored(self.position, self._ahead, self.marker, self._digest), len(self.disk.undo)
        self._buffered, self._since_ms = 0, None

    def _end_flush(self, life: int) -> None:
        """All that was written when it began is on the disk."""
        holder = self.disk.holder
        if life != self.disk.opened or self._life != life or self._running is None or holder is None:
            return
        if not holder[0].alive or holder[0].lives != holder[1]:
            return
        self.disk.flushed, count = self._running
        del self.disk.undo[:count]
        self._running = None

    def _refuse_changes(self) -> None:
        if self._failure is not None:
            raise self._failure
