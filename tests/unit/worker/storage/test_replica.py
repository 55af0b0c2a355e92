"""The local copy of a replicated shard, case by case. Random lives of several are in ``tests/property/replication/test_replicas.py``."""

import gc
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from fila_proto_zmq.errors import StorageError
from fila_worker.core.store import DamageError, Families, UnfitStoreError
from fila_worker.log.records import Before, Changes, LogRecord, RecordError, RecordKind, encode
from fila_worker.log.rule import START, Counted, Position
from fila_worker.storage import replica
from fila_worker.storage.replica import POSITION, DivergedError, FlushLimits, OtherLogError, Replica
from fila_worker.storage.rocks import RocksStore
from tests.support.cluster.cluster import eventually
from tests.support.hosts.copies import STAMP, Leader, MemoryLog, catch_up, contents, stamped

LIMITS = FlushLimits(bytes=100_000, pause_bytes=200_000, age_ms=1000, pause_age_ms=3000, records=50)


def settle(copy: Replica) -> None:
    eventually(lambda: not copy._flush_runs(), "the end of a flush")


def stamp(copy: Replica) -> int:
    """The number of the last batch, which all families agree on."""
    (found,) = {copy.get(STAMP, family) for family in copy.families}
    return int((found or b"0").rstrip(b"\0"))


def stored_bytes(copy: Replica) -> int:
    return copy._sum("total-sst-files-size") + copy._sum("total-blob-file-size")


def again(copy: Replica) -> Replica:
    """The copy after its process was killed."""
    copy._leave()
    return Replica(copy._path)


@pytest.fixture
def leader(tmp_path: Path) -> Leader:
    """Two batches are confirmed and flushed, the third is confirmed, and the fourth is not."""
    leader = Leader(Replica(tmp_path / "leader"))
    for number in range(1, 5):
        leader.copy.commit(stamped(number))
        if number != 4:
            leader.arrive()
        if number == 2:
            leader.copy.flush()
            settle(leader.copy)
    return leader


# --- following --------------------------------------------------------------------------------------------------------


def test_a_follower_has_what_the_log_has_and_begins_again_there(tmp_path: Path, leader: Leader) -> None:
    copy = Replica(tmp_path / "follower")
    assert copy.position == START
    catch_up(copy, leader.log)
    assert (stamp(copy), copy.position) == (3, leader.copy.position)
    copy.close()
    copy = Replica(tmp_path / "follower")
    assert (stamp(copy), copy.position, copy.flushed) == (3, leader.copy.position, leader.copy.position)
    leader.arrive()
    catch_up(copy, leader.log)
    assert stamp(copy) == 4
    copy.close()


def test_what_is_no_batch_moves_the_position_only(tmp_path: Path) -> None:
    copy = Replica(tmp_path)
    places = [Position(5, 5, 0), Position(6, 5, 1), Position(8, 5, 2), Position(9, 9, 0, Before(5, 2))]
    for place, kind in zip(places, [RecordKind.MARKER, RecordKind.BEAT, RecordKind.LEAVES, RecordKind.MARKER], strict=True):
        copy.apply(Counted(place, kind, b"anything"))
        assert copy.position == place
    assert all(found == {} for found in contents(copy).values())
    copy.close()
    copy = Replica(tmp_path)
    assert copy.position == places[-1]
    copy.close()


def test_a_batch_that_cannot_be_read_changes_nothing(tmp_path: Path) -> None:
    copy = Replica(tmp_path)
    copy.apply(Counted(Position(0, 0, 0), RecordKind.MARKER, b""))
    with pytest.raises(RecordError, match="the record at offset 7 of the log"):
        copy.apply(Counted(Position(7, 0, 1), RecordKind.BATCH, b"nonsense"))
    assert copy.position == Position(0, 0, 0)
    copy.close()


# --- leading ----------------------------------------------------------------------------------------------------------


