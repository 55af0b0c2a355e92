"""The log in memory does what a real one does, and what a test asks it for."""

from dataclasses import dataclass

import pytest

from fila_worker.log.partition import AppendReport
from fila_worker.log.rule import LostError
from tests.support.hosts.partition_contract import RECORD_BYTES_MAX, PartitionContract
from tests.support.memory_log import MemoryLog, MemoryPartition


class MemoryProcess:
    def __init__(self, log: MemoryLog, *, held: bool = False) -> None:
        self.wakes, self.now_ms = 0, 0
        self.partition = MemoryPartition(log, lambda: self.now_ms, self._wake, held=held, record_bytes_max=RECORD_BYTES_MAX)

    def _wake(self) -> None:
        self.wakes += 1


@dataclass
class MemoryWays:
    log: MemoryLog

    def process(self) -> MemoryProcess:
        return MemoryProcess(self.log)

    def refuse(self, refused: bool) -> None:
        self.log.reachable = not refused


class TestMemoryPartition(PartitionContract):
    @pytest.fixture
    def ways(self) -> MemoryWays:
        return MemoryWays(MemoryLog())


@pytest.fixture
def log() -> MemoryLog:
    return MemoryLog()


@pytest.fixture
def held(log: MemoryLog) -> MemoryProcess:
    return MemoryProcess(log, held=True)


def data_of(log: MemoryLog) -> list[bytes]:
    return [entry.data for entry in log.entries]


def test_what_is_held_arrives_and_is_reported_when_the_test_says_so(log: MemoryLog, held: MemoryProcess) -> None:
    appender = held.partition.appender()
    for data in (b"a", b"b"):
        appender.append(data)
    assert (data_of(log), appender.reports(), appender.on_the_way) == ([], [], 2)
    appender.arrive()
    log.put(b"other")
    appender.arrive()
    assert (data_of(log), appender.reports(), appender.unreported) == ([b"a", b"other", b"b"], [], 2)
    assert held.wakes == 0
    appender.report(2)
    assert (appender.reports(), held.wakes) == ([AppendReport(1, 0), AppendReport(2, 2)], 1)


def test_a_record_is_in_the_log_twice(log: MemoryLog, held: MemoryProcess) -> None:
    appender = held.partition.appender()
    for reported in (True, False):
        appender.append(b"a")
        appender.arrive()
        appender.repeat(reported=reported)
        appender.report()
    assert data_of(log) == [b"a"] * 4
    assert appender.reports() == [AppendReport(1, 1), AppendReport(2, 2)]


def test_a_report_without_an_offset(held: MemoryProcess) -> None:
    appender = held.partition.appender()
    appender.append(b"a")
    appender.arrive()
    appender.report(offset=False)
    assert appender.reports() == [AppendReport(1, None)]


def test_a_failed_append_may_be_in_the_log_and_nothing_follows_it(log: MemoryLog, held: MemoryProcess) -> None:
    appender = held.partition.appender()
    for data in (b"a", b"b"):
        appender.append(data)
    appender.arrive()
    appender.fail("timed out")
    appender.append(b"c")
    assert appender.reports() == [AppendReport(number, None, "timed out") for number in (1, 2, 3)]
    assert data_of(log) == [b"a"]


def test_a_question_waits_for_its_answer(log: MemoryLog, held: MemoryProcess) -> None:
    tail = held.partition.tail(0)
    held.now_ms = 7
    tail.ask()
    held.now_ms = 9
    tail.ask()
    assert tail.asked_ms is None
    log.put(b"a")
    tail.answer()
    assert (tail.asked_ms, tail.end) == (7, 1)
    log.reachable = False
    tail.ask()
    tail.answer()
    assert (tail.asked_ms, tail.end) == (None, 1)


def test_a_process_that_is_cut_off_disturbs_no_other(log: MemoryLog) -> None:
    here, there = MemoryProcess(log).partition, MemoryProcess(log).partition
    appender, tail = here.appender(), here.tail(0)
    here.reachable = False
    appender.append(b"a")
    there.appender().append(b"b")
    tail.ask()
    assert (tail.read(2), tail.asked_ms, log.end) == ([], None, 1)
    here.reachable = True
    tail.ask()
    assert [entry.data for entry in tail.read(2)] == [b"b", b"a"]
    assert (tail.end, [report.offset for report in appender.reports()]) == (2, [1])


@pytest.mark.parametrize("kept", [0, 1])
def test_a_log_that_went_back_is_noticed_by_those_who_had_read_further(log: MemoryLog, kept: int) -> None:
    partition = MemoryProcess(log).partition
    for data in (b"a", b"b"):
        log.put(data)
    ahead, behind = partition.tail(0), partition.tail(0)
    ahead.read(2)
    behind.read(kept)
    log.cut(kept)
    for data in (b"c", b"d"):
        log.put(data)
    for _ in range(2):
        with pytest.raises(LostError, match=f"gone back to {kept}"):
            ahead.read(2)
    assert [entry.data for entry in behind.read(3)] == [b"c", b"d"][:2]
    assert [entry.offset for entry in partition.tail(kept).read(3)] == [kept, kept + 1]
