"""The port of a replicated log in memory, for tests and the simulation. There is no thread, and no chance in it.

:class:`MemoryLog` is what the brokers keep of one partition. Each process has a :class:`MemoryPartition` of it. By default all of its appends
and questions are answered at once. With ``held`` they wait, and the test says what becomes of them, one by one::

    log = MemoryLog()
    here, there = MemoryPartition(log, now_ms, held=True), MemoryPartition(log, now_ms)
    appender = here.appender()
    appender.append(b"late")
    there.appender().append(b"marker")
    appender.arrive()               # behind the marker
    appender.repeat()               # once more, as after a broker's death
    appender.report(offset=False)   # it is in the log, but where is not said
    appender.fail("timed out")      # nothing that this appender appends later gets into the log
    log.reachable = False           # no broker answers
    there.reachable = False         # none answers that process
    log.cut(1)                      # the log has gone back
"""

from collections import deque
from collections.abc import Callable
from typing import Final, NamedTuple

from fila_proto_zmq.commands import LogReplicas
from fila_worker.log.partition import AppendReport, LogEntry, TrimmedError
from fila_worker.log.rule import LostError

RECORD_BYTES_MAX: Final = 1024 * 1024


class MemoryLog:
    """The records of one partition, from ``begin`` on. They stay when the processes that use them end."""

    def __init__(self) -> None:
        self.begin = 0
        self.cuts: list[int] = []
        """Where the log has gone back to, each time."""
        self._records: list[bytes] = []
        self._reachable = True
        self._partitions: list[MemoryPartition] = []

    @property
    def end(self) -> int:
        """The offset behind the last record."""
        return self.begin + len(self._records)

    @property
    def entries(self) -> list[LogEntry]:
        """All records that are there."""
        return [LogEntry(offset, data) for offset, data in enumerate(self._records, self.begin)]

    @property
    def reachable(self) -> bool:
        """Whether a broker answers. Until it does, appends wait, questions fail, and nothing is read or trimmed."""
        return self._reachable

    @reachable.setter
    def reachable(self, reachable: bool) -> None:
        self._reachable = reachable
        for partition in self._partitions:
            partition.go_on()

    def put(self, data: bytes) -> int:
        """Append a record and return its offset."""
        self._records.append(data)
        return self.end - 1

    def read(self, offset: int, records_max: int) -> list[LogEntry]:
        """Return records from ``offset`` on."""
        at = offset - self.begin
        return [LogEntry(offset + place, data) for place, data in enumerate(self._records[at : at + records_max])]

    def trim(self, offset: int) -> None:
        """Forget the records before ``offset``, but keep the last one."""
        begin = max(self.begin, min(offset, self.end - 1))
        del self._records[: begin - self.begin]
        self.begin = begin

    def cut(self, offset: int) -> None:
        """Lose the records from ``offset`` on."""
        assert self.begin <= offset <= self.end, f"the log has {self.begin} to {self.end}, and not {offset}"
        del self._records[offset - self.begin :]
        self.cuts.append(offset)

    def join(self, partition: "MemoryPartition") -> None:
        """Let a process's partition go on whenever the log is reachable again."""
        self._partitions.append(partition)


class MemoryPartition:
    """A process's way to a log: a :class:`fila_worker.log.partition.Partition`.

    ``wake`` is called when there is a report or an answer. ``held``: nothing arrives and no question is answered unless the test says so.
    """

    def __init__(
        self,
        log: MemoryLog,
        now_ms: Callable[[], int],
        wake: Callable[[], None] = lambda: None,
        *,
        held: bool = False,
        record_bytes_max: int = RECORD_BYTES_MAX,
    ) -> None:
        self.log, self.now_ms, self.wake = log, now_ms, wake
        self.held, self.record_bytes_max = held, record_bytes_max
        self.appenders: list[MemoryAppender] = []
        self.tails: list[MemoryTail] = []
        self._reachable = True
        self.replicas: LogReplicas | None = None
        log.join(self)

    @property
    def reachable(self) -> bool:
        """Whether a broker answers this process."""
        return self._reachable and self.log.reachable

    @reachable.setter
    def reachable(self, reachable: bool) -> None:
        self._reachable = reachable
        self.go_on()

    def appender(self) -> "MemoryAppender":
        """Return a new appender; it is the last of ``appenders``."""
        self.appenders.append(MemoryAppender(self))
        return self.appenders[-1]

    def tail(self, offset: int) -> "MemoryTail":
        """Return a new reader from ``offset`` on; it is the last of ``tails``."""
        self.tails.append(MemoryTail(self, offset))
        return self.tails[-1]

    def trim(self, offset: int) -> None:
        """Let the log forget the records before ``offset`` if a broker answers."""
        if self.reachable:
            self.log.trim(offset)

    def go_on(self) -> None:
        """Let what waits for the log arrive, unless it is held."""
        for appender in self.appenders:
            appender.go_on()


class _Append(NamedTuple):
    number: int
    data: bytes