def test_a_commit_is_visible_at_once_and_confirmed_when_all_its_records_are(tmp_path: Path) -> None:
    leader = Leader(Replica(tmp_path))
    copy = leader.copy
    copy.commit(stamped(1, 100))
    copy.commit(stamped(2))
    leader.beat()
    assert (stamp(copy), copy.committed, copy.confirmed) == (2, 2, 0)
    records = len(leader.pending)
    assert records > 3, "of several records each"
    size = copy.unconfirmed_bytes
    leader.arrive(1)
    assert (copy.confirmed, copy.unconfirmed_bytes) == (0, size)
    leader.arrive(records - 3)
    assert (copy.confirmed, size > copy.unconfirmed_bytes > 0) == (1, True)
    leader.arrive()
    assert (copy.confirmed, copy.unconfirmed_bytes, copy.position) == (2, 0, leader.writer.position)
    copy.close()


def test_a_copy_leads_and_follows_in_turn(tmp_path: Path) -> None:
    log = MemoryLog()
    first, second = Leader(Replica(tmp_path / "1"), log), Replica(tmp_path / "2")
    for number in range(1, 6):
        first.copy.commit(stamped(number))
        first.arrive()
        catch_up(second, log)
        first.copy.follow()
        first, second = Leader(second, log), first.copy
        catch_up(second, log)
        assert contents(first.copy) == contents(second) == log.contents(second.position)
    assert first.copy.committed == first.copy.confirmed == 2
    first.copy.close()
    second.close()


def test_only_a_leader_takes_commits(tmp_path: Path) -> None:
    copy = Replica(tmp_path)
    with pytest.raises(AssertionError, match="does not lead"):
        copy.commit(stamped(1))
    copy.close()


def test_what_the_log_refuses_leaves_no_trace(tmp_path: Path) -> None:
    leader = Leader(Replica(tmp_path))

    def refuse(_: bytes) -> int:
        raise StorageError("too large")

    leader.copy.lead(refuse)
    with pytest.raises(StorageError, match="too large"):
        leader.copy.commit(stamped(1))
    assert (stamp(leader.copy), leader.copy.committed, leader.copy.unconfirmed_bytes) == (0, 0, 0)
    leader.copy.close()


def test_a_write_that_fails_behind_the_append_ends_the_leader(leader: Leader, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object) -> None:
        raise StorageError("no room")

    with monkeypatch.context() as patch:
        patch.setattr(leader.copy, "_write", refuse)
        with pytest.raises(StorageError, match="no room"):
            leader.copy.commit(stamped(5))
    assert str(leader.copy.failure) == "no room"
    with pytest.raises(StorageError, match="no room"):
        leader.copy.commit(stamped(6))
    leader.arrive()
    leader.copy.close()
    copy = Replica(leader.copy._path)
    assert stamp(copy) == 2, "nothing was flushed behind the failure"
    catch_up(copy, leader.log)
    assert stamp(copy) == 5
    copy.close()


def test_a_leader_with_unconfirmed_batches_cannot_follow(leader: Leader) -> None:
    with pytest.raises(DivergedError, match="were never confirmed, so the copy has to be dropped"):
        leader.copy.follow()
    leader.arrive()
    leader.copy.follow()
    leader.copy.close()


# --- what is on the disk ----------------------------------------------------------------------------------------------


def test_a_killed_copy_stands_at_its_last_flush(leader: Leader) -> None:
    flushed = leader.copy.flushed
    assert START.offset < flushed.offset < leader.copy.position.offset
    copy = again(leader.copy)
    assert (stamp(copy), copy.position, copy.whole) == (2, flushed, True)
    catch_up(copy, leader.log)
    assert (stamp(copy), copy.position) == (3, leader.copy.position)
    copy.close()


def test_a_closed_copy_is_flushed_unless_something_is_unconfirmed(leader: Leader) -> None:
    leader.copy.close()
    copy = Replica(leader.copy._path)
    assert stamp(copy) == 2
    catch_up(copy, leader.log)
    copy.close()
    copy = Replica(copy._path)
    assert stamp(copy) == 3
    copy.close()


def test_a_copy_that_is_dropped_flushes_nothing(leader: Leader) -> None:
    path = leader.copy._path
    leader.copy = None  # type: ignore[assignment]
    gc.collect()
    copy = Replica(path)
    assert stamp(copy) == 2
    copy.close()


