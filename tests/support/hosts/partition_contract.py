"""What every implementation of the port ``fila_worker.log.partition`` does: the tests that each of them passes."""

import time
from collections.abc import Callable
from typing import Protocol

import pytest

from fila_worker.log.partition import Appender, AppendReport, LogEntry, Partition, Tail, TrimmedError
from fila_worker.log.rule import LostError
from tests.support.cluster.cluster import eventually

RECORD_BYTES_MAX = 64 * 1024
"""What the log under test takes."""
QUICK_S_MAX = 1.0
"""How long a call that waits for nothing may take on a busy machine; one that waits for a broker takes longer."""


class Process(Protocol):
    """A process that uses a partition, and how often it was woken."""

    partition: Partition
    wakes: int


class Ways(Protocol):
    """What a test needs beside the port: an empty log, and its faults."""

    def process(self) -> Process:
        """Return a new process that uses the log of this test."""

    def refuse(self, refused: bool) -> None:
        """Let no broker answer, or let them answer again."""


def collect(appender: Appender, count: int) -> list[AppendReport]:
    """Wait for so many reports."""
    reports: list[AppendReport] = []
    eventually(lambda: len(reports.extend(appender.reports()) or reports) >= count, f"{count} reports")
    return reports


def read(tail: Tail, count: int, at_once: int = 1000) -> list[LogEntry]:
    """Wait for so many records."""
    entries: list[LogEntry] = []
    eventually(lambda: len(entries.extend(tail.read(min(at_once, count - len(entries)))) or entries) >= count, "records")
    return entries


def fill(partition: Partition, count: int) -> Appender:
    """Append records, and wait until they are in the log."""
    appender = partition.appender()
    for number in range(count):
        appender.append(b"record %d" % number)
    assert all(not report.error for report in collect(appender, count))
    return appender


def append_each(partition: Partition, text: bytes, count: int) -> None:
    """Append records, each when the one before is reported."""
    appender = partition.appender()
    for number in range(count):
        appender.append(text % number)
        collect(appender, 1)
    appender.close()


def end_of(tail: Tail) -> int:
    """Ask for the end until there is an answer."""

    def answered() -> bool:
        if tail.asked_ms is None:
            tail.ask()
        return tail.asked_ms is not None

    tail.ask()
    eventually(answered, "an answer")
    assert tail.end is not None
    return tail.end


def quick(call: Callable[[], object]) -> None:
    """Make sure that a call does not wait for the network."""
    began = time.monotonic()
    call()
    assert time.monotonic() - began < QUICK_S_MAX