class MemoryAppender:
    """A :class:`fila_worker.log.partition.Appender`. An append arrives in the log, and then it is reported."""

    def __init__(self, partition: MemoryPartition) -> None:
        self._partition = partition
        self._appended = 0
        self._on_the_way: deque[_Append] = deque()
        self._arrived: deque[tuple[_Append, int]] = deque()
        """What is in the log without a report, with its offset."""
        self._reports: list[AppendReport] = []
        self._failed = ""
        self.closed = False

    # --- the port ---------------------------------------------------------------------------------------------------------

    def append(self, data: bytes) -> int:
        """Begin to append a record."""
        assert not self.closed, "it is closed"
        self._appended += 1
        self._on_the_way.append(_Append(self._appended, data))
        if self._failed:
            self._fail_the_rest()
        elif len(data) > self._partition.record_bytes_max:
            self.arrive(len(self._on_the_way) - 1)
            self.report(len(self._arrived))
            self.fail(f"a record of {len(data):,} bytes is larger than the log takes: {self._partition.record_bytes_max:,}")
        else:
            self.go_on()
        return self._appended

    def reports(self) -> list[AppendReport]:
        """Return the outcomes that were not returned yet."""
        reports, self._reports = self._reports, []
        return reports

    def close(self) -> None:
        """End. What is on the way may still arrive, if the test says so."""
        self.closed = True

    # --- for tests --------------------------------------------------------------------------------------------------------

    @property
    def on_the_way(self) -> int:
        """How many appends are neither in the log nor given up."""
        return len(self._on_the_way)

    @property
    def unreported(self) -> int:
        """How many records are in the log without a report."""
        return len(self._arrived)

    def arrive(self, count: int = 1) -> None:
        """Put the oldest appends that are on the way into the log. They are not reported yet."""
        for _ in range(count):
            append = self._on_the_way.popleft()
            self._arrived.append((append, self._partition.log.put(append.data)))

    def repeat(self, *, reported: bool = True) -> None:
        """Put the last record that arrived into the log once more. ``reported``: its report will name the second place."""
        append, first = self._arrived[-1]
        second = self._partition.log.put(append.data)
        self._arrived[-1] = (append, second if reported else first)

    def report(self, count: int = 1, *, offset: bool = True) -> None:
        """Report the oldest appends that have arrived. ``offset``: whether to say where they are."""
        for _ in range(count):
            append, at = self._arrived.popleft()
            self._reports.append(AppendReport(append.number, at if offset else None))
        self._wake()

    def fail(self, reason: str) -> None:
        """Report that all appends without a report have failed, and all later ones. Those that have arrived are in the log nevertheless."""
        self._failed = self._failed or reason
        self._fail_the_rest()

    def go_on(self) -> None:
        """Let all appends arrive and be reported if nothing holds them."""
        if self._partition.held or self.closed or not self._partition.reachable or not self._on_the_way:
            return
        self.arrive(len(self._on_the_way))
        self.report(len(self._arrived))

    def _fail_the_rest(self) -> None:
        self._reports.extend(AppendReport(append.number, None, self._failed) for append, _ in self._arrived)
        self._reports.extend(AppendReport(append.number, None, self._failed) for append in self._on_the_way)
        self._arrived.clear()
        self._on_the_way.clear()
        self._wake()

    def _wake(self) -> None:
        if self._reports and not self.closed:
            self._partition.wake()


class MemoryTail:
    """A :class:`fila_worker.log.partition.Tail`."""

    def __init__(self, partition: MemoryPartition, offset: int) -> None:
        self._partition = partition
        self._next = offset
        self._cuts = len(partition.log.cuts)
        """How many of the log's cuts were before this reader, or behind what it has read."""
        self._asked_ms: int | None = None
        self._asking_ms: int | None = None
        self._end: int | None = None
        self.closed = False

    # --- the port ---------------------------------------------------------------------------------------------------------

    def read(self, records_max: int) -> list[LogEntry]:
        """Return the next records."""
        assert not self.closed, "it is closed"
        log = self._partition.log
        if not self._partition.reachable:
            return []
        if self._next < log.begin:
            text = f"offset {self._next} is needed, but the log begins at {log.begin}: begin the copy again from a checkpoint"
            raise TrimmedError(text, details={"offset": self._next, "begin": log.begin})
        kept = min([log.end, *log.cuts[self._cuts :]])
        if self._next > kept:
            text = f"the log was read up to offset {self._next}, but it has gone back to {kept}"
            raise LostError(text, details={"offset": kept})
        self._cuts = len(log.cuts)
        entries = log.read(self._next, records_max)
        self._next += len(entries)
        return entries

    @property
    def end(self) -> int | None:
        """The offset behind the last record, as of ``asked_ms``."""
        return self._end

    @property
    def asked_ms(self) -> int | None:
        """When the question was asked that has its answer."""
        return self._asked_ms

    def ask(self) -> None:
        """Ask for the end."""
        if self._asking_ms is not None:
            return
        self._asked_ms, self._asking_ms = None, self._partition.now_ms()
        if not self._partition.held:
            self.answer()

    def close(self) -> None:
        """End."""
        self.closed = True

    # --- for tests --------------------------------------------------------------------------------------------------------

    def answer(self) -> None:
        """Let the question under way be answered, or fail if no broker answers."""
        if self._asking_ms is not None and self._partition.reachable and not self.closed:
            self._asked_ms, self._end = self._asking_ms, self._partition.log.end
            self._partition.wake()
        self._asking_ms = None