ENDS = """
import os, signal, sys
from pathlib import Path
from fila_worker.storage.replica import Replica
from tests.support.hosts.copies import Leader, stamped
leader = Leader(Replica(Path(sys.argv[1])))
leader.copy.commit(stamped(1))
leader.arrive()
leader.copy.flush()
while leader.copy.flushing: pass
leader.copy.commit(stamped(2))
leader.arrive()
leader.copy.commit(stamped(3))
scan = leader.copy.scan(b"", b"x", leader.copy.families.state)
next(scan)
"""


@pytest.mark.parametrize(
    ("end", "code"),
    [
        ("os.kill(os.getpid(), signal.SIGKILL)", -signal.SIGKILL),
        ("os._exit(3)", 3),
        ("sys.exit(3)", 3),
        ("raise ValueError", 1),
        ("del leader", 0),
        ("leader.copy.close()", 0),
    ],
)
def test_no_end_of_a_process_writes_what_is_unconfirmed(tmp_path: Path, end: str, code: int) -> None:
    ended = subprocess.run([sys.executable, "-c", ENDS + end, str(tmp_path)], timeout=60, check=False, capture_output=True)
    assert ended.returncode == code
    copy = Replica(tmp_path)
    assert (stamp(copy), copy.whole) == (1, True)
    copy.close()


def test_rocksdb_flushes_nothing_by_itself(tmp_path: Path) -> None:
    """Not at the size of a family's write buffer, nor at that of all."""
    leader = Leader(Replica(tmp_path))
    for number in range(90):
        changes = Changes()
        changes.put(b"%d" % number, bytes(1024 * 1024), 0)
        leader.copy.commit(changes)
    assert leader.copy.buffered_bytes > 90 * 1024 * 1024
    assert not leader.copy._sum("num-immutable-mem-table")
    assert list(tmp_path.glob("*.sst")) == list(tmp_path.glob("*.blob")) == []
    assert all(not log.stat().st_size for log in tmp_path.glob("*.log")), "nor has it a log of its own"
    leader.copy.close()