class PartitionContract:
    """Subclasses give the fixture ``ways``."""

    def test_appends_are_reported_and_read_in_their_order(self, ways: Ways) -> None:
        partition = ways.process().partition
        appender, tail = partition.appender(), partition.tail(0)
        assert [appender.append(b"record %d" % number) for number in range(250)] == [*range(1, 251)]
        assert collect(appender, 250) == [AppendReport(number + 1, number) for number in range(250)]
        assert read(tail, 250) == [LogEntry(number, b"record %d" % number) for number in range(250)]
        assert (appender.reports(), tail.read(10)) == ([], [])

    def test_its_process_is_woken_by_a_report(self, ways: Ways) -> None:
        process = ways.process()
        appender = process.partition.appender()
        appender.append(b"a")
        eventually(lambda: process.wakes > 0, "a wake")
        assert appender.reports() == [AppendReport(1, 0)]

    def test_its_process_is_woken_by_an_answer(self, ways: Ways) -> None:
        process = ways.process()
        tail = process.partition.tail(0)
        end_of(tail)
        eventually(lambda: process.wakes > 0, "a wake")

    def test_a_record_may_be_empty_or_any_bytes(self, ways: Ways) -> None:
        partition = ways.process().partition
        records = [b"", bytes(range(256)), b"x" * RECORD_BYTES_MAX]
        appender = partition.appender()
        for record in records:
            appender.append(record)
        collect(appender, 3)
        assert [entry.data for entry in read(partition.tail(0), 3)] == records

    def test_two_appenders_share_one_order(self, ways: Ways) -> None:
        one, other = ways.process().partition.appender(), ways.process().partition.appender()
        for number in range(20):
            one.append(b"one %d" % number)
            other.append(b"other %d" % number)
        reports = {b"one": collect(one, 20), b"other": collect(other, 20)}
        entries = read(ways.process().partition.tail(0), 40)
        for name, mine in reports.items():
            assert [(name + b" %d" % (report.append - 1)) for report in mine] == [
                entries[report.offset].data for report in mine
            ]

    def test_too_large_a_record_and_all_behind_it_never_get_into_the_log(self, ways: Ways) -> None:
        partition = ways.process().partition
        appender = partition.appender()
        for record in (b"before", b"x" * (RECORD_BYTES_MAX + 1), b"behind"):
            appender.append(record)
        before, refused, behind = collect(appender, 3)
        assert before == AppendReport(1, 0)
        assert f"{RECORD_BYTES_MAX + 1:,}" in refused.error
        assert f"{RECORD_BYTES_MAX:,}" in refused.error
        assert behind.error
        assert (refused.append, behind.append) == (2, 3)
        assert appender.append(b"later") == 4
        (later,) = collect(appender, 1)
        assert (later.append, bool(later.error)) == (4, True)
        assert end_of(partition.tail(0)) == 1

    def test_a_tail_begins_anywhere_and_takes_as_much_as_it_wants(self, ways: Ways) -> None:
        partition = ways.process().partition
        fill(partition, 30)
        tail = partition.tail(10)
        entries = []
        while len(entries) < 20:
            some = tail.read(7)
            assert len(some) <= 7
            entries += some
        assert [entry.offset for entry in entries] == [*range(10, 30)]

    def test_a_tail_at_the_end_waits_for_what_comes(self, ways: Ways) -> None:
        partition = ways.process().partition
        appender = fill(partition, 3)
        tail = partition.tail(3)
        assert end_of(tail) == 3
        assert tail.read(10) == []
        appender.append(b"new")
        assert read(tail, 1) == [LogEntry(3, b"new")]

    def test_the_end_is_as_of_the_last_question(self, ways: Ways) -> None:
        partition = ways.process().partition
        tail = partition.tail(0)
        assert (tail.end, tail.asked_ms) == (None, None)
        assert end_of(tail) == 0
        first_ms = tail.asked_ms
        appender = fill(partition, 2)
        assert (tail.end, tail.asked_ms) == (0, first_ms)
        tail.ask()
        assert end_of(tail) == 2
        assert tail.asked_ms is not None
        assert first_ms is not None
        assert tail.asked_ms >= first_ms
        appender.close()

    def test_a_trimmed_log_keeps_the_record_at_the_offset(self, ways: Ways) -> None:
        partition = ways.process().partition
        fill(partition, 10)
        partition.trim(6)
        self.wait_until_trimmed(partition, 5)
        assert read(partition.tail(6), 4)[0] == LogEntry(6, b"record 6")
        with pytest.raises(TrimmedError, match=r"offset 2 .*begins at 6.*checkpoint"):
            read(partition.tail(2), 1)

    def test_a_log_is_never_emptied(self, ways: Ways) -> None:
        partition = ways.process().partition
        fill(partition, 10)
        partition.trim(1000)
        self.wait_until_trimmed(partition, 8)
        assert read(partition.tail(9), 1) == [LogEntry(9, b"record 9")]

    def test_an_earlier_trim_changes_nothing(self, ways: Ways) -> None:
        partition = ways.process().partition
        fill(partition, 10)
        partition.trim(8)
        self.wait_until_trimmed(partition, 7)
        partition.trim(3)
        partition.trim(9)
        self.wait_until_trimmed(partition, 8)
        with pytest.raises(TrimmedError):
            read(partition.tail(8), 1)

    @staticmethod
    def wait_until_trimmed(partition: Partition, offset: int) -> None:
        def trimmed() -> bool:
            tail = partition.tail(offset)
            try:
                eventually(lambda: bool(tail.read(1)), "a record or an error")
            except TrimmedError:
                return True
            finally:
                tail.close()
            return False

        eventually(trimmed, f"offset {offset} is forgotten")

    def test_a_tail_behind_the_end_of_the_log_is_told_that_the_log_has_lost_records(self, ways: Ways) -> None:
        partition = ways.process().partition
        fill(partition, 3)
        with pytest.raises(LostError, match=r"up to offset 5.*gone back to 3"):
            read(partition.tail(5), 1)

    def test_nothing_waits_or_raises_while_no_broker_answers(self, ways: Ways) -> None:
        partition = ways.process().partition
        appender = fill(partition, 3)
        tail = partition.tail(0)
        read(tail, 3)
        assert end_of(tail) == 3
        ways.refuse(True)
        quick(lambda: appender.append(b"held up"))
        quick(tail.ask)
        quick(lambda: partition.trim(1))
        late = partition.appender()
        quick(lambda: late.append(b"late"))
        quick(lambda: tail.read(10))
        assert (tail.read(10), appender.reports(), late.reports(), tail.asked_ms) == ([], [], [], None)
        quick(late.close)
        ways.refuse(False)
        assert collect(appender, 1)[0][1:] in {(3, ""), (4, "")}
        assert b"held up" in {entry.data for entry in read(tail, 1)} | {entry.data for entry in tail.read(1)}

    def test_what_is_closed_does_not_wait(self, ways: Ways) -> None:
        partition = ways.process().partition
        appender, tail = partition.appender(), partition.tail(0)
        appender.append(b"a")
        tail.ask()
        quick(appender.close)
        quick(tail.close)
