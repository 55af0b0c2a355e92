"""Syncs in a thread: what is confirmed, when, and what a failure means."""

from queue import Queue
from threading import Event, current_thread

import pytest

from fila_proto_zmq.errors import StorageError
from fila_worker.log.local import QUICK_BYTES_MAX, GroupLog, PlainLog


class Disk:
    """A disk whose syncs take as long as a test wants."""

    def __init__(self) -> None:
        self.begun: Queue[str] = Queue()
        self.outcomes: Queue[StorageError | None] = Queue()
        self.woken = Event()

    def sync(self) -> None:
        self.begun.put(current_thread().name)
        outcome = self.outcomes.get(timeout=30)
        if outcome is not None:
            raise outcome

    def finish(self, outcome: StorageError | None = None) -> None:
        """Let the sync that is under way end, and wait until the log knows."""
        self.begun.get(timeout=30)
        self.woken.clear()
        self.outcomes.put(outcome)
        assert self.woken.wait(30)


@pytest.fixture
def disk() -> Disk:
    return Disk()


ANY_TIME = 10**15


def made(disk: Disk, *, every: bool, quick_ns_max: int = -1) -> GroupLog:
    """A log to which each sync is slow, unless a test says otherwise."""
    return GroupLog(disk.sync, disk.woken.set, every=every, quick_ns_max=quick_ns_max)


def append(log: GroupLog, *, sync: bool = False) -> bool:
    """Append a batch. Return whether it is confirmed at once."""
    log.append(10, sync=sync)
    at_once = log.push()
    assert not at_once or log.confirmed == log.appended
    return at_once


def test_batches_that_come_during_a_sync_share_the_next_one(disk: Disk) -> None:
    log = made(disk, every=True)
    assert not append(log)
    assert disk.begun.get(timeout=30) == "sync"
    disk.begun.put("again")
    for _ in range(5):
        append(log)
    assert (log.appended, log.confirmed, log.unconfirmed_bytes) == (6, 0, 60)
    disk.finish()
    assert (log.confirmed, log.unconfirmed_bytes) == (1, 50)
    disk.finish()
    assert (log.confirmed, log.unconfirmed_bytes) == (6, 0)
    log.close()
    assert disk.begun.empty()


def test_without_a_need_for_syncs_there_is_neither_a_wait_nor_a_thread(disk: Disk) -> None:
    log = made(disk, every=False)
    assert append(log)
    assert (log.confirmed, log.unconfirmed_bytes) == (1, 0)
    log.close()
    assert disk.begun.empty()


def test_a_batch_behind_one_that_must_be_synced_waits_for_it(disk: Disk) -> None:
    log = made(disk, every=False)
    append(log)
    append(log, sync=True)
    append(log)
    assert log.confirmed == 0
    disk.finish()
    assert log.confirmed == 3
    log.close()


def test_nothing_is_confirmed_after_a_sync_that_failed(disk: Disk) -> None:
    log = made(disk, every=True)
    append(log)
    failure = StorageError("the disk is gone")
    disk.finish(failure)
    assert log.failure is failure
    append(log)
    assert log.confirmed == 0
    log.close()
    assert disk.begun.empty(), "the pages that were not written may be gone: another sync would lie about them"


def test_a_quick_sync_is_made_at_once(disk: Disk) -> None:
    log = made(disk, every=True, quick_ns_max=ANY_TIME)
    for outcome in (None, None, StorageError("the disk is gone")):
        disk.outcomes.put(outcome)
        append(log)
    assert [disk.begun.get(timeout=30) for _ in range(3)] == ["MainThread"] * 3
    assert (log.confirmed, log.failure is not None) == (2, True)


def test_a_sync_of_many_bytes_is_left_to_the_thread_and_so_is_what_follows_meanwhile(disk: Disk) -> None:
    log = made(disk, every=True, quick_ns_max=ANY_TIME)
    log.append(QUICK_BYTES_MAX + 1, sync=False)
    log.push()
    assert disk.begun.get(timeout=30) == "sync"
    append(log)
    for _ in range(2):
        disk.outcomes.put(None)
    log.close()
    assert (disk.begun.get(timeout=30), log.confirmed) == ("sync", 2)


def test_the_end_syncs_what_waits(disk: Disk) -> None:
    log = made(disk, every=True)
    disk.outcomes.put(None)
    disk.outcomes.put(None)
    append(log)
    append(log)
    log.close()
    assert log.confirmed == 2


def test_a_plain_log_returns_when_a_batch_is_durable(disk: Disk) -> None:
    disk.outcomes.put(None)
    log = PlainLog(disk.sync, every=False)
    log.append(10, sync=False)
    assert disk.begun.empty()
    log.append(10, sync=True)
    assert (disk.begun.qsize(), log.confirmed) == (1, 2)