def test_a_leader_that_never_pauses_is_refused_before_rocksdb_would_flush(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(replica, "BUFFERED_BYTES_MAX", 1000)
    leader = Leader(Replica(tmp_path))
    leader.copy.commit(stamped(1, 1000))
    with pytest.raises(StorageError, match="more than 1,000: they can't be flushed before they are confirmed"):
        leader.copy.commit(stamped(2))
    assert len(leader.pending) == leader.writer.appended
    leader.copy.close()


def test_changes_and_their_position_are_one_write(leader: Leader, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    copy = Replica(tmp_path / "follower")
    sizes: list[int] = []
    for each in (copy, leader.copy):
        write = each._write
        monkeypatch.setattr(each, "_write", lambda batch, write=write: (sizes.append(len(batch)), write(batch)))
    leader.copy.commit(stamped(5))
    catch_up(copy, leader.log)
    assert sizes == [len(stamped(5)) + 1] * 4
    leader.copy.close()
    copy.close()


# --- flushes ----------------------------------------------------------------------------------------------------------


def test_a_flush_waits_until_nothing_is_unconfirmed(tmp_path: Path) -> None:
    leader = Leader(Replica(tmp_path, limits=LIMITS))
    copy = leader.copy
    copy.commit(stamped(1, 5_000))
    assert (copy.flush_due, copy.wants_pause) == (False, False)
    copy.commit(stamped(2, 5_000))
    assert (copy.flush_due, copy.wants_pause) == (True, False)
    leader.arrive(len(leader.pending) - 1)
    copy.commit(stamped(3, 9_000))
    leader.arrive(len(leader.pending) - 1)
    copy.tend(0)
    assert (copy.flush_due, copy.wants_pause) == (True, True)
    assert copy._running is None
    assert not copy._sum("num-immutable-mem-table")
    leader.arrive()
    assert copy._running == copy.position
    assert copy._sum("num-immutable-mem-table") == len(Families._fields)
    settle(copy)
    assert (copy.flush_due, copy.wants_pause, copy.flushed) == (False, False, copy.position)
    assert copy._sum("num-entries-active-mem-table") == 0
    copy.close()


def test_what_is_committed_during_a_flush_is_not_in_it(tmp_path: Path) -> None:
    leader = Leader(Replica(tmp_path))
    leader.copy.commit(stamped(1, 50_000))
    leader.arrive()
    leader.copy.flush()
    leader.copy.commit(stamped(2))
    settle(leader.copy)
    copy = again(leader.copy)
    assert (stamp(copy), copy.whole) == (1, True)
    copy.close()


def test_changes_are_flushed_after_a_while(tmp_path: Path) -> None:
    leader = Leader(Replica(tmp_path, limits=LIMITS))
    copy = leader.copy
    copy.commit(stamped(1))
    for now_ms, due, pause in [(5000, False, False), (5999, False, False), (6000, True, False), (8000, True, True)]:
        copy.tend(now_ms)
        assert (copy.flush_due, copy.wants_pause) == (due, pause)
    leader.arrive()
    settle(copy)
    copy.tend(20_000)
    assert (copy.flush_due, copy.flushed) == (False, copy.position)
    copy.close()


def test_a_position_that_has_moved_far_is_flushed(tmp_path: Path) -> None:
    copy = Replica(tmp_path, limits=LIMITS)
    copy.apply(Counted(Position(0, 0, 0), RecordKind.MARKER, b""))
    for number in range(1, LIMITS.records):
        copy.apply(Counted(Position(number, 0, number), RecordKind.BEAT, b""))
    settle(copy)
    assert copy.flushed.offset == LIMITS.records - 1
    copy.close()


def test_a_flush_that_was_asked_for_wants_a_pause(leader: Leader) -> None:
    copy = leader.copy
    copy.flush()
    assert (copy.flushing, copy.wants_pause, copy._running) == (True, True, None)
    leader.arrive()
    settle(copy)
    assert (copy.flushing, copy.wants_pause, copy.flushed) == (False, False, copy.position)
    copy.close()


def test_a_flush_that_is_asked_for_during_another_begins_behind_it(tmp_path: Path) -> None:
    leader = Leader(Replica(tmp_path))
    for number in (1, 2):
        leader.copy.commit(stamped(number))
        leader.arrive()
        leader.copy.flush()
    eventually(lambda: not leader.copy.flushing, "the end of both")
    assert leader.copy.flushed == leader.copy.position
    leader.copy.close()


def test_a_follower_pauses_while_the_disk_is_slow(tmp_path: Path, leader: Leader, monkeypatch: pytest.MonkeyPatch) -> None:
    copy = Replica(tmp_path / "follower", limits=FlushLimits(bytes=1, pause_bytes=1))
    with monkeypatch.context() as patch:
        patch.setattr(copy, "_flush_runs", lambda: True)
        catch_up(copy, leader.log)
        assert copy.wants_pause
    copy.tend(0)
    settle(copy)
    assert not copy.wants_pause
    copy.close()
    leader.copy.close()


def test_a_flush_that_fails_ends_the_copy(tmp_path: Path) -> None:
    leader = Leader(Replica(tmp_path / "gone"))
    leader.copy.commit(stamped(1))
    leader.arrive()
    shutil.rmtree(tmp_path / "gone")
    leader.copy.flush()
    eventually(lambda: not leader.copy.flushing, "the failure")
    assert "RocksDB could not flush" in str(leader.copy.failure)
    with pytest.raises(StorageError, match="could not flush"):
        leader.copy.commit(stamped(2))
    leader.copy.follow()
    with pytest.raises(StorageError, match="could not flush"):
        leader.copy.apply(Counted(Position(90, 90, 0), RecordKind.MARKER, b""))
    leader.copy.close()


def test_a_pin_is_of_its_moment_and_flushes_only_what_is_confirmed(leader: Leader) -> None:
    copy = leader.copy
    pin = copy.pin([copy.families.messages])
    copy.commit(stamped(5))
    assert copy._running is None
    leader.arrive()
    assert copy._running == copy.position
    copy.commit(stamped(6))
    settle(copy)
    assert list(pin.scan(b"", copy.families.messages)) == [(STAMP, b"4")]
    copy = again(copy)
    assert stamp(copy) == 5
    copy.close()


def test_a_large_write_buffer_is_flushed_before_a_pin_once_it_may_be(tmp_path: Path) -> None:
    leader = Leader(Replica(tmp_path))
    copy, families = leader.copy, leader.copy.families
    copy.commit(stamped(1, 3_000_000))
    assert not copy.ready_to_pin([families.messages])
    assert copy._running is None
    leader.arrive()
    eventually(lambda: copy.ready_to_pin([families.messages]), "the end of the flush")
    copy.close()


@pytest.mark.parametrize("confirmed", [True, False])
def test_the_space_of_what_was_removed_is_given_back(tmp_path: Path, confirmed: bool) -> None:
    leader = Leader(Replica(tmp_path))
    copy = leader.copy
    for number in range(1, 5):
        copy.commit(stamped(number, 1_000_000))
        leader.arrive()
        copy.flush()
        settle(copy)
    changes = stamped(5)
    for family in copy.families:
        changes.delete_range(b"", b"\xff", family)
    copy.commit(changes)
    before = stored_bytes(copy)
    copy.tidy()
    copy.commit(stamped(6))
    assert copy._tidying is None
    leader.arrive()
    if not confirmed:
        settle(copy)
        copy.commit(stamped(7))

    def tidied() -> bool:
        copy.tend(0)
        return stored_bytes(copy) < before // 100

    eventually(tidied, "the space is given back")
    copy = again(copy)
    assert stamp(copy) == 6
    copy.close()


# --- copies that are ahead of the log ---------------------------------------------------------------------------------


@pytest.fixture
def ahead(leader: Leader) -> Leader:
    """RocksDB has flushed what is unconfirmed, as it may after a full disk."""
    leader.copy._readers["state"].compact_range(POSITION, POSITION)
    leader.copy = again(leader.copy)
    assert (stamp(leader.copy), leader.copy.whole) == (4, False)
    return leader


def test_a_copy_that_is_ahead_skips_what_it_has(ahead: Leader) -> None:
    ahead.log += ahead.pending
    catch_up(ahead.copy, ahead.log)
    assert (stamp(ahead.copy), ahead.copy.whole) == (4, True)
    Leader(ahead.copy, ahead.log).copy.close()


def test_a_copy_has_diverged_if_the_log_goes_on_without_what_it_has(ahead: Leader) -> None:
    path = ahead.copy._path
    ahead.log.mark()
    for _ in range(2):
        with pytest.raises(
            DivergedError, match=f"{path} has changes up to number .* of epoch 0, but the log has them only up to"
        ) as caught:
            catch_up(ahead.copy, ahead.log)
        assert caught.value.details == {"path": str(path)}
    ahead.copy.close()


def test_a_copy_has_diverged_if_the_log_has_another_number_there(ahead: Leader) -> None:
    copy = ahead.copy
    with pytest.raises(DivergedError):
        copy.apply(Counted(copy.position._replace(offset=90, number=900), RecordKind.BEAT, b""))
    copy.close()


def test_a_copy_that_is_ahead_neither_leads_nor_is_copied(tmp_path: Path, ahead: Leader) -> None:
    with pytest.raises(StorageError, match="would have what is not confirmed"):
        ahead.copy.checkpoint(tmp_path / "checkpoint")
    copy = ahead.copy
    copy.position = Position(copy.position.offset, copy.position.epoch, 0)
    with pytest.raises(DivergedError):
        copy.lead(lambda _: 1)
    copy.close()


# --- checkpoints, and what is no copy ---------------------------------------------------------------------------------


def test_a_checkpoint_is_of_what_is_confirmed_and_knows_its_position(tmp_path: Path, leader: Leader) -> None:
    with pytest.raises(StorageError, match=r"would have what is not confirmed \(1 batches\)"):
        leader.copy.checkpoint(tmp_path / "checkpoint")
    leader.arrive()
    leader.copy.checkpoint(tmp_path / "checkpoint")
    place = leader.copy.position
    leader.copy.commit(stamped(5))
    copy = Replica(tmp_path / "checkpoint")
    assert (stamp(copy), copy.position, copy.whole) == (4, place, True)
    leader.arrive()
    catch_up(copy, leader.log)
    assert stamp(copy) == 5
    copy.close()
    leader.copy.close()


def test_a_checkpoint_during_a_flush_has_all(tmp_path: Path) -> None:
    leader = Leader(Replica(tmp_path / "copy"))
    leader.copy.commit(stamped(1, 100_000))
    leader.arrive()
    leader.copy.flush()
    leader.copy.commit(stamped(2))
    leader.arrive()
    leader.copy.checkpoint(tmp_path / "checkpoint")
    copy = Replica(tmp_path / "checkpoint")
    assert (stamp(copy), copy.position) == (2, leader.copy.position)
    copy.close()
    leader.copy.close()


def test_a_closed_copy_can_be_served_on_one_host(leader: Leader) -> None:
    """As from a backup."""
    leader.arrive()
    leader.copy.close()
    store = RocksStore(leader.copy._path)
    assert store.get(STAMP, store.families.leases) == b"4"
    store.close()


def test_a_shard_that_is_not_replicated_is_refused(tmp_path: Path) -> None:
    store = RocksStore(tmp_path)
    batch = store.new_batch()
    batch.put(b"key", b"value", store.families.leases)
    store.commit(batch)
    store.close()
    for _ in range(2):
        with pytest.raises(UnfitStoreError, match=f"{tmp_path} has data, but no position in the replicated log"):
            Replica(tmp_path)


def test_a_position_that_cannot_be_read_is_refused(tmp_path: Path) -> None:
    copy = Replica(tmp_path)
    changes = Changes()
    changes.put(POSITION, b"short", list(Families._fields).index("state"))
    copy._store(changes, START, 0, 0)
    batch = replica.WriteBatch(raw_mode=True)
    batch.put(POSITION, b"short", copy._handles.state)
    copy._write(batch)
    copy._readers["state"].flush(True)
    copy._leave()
    with pytest.raises(DamageError, match=f"{tmp_path}: its position in the log has 5 bytes, less than 48"):
        Replica(tmp_path)


def test_the_position_is_that_of_the_log(tmp_path: Path) -> None:
    """A marker whose writer has read others before."""
    log = MemoryLog()
    log.append(encode(LogRecord(RecordKind.MARKER, 0, 0)))
    log.append(encode(LogRecord(RecordKind.BEAT, 0, 1, b"", Before())))
    leader = Leader(Replica(tmp_path), log)
    leader.copy.commit(stamped(1))
    leader.arrive()
    leader.copy.close()
    copy = Replica(tmp_path)
    assert copy.position.before == Before(0, 1)
    assert copy.position == leader.writer.position
    copy.close()


def test_a_copy_is_of_the_log_of_its_first_opening(tmp_path: Path) -> None:
    leader = Leader(Replica(tmp_path, log="log-1"))
    leader.copy.commit(stamped(1))
    leader.arrive()
    leader.copy.close()
    for _ in range(2):
        with pytest.raises(
            OtherLogError,
            match=f"{tmp_path} is a copy of the log log-1, and the shard's log is log-2: .* move the directory away",
        ):
            Replica(tmp_path, log="log-2")
    copy = Replica(tmp_path, log="log-1")
    assert copy.position == leader.writer.position
    copy.close()


def test_a_copy_of_an_earlier_version_is_of_the_log_that_it_follows(tmp_path: Path) -> None:
    leader = Leader(Replica(tmp_path))
    leader.copy.commit(stamped(1))
    leader.arrive()
    leader.copy.close()
    copy = Replica(tmp_path, log="log-1")
    assert (copy.position, copy.marker) == (leader.writer.position, leader.copy.marker)
    copy.flush()
    eventually(lambda: not copy.flushing, "it is on the disk")
    copy.close()
    with pytest.raises(OtherLogError):
        Replica(tmp_path, log="log-2")
    Replica(tmp_path).close()


def test_a_checkpoint_is_of_the_log_of_its_copy(tmp_path: Path) -> None:
    copy = Replica(tmp_path / "copy", log="log-1")
    copy.checkpoint(tmp_path / "checkpoint")
    copy.close()
    with pytest.raises(OtherLogError):
        Replica(tmp_path / "checkpoint", log="log-2")
