"""The replicated log under the shards of several hosts: delays, losses of brokers, cuts, and what a client of Kafka may do.

Each shard has a :class:`SharedLog`, and each process a :class:`SimPartition` of it, in place of the one on Kafka. An append takes time to arrive and
time to be reported. What is on the way when its process ends, or gives it up, arrives in part, perhaps long after the next leader's marker. A record
may be in the log twice, or be reported without its place. A partition that has lost its leader answers nothing for seconds.
"""

from collections import deque
from collections.abc import Callable, Sequence
from random import Random
from typing import TYPE_CHECKING, Any

from fila_proto_zmq.errors import StorageError
from fila_worker.core.store import Families
from fila_worker.log.kafka.settings import KafkaSettings
from fila_worker.log.partition import LogEntry
from fila_worker.log.records import Changes, RecordKind, decode, decode_changes
from fila_worker.log.rule import Position, Rule
from tests.simulation.world.world import World
from tests.support.memory_log import MemoryAppender, MemoryLog, MemoryPartition, MemoryTail

if TYPE_CHECKING:
    from tests.simulation.world.hosts import Machine

REPEATED, UNPLACED = 0.01, 0.01
"""How often a record is in the log twice, and how often its place is not reported."""
FAMILIES = Families(*range(len(Families._fields)))

Change = tuple[Any, ...]


class SharedLog(MemoryLog):
    """One shard's log. ``watchers``: called with the shard, the changes of each batch that counts, and the families."""

    def __init__(self, world: World, shard: int, append_us: tuple[int, int]) -> None:
        super().__init__()
        self.world = world
        self.shard = shard
        self.name = f"log {shard}"
        self.append_us = append_us
        self.random: Random = world.random(f"shared log of shard {shard}")
        self.stalled_until_us = 0
        """Its leader among the brokers is lost: nothing goes on."""
        self.calm = False
        """Whether nothing is repeated or reported without its place."""
        self.times: list[int] = []
        """When each record came."""
        self.watchers: list[Callable[[int, list[Change], Families], object]] = []
        self.places: dict[tuple[int, int], int] = {}
        """Where each number of each epoch is that counts."""
        self.digests: dict[int, bytes] = {-1: b""}
        """Of all batches that count, up to each offset."""
        self.proofs: dict[int, int] = {}
        """By epoch, when the last record came that counts."""
        self.markers: list[int] = []
        self._rule = Rule()
        self._digest = b""

    def put(self, data: bytes) -> int:
        """Append a record, and judge it as all who read it will."""
        offset = super().put(data)
        self.times.append(self.world.now_us)
        self._judge(offset, data)
        self.digests[offset] = self._digest
        return offset

    def _judge(self, offset: int, data: bytes) -> None:
        try:
            counted = self._rule.read(offset, decode(data, offset))
        except StorageError as error:
            self.world.fail("log", f"a record of shard {self.shard} is none that may come there: {error}"[:400])
            return
        if counted is not None:
            self._note(counted.position, counted.kind, counted.body)

    def _note(self, position: Position, kind: RecordKind, body: bytes) -> None:
        self.places[position.epoch, position.number] = position.offset
        self.proofs[position.epoch] = self.world.now_us
        if kind is RecordKind.MARKER:
            self.markers.append(position.offset)
            self.world.tell(self.name, f"has a marker at {position.offset}")
        elif kind is RecordKind.BATCH:
            self._digest = digest(self._digest, body)
            changes = plain_changes(decode_changes(body, position.offset))
            for watch in self.watchers:
                watch(self.shard, changes, FAMILIES)

    def trim(self, offset: int) -> None:
        """Forget the records before ``offset``."""
        begin = self.begin
        super().trim(offset)
        del self.times[: self.begin - begin]

    def delay_us(self) -> int:
        """How long one way to the brokers takes."""
        return self.random.randint(*self.append_us)


class ControlLog(SharedLog):
    """The partition in which nodes say what they have. Nothing in it counts, so nothing is judged."""

    def _judge(self, offset: int, data: bytes) -> None:
        """Let it be."""


def digest(before: bytes, body: bytes) -> bytes:
    """The digest of a sequence of batches with one more."""
    return hash((before, body)).to_bytes(8, "big", signed=True)


def plain_changes(changes: Changes) -> list[Change]:
    """The changes of a batch as a disk's watchers see them."""
    seen = _Seen()
    changes.apply(seen, FAMILIES)
    return seen.changes


class _Seen:
    def __init__(self) -> None:
        self.changes: list[Change] = []

    def __len__(self) -> int:
        return len(self.changes)

    def put(self, key: bytes, value: bytes, family: Any, /) -> None:
        self.changes.append((family, key, value))

    def delete(self, key: bytes, family: Any, /) -> None:
        self.changes.append((family, key, None))

    def delete_range(self, begin: bytes, end: bytes, family: Any, /) -> None:
        self.changes.append((family, begin, end, True))


