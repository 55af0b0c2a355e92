"""Copies of one shard and a log in memory: what leads and follows, without brokers."""

from pathlib import Path
from random import Random

from fila_worker.core.store import Families
from fila_worker.log.records import Changes, LogRecord, RecordKind, decode, decode_changes, encode
from fila_worker.log.rule import START, Counted, Position, Rule, Writer
from fila_worker.storage.memory import MemoryStore
from fila_worker.storage.replica import POSITION, Replica

RECORD_BYTES_MAX = 600
"""So small that many batches take several records."""
STAMP = b"stamp"
"""A key that each of :func:`random_changes` sets in all families."""

Contents = dict[str, dict[bytes, bytes]]
"""Of each family."""


class MemoryLog(list[bytes]):
    """A partition: the place of a record is its offset."""

    def mark(self) -> None:
        """Have another writer take over."""
        self.append(encode(LogRecord(RecordKind.MARKER, 0, 0)))

    def counted(self, position: Position = START) -> list[Counted]:
        """Return what counts behind a position."""
        rule = Rule(position)
        found = [rule.read(offset, decode(self[offset], offset)) for offset in range(rule.next_offset, len(self))]
        return [each for each in found if each is not None]

    def contents(self, position: Position) -> Contents:
        """Return what a copy has that is at a position."""
        model = MemoryStore()
        for counted in self.counted():
            if counted.kind is RecordKind.BATCH and counted.position.offset <= position.offset:
                batch = model.new_batch()
                decode_changes(counted.body, 0).apply(batch, model.families)
                model.commit(batch)
        return {name: dict(family) for name, family in zip(Families._fields, model.families, strict=True)}


class Leader:
    """A copy that leads. What it appends is ``pending`` until it arrives in the log."""

    def __init__(self, copy: Replica, log: MemoryLog | None = None) -> None:
        self.copy = copy
        self.log = MemoryLog() if log is None else log
        self.pending: list[bytes] = []
        self.log.mark()
        catch_up(copy, self.log)
        self.writer = Writer(copy.position, RECORD_BYTES_MAX)
        copy.lead(self._append)

    def _append(self, data: bytes) -> int:
        self.pending += self.writer.batch(data)
        return self.writer.appended

    def beat(self) -> None:
        """Append a sign of life."""
        self.pending.append(self.writer.beat())

    def arrive(self, records: int | None = None) -> None:
        """Have the log take the first of the pending records, all by default, and confirm what that confirms."""
        arrived = self.pending[:records]
        del self.pending[:records]
        for data in arrived:
            self.writer.report(decode(data, len(self.log)).number, len(self.log))
            self.log.append(data)
            while (offset := self.writer.read_from) is not None:
                self.writer.read(offset, decode(self.log[offset], offset))
        self.copy.confirm(self.writer.position)


class ConfirmedReplica(Replica):
    """A leading copy whose batches are confirmed at once."""

    def __init__(self, path: Path) -> None:
        super().__init__(path)
        self._leader = Leader(self)

    def commit(self, batch: object, *, sync: bool = False) -> None:
        """Commit, and have it confirmed."""
        assert isinstance(batch, Changes)
        super().commit(batch, sync=sync)
        self._leader.arrive()


def catch_up(copy: Replica, log: MemoryLog) -> None:
    """Apply what a copy has not got yet."""
    for counted in log.counted(copy.position):
        copy.apply(counted)


def contents(copy: Replica) -> Contents:
    """Return what a copy has, without its position."""
    found = {name: dict(copy.scan(b"", b"\xff" * 32, getattr(copy.families, name))) for name in Families._fields}
    found["state"].pop(POSITION, None)
    return found


def stamped(number: int, size: int = 0) -> Changes:
    """Return changes that set the same key of all families to a number, and that many bytes behind it."""
    changes = Changes()
    for family in range(len(Families._fields)):
        changes.put(STAMP, b"%d" % number + bytes(size), family)
    return changes


def random_changes(random: Random, number: int, size_max: int = 200) -> Changes:
    """Return changes of any kind, behind a stamp."""
    changes = stamped(number)
    for _ in range(random.randrange(20)):
        family, key = random.randrange(len(Families._fields)), b"%03d" % random.randrange(100)
        match random.choice(["put", "put", "put", "delete", "delete_range"]):
            case "put":
                changes.put(key, random.randbytes(random.randrange(size_max)), family)
            case "delete":
                changes.delete(key, family)
            case _:
                changes.delete_range(key, key + b"\xff", family)
    return changes