class SimPartition(MemoryPartition):
    """A process's way to a shard's log."""

    log: SharedLog

    def __init__(self, machine: "Machine", log: SharedLog, settings: KafkaSettings, wake: Callable[[], None]) -> None:
        super().__init__(log, machine.steady_ms, wake, held=True, record_bytes_max=settings.data_bytes_max)
        process = log.world.current
        life = process.lives
        self.machine = machine
        self.lives: Callable[[], bool] = lambda: process.alive and process.lives == life
        self.touch: Callable[[str], None] = process.touch
        self.patience_us = settings.patience_ms * 1000

    def appender(self) -> "SimAppender":
        """Return a new appender."""
        return SimAppender(self)

    def tail(self, offset: int) -> "SimTail":
        """Return a new reader."""
        return SimTail(self, offset)

    def blocked_us(self) -> int:
        """How long no broker answers here."""
        return max(self.log.stalled_until_us, self.machine.off_log_until_us) - self.log.world.now_us


class SimLog:
    """A process's way to the logs of all shards."""

    def __init__(
        self, machine: "Machine", logs: Sequence[SharedLog], settings: KafkaSettings, wake: Callable[[], None]
    ) -> None:
        self._machine, self._logs, self._settings, self._wake = machine, logs, settings, wake

    def partition(self, number: int) -> SimPartition:
        """Return one of them."""
        return SimPartition(self._machine, self._logs[number], self._settings, self._wake)

    def look(self) -> None:
        """Ask nothing: this log does not say which copies it has."""

    problem = ""
    """Its settings stay as they are."""


class SimAppender(MemoryAppender):
    """Appends that take their time."""

    def __init__(self, partition: SimPartition) -> None:
        super().__init__(partition)
        self._way, self._log = partition, partition.log
        self._arrives_us = self._reported_us = 0
        self._late: deque[bytes] | None = None
        """What still arrives although nobody waits for it any more; None: somebody does."""

    def append(self, data: bytes) -> int:
        """Begin to append a record."""
        self._way.touch(f"append to the log of shard {self._log.shard}")
        number = super().append(data)
        world = self._log.world
        self._arrives_us = max(self._arrives_us, world.now_us + self._log.delay_us())
        world.at(self._arrives_us, self._try_to_arrive)
        world.after(self._way.patience_us, self._lose_patience, number)
        return number

    def _give_up(self) -> None:
        """Choose what of all that is on the way arrives all the same: the first so many."""
        if self._late is None:
            waiting = [append.data for append in self._on_the_way]
            self._late = deque(waiting[: self._log.random.randint(0, len(waiting))])
            self._on_the_way.clear()

    def _fail_the_rest(self) -> None:
        on_the_way = self._on_the_way.copy()
        self._give_up()
        self._on_the_way.extend(on_the_way)
        super()._fail_the_rest()

    def _try_to_arrive(self) -> None:
        if self.closed or not self._way.lives():
            self._give_up()
        if not (self._on_the_way if self._late is None else self._late):
            return
        log, blocked_us = self._log, self._way.blocked_us()
        if blocked_us > 0:
            log.world.after(blocked_us + log.delay_us(), self._try_to_arrive)
        elif self._late is not None:
            log.put(self._late.popleft())
        else:
            self.arrive()
            if not log.calm and log.random.random() < REPEATED:
                self.repeat(reported=log.random.random() < 0.5)
            self._reported_us = max(self._reported_us, log.world.now_us + log.delay_us())
            log.world.at(self._reported_us, self._try_to_report)

    def _try_to_report(self) -> None:
        if not self._arrived or self.closed or not self._way.lives():
            return
        log, blocked_us = self._log, self._way.blocked_us()
        if blocked_us > 0:
            log.world.after(blocked_us + log.delay_us(), self._try_to_report)
        else:
            self.report(offset=log.calm or log.random.random() >= UNPLACED)

    def _lose_patience(self, number: int) -> None:
        """The outcome of an append without a report is unknown by now, and that of all behind it."""
        if self.closed or self._failed or not self._way.lives():
            return
        oldest = self._arrived[0][0] if self._arrived else self._on_the_way[0] if self._on_the_way else None
        if oldest is not None and oldest.number <= number:
            self._log.world.tell(self._log.name, f"{self._way.machine.name} does not know what became of its appends")
            self.fail("no broker has answered for too long")


class SimTail(MemoryTail):
    """A reader to which records come late, and nothing while no broker answers."""

    def __init__(self, partition: SimPartition, offset: int) -> None:
        super().__init__(partition, offset)
        self._way = partition

    def read(self, records_max: int) -> list[LogEntry]:
        """Return the next records that have come."""
        log = self._way.log
        if self._way.blocked_us() > 0:
            return []
        seen_us = log.world.now_us - self._way.machine.lag_us()
        count, begin = 0, self._next - log.begin
        while 0 <= begin + count < len(log.times) and count < records_max and log.times[begin + count] <= seen_us:
            count += 1
        return super().read(count)

    def ask(self) -> None:
        """Ask for the end."""
        if self._asking_ms is None:
            super().ask()
            self._way.log.world.after(self._way.log.delay_us(), self._reach)

    def _reach(self) -> None:
        if self._way.blocked_us() > 0:
            self._asking_ms = None
        else:
            self._way.log.world.after(self._way.log.delay_us(), self._tell, self._way.log.end)

    def _tell(self, end: int) -> None:
        if self._asking_ms is None or self.closed or not self._way.lives():
            return
        if self._way.blocked_us() <= 0:
            self._asked_ms, self._end = self._asking_ms, end
            self._way.wake()
        self._asking_ms = None
