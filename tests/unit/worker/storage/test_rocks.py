"""What only a disk has to promise: that data outlives its process, and that failures are reported."""

import os
import signal
import stat
import subprocess
import sys
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import pytest

from fila_proto_zmq.errors import StorageError
from fila_worker.core.store import DamageError
from fila_worker.storage.database import PINNED_BYTES_MAX
from fila_worker.storage.options import SharedMemory
from fila_worker.storage.rocks import RocksStore
from tests.support.cluster.cluster import eventually

ALL = (b"", b"\xff" * 32)

CRASH = """
import os, signal, sys
from collections.abc import Callable
from pathlib import Path
from fila_worker.storage.rocks import RocksStore
store = RocksStore(Path(sys.argv[1]), fsync=sys.argv[2] == "fsync")
for number in range(100):
    batch = store.new_batch()
    batch.put(b"%03d" % number, b"m", store.families.messages)
    batch.put(b"%03d" % number, b"l", store.families.leases)
    store.commit(batch)
uncommitted = store.new_batch()
uncommitted.put(b"999", b"", store.families.messages)
os.kill(os.getpid(), signal.SIGKILL)
"""


def write(store: RocksStore, key: bytes, value: bytes) -> None:
    batch = store.new_batch()
    batch.put(key, value, store.families.messages)
    store.commit(batch)


def test_what_was_committed_is_there_after_reopening(tmp_path: Path) -> None:
    large = os.urandom(100_000)
    store = RocksStore(tmp_path / "new" / "shard-0000")
    write(store, b"small", b"1")
    write(store, b"large", large)
    store.close()
    again = RocksStore(tmp_path / "new" / "shard-0000")
    assert list(again.scan(*ALL, again.families.messages)) == [(b"large", large), (b"small", b"1")]
    again.close()


def test_a_deleted_range_stays_deleted_after_reopening(tmp_path: Path) -> None:
    store = RocksStore(tmp_path)
    for number in range(50):
        write(store, b"%02d" % number, b"")
    batch = store.new_batch()
    batch.delete_range(b"10", b"40", store.families.messages)
    store.commit(batch)
    store.close()
    again = RocksStore(tmp_path)
    assert len(list(again.scan(*ALL, again.families.messages))) == 20
    again.close()


@pytest.mark.parametrize("durability", ["os", "fsync"])
def test_every_commit_survives_a_kill(tmp_path: Path, durability: str) -> None:
    killed = subprocess.run([sys.executable, "-c", CRASH, str(tmp_path), durability], timeout=60, check=False)
    assert killed.returncode == -signal.SIGKILL
    store = RocksStore(tmp_path)
    expected = [b"%03d" % number for number in range(100)]
    assert [key for key, _ in store.scan(*ALL, store.families.messages)] == expected
    assert [key for key, _ in store.scan(*ALL, store.families.leases)] == expected
    store.close()


def test_databases_of_one_process_share_their_memory(tmp_path: Path) -> None:
    memory = SharedMemory()
    stores = [RocksStore(tmp_path / str(number), memory=memory) for number in range(3)]
    for number, store in enumerate(stores):
        write(store, b"key", b"%d" % number)
    assert [store.get(b"key", store.families.messages) for store in stores] == [b"0", b"1", b"2"]
    for store in stores:
        store.close()


def test_a_directory_in_use_is_refused_with_its_path_and_what_to_do(tmp_path: Path) -> None:
    store = RocksStore(tmp_path)
    with pytest.raises(StorageError) as caught:
        RocksStore(tmp_path)
    assert str(tmp_path) in str(caught.value)
    assert "in use" in str(caught.value)
    write(store, b"still", b"works")
    store.close()
    RocksStore(tmp_path).close()


def test_a_directory_that_cannot_be_made_is_refused(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("not a directory")
    with pytest.raises(StorageError, match="file"):
        RocksStore(tmp_path / "file" / "shard-0000")


def test_a_damaged_database_is_refused(tmp_path: Path) -> None:
    RocksStore(tmp_path).close()
    (tmp_path / "CURRENT").write_text("MANIFEST-999999\n")
    with pytest.raises(StorageError, match=str(tmp_path)):
        RocksStore(tmp_path)


def test_a_write_that_is_refused_is_a_storage_error(tmp_path: Path) -> None:
    store = RocksStore(tmp_path)
    batch = store.new_batch()
    batch.put(b"a", b"1", store.families.messages)
    store.commit(batch)
    with pytest.raises(StorageError):
        store.commit(batch)
    store.close()


def test_pins_do_not_keep_write_buffers_in_memory(tmp_path: Path) -> None:
    store = RocksStore(tmp_path)
    families = store.families
    pins = []
    for number in range(8):
        for part in range(500):
            write(store, b"%d%03d" % (number, part), bytes(12 * 1024))
        while not store.ready_to_pin([families.messages, families.delayed]):
            pass  # RocksDB's own threads see to it
        pins.append(store.pin([families.messages, families.delayed]))
    reader = store._readers["messages"]
    reader.flush(True)
    held_bytes = reader.property_int_value("rocksdb.size-all-mem-tables") or 0
    assert held_bytes < len(pins) * 2 * PINNED_BYTES_MAX, "all buffers, pinned ones included"
    assert [sum(1 for _ in pin.scan(b"", families.messages)) for pin in pins] == [500 * number for number in range(1, 9)]
    store.close()


def test_two_batches_never_share_a_commit(tmp_path: Path) -> None:
    store = RocksStore(tmp_path)
    one, other = store.new_batch(), store.new_batch()
    one.put(b"one", b"1", store.families.messages)
    other.put(b"other", b"2", store.families.messages)
    store.commit(other)
    assert store.get(b"one", store.families.messages) is None
    store.commit(one)
    assert store.get(b"one", store.families.messages) == b"1"
    store.close()


def test_a_stall_is_reported_while_it_lasts(tmp_path: Path) -> None:
    """A real one: RocksDB slows writes down as soon as a second flushed file lies unsorted, until it has merged them."""
    store = RocksStore(tmp_path)
    messages = store._readers["messages"]
    messages.set_options({"level0_file_num_compaction_trigger": "2", "level0_slowdown_writes_trigger": "2"})

    def stalls() -> bool:
        batch = store.new_batch()
        for number in range(8_000):  # enough to be merged for longer than it takes to ask
            batch.put(b"%04d" % number, os.urandom(1000), store.families.messages)
        store.commit(batch)
        messages.flush(True)
        return store.metrics().stalled

    eventually(stalls, "a stall")
    eventually(lambda: not store.metrics().stalled, "its end")
    store.close()


# --- damage -----------------------------------------------------------------------------------------------------------


def crashed_with_a_log(path: Path) -> Path:
    """The write-ahead log of 100 commits, as a crash leaves it."""
    subprocess.run([sys.executable, "-c", CRASH, str(path), "fsync"], timeout=60, check=False)
    return max(path.glob("*.log"), key=lambda log: log.stat().st_size)


def flip(file: Path, at: int) -> None:
    content = bytearray(file.read_bytes())
    content[at] ^= 1
    file.write_bytes(content)


@pytest.mark.parametrize("key", [b"000", b"050", b"099"])
def test_a_log_with_a_flipped_bit_is_refused_by_name(tmp_path: Path, key: bytes) -> None:
    log = crashed_with_a_log(tmp_path)
    flip(log, log.read_bytes().index(key))
    with pytest.raises(DamageError, match=str(log)) as caught:
        RocksStore(tmp_path)
    assert caught.value.details == {"path": str(tmp_path), "file": log.name}


@pytest.mark.parametrize("torn_bytes", [1, 10, 20])
def test_a_log_that_ends_in_a_torn_record_is_taken_up_to_there(tmp_path: Path, torn_bytes: int) -> None:
    log = crashed_with_a_log(tmp_path)
    os.truncate(log, log.stat().st_size - torn_bytes)
    store = RocksStore(tmp_path)
    expected = [b"%03d" % number for number in range(99)]
    assert [key for key, _ in store.scan(*ALL, store.families.messages)] == expected
    store.close()


def with_tables(path: Path) -> Path:
    """A store of 2,000 messages in a table; returns the table's file."""
    store = RocksStore(path)
    batch = store.new_batch()
    for number in range(2000):
        batch.put(b"%06d" % number, b"payload %04d " % number + os.urandom(200), store.families.messages)
    store.commit(batch)
    store._readers["messages"].flush(True)
    store.close()
    return next(file for file in path.glob("*.sst") if b"payload 1000" in file.read_bytes())


def test_every_read_of_a_damaged_block_is_refused_by_name(tmp_path: Path) -> None:
    table = with_tables(tmp_path)
    flip(table, table.read_bytes().index(b"payload 1000") + 50)
    store = RocksStore(tmp_path)
    messages = store.families.messages
    reads: list[Callable[[], object]] = [
        lambda: list(store.scan(*ALL, messages)),
        lambda: list(store.pin([messages]).scan(b"", messages)),
        lambda: store.get(b"001000", messages),
        lambda: store.get_many([b"001000"], messages),
    ]
    for read in reads:
        with pytest.raises(DamageError, match=str(table)) as caught:
            read()
        assert caught.value.details["file"] == table.name
    assert len(list(store.scan(b"", b"000900", messages))) == 900, "what is before the damage is whole"
    store.close()


def test_a_store_without_one_of_its_files_is_refused(tmp_path: Path) -> None:
    table = with_tables(tmp_path)
    table.unlink()
    with pytest.raises(DamageError, match=table.name):
        RocksStore(tmp_path)


def test_a_database_without_its_first_file_is_not_taken_for_a_new_one(tmp_path: Path) -> None:
    with_tables(tmp_path)
    (tmp_path / "CURRENT").unlink()
    with pytest.raises(DamageError, match="CURRENT"):
        RocksStore(tmp_path)


def test_a_scan_sees_the_moment_in_which_it_began(tmp_path: Path) -> None:
    store = RocksStore(tmp_path)
    write(store, b"1", b"")
    scan = store.scan(*ALL, store.families.messages)
    write(store, b"2", b"")
    assert [key for key, _ in scan] == [b"1"]
    store.close()


def test_files_are_private_in_a_directory_that_was_there_before(tmp_path: Path) -> None:
    with_tables(tmp_path)
    tmp_path.chmod(0o755)
    for file in tmp_path.iterdir():
        file.chmod(0o644)
    store = RocksStore(tmp_path)
    assert stat.S_IMODE(tmp_path.stat().st_mode) == 0o700
    assert {stat.S_IMODE(file.stat().st_mode) for file in tmp_path.glob("*.sst")} == {0o600}
    store.close()


def test_a_store_can_be_closed_and_opened_again_in_one_process(tmp_path: Path) -> None:
    store = RocksStore(tmp_path)
    write(store, b"1", b"")
    store.pin([store.families.messages])
    store.close()
    again = RocksStore(tmp_path)
    assert again.get(b"1", again.families.messages) == b""
    again.close()


# --- disk space -------------------------------------------------------------------------------------------------------


def fill(store: RocksStore, megabytes: int) -> None:
    for number in range(megabytes):
        batch = store.new_batch()
        for index in range(100):
            batch.put(b"%06d-%03d" % (number, index), os.urandom(10_000), store.families.messages)
            batch.put(b"%06d-%03d-large" % (number, index), os.urandom(20_000), store.families.messages)
        store.commit(batch)


def empty(store: RocksStore) -> None:
    batch = store.new_batch()
    batch.delete_range(b"0", b"9", store.families.messages)
    batch.put(b"kept", b"1", store.families.messages)
    store.commit(batch)


def on_disk(path: Path) -> int:
    size = 0
    for file in path.iterdir():
        with suppress(FileNotFoundError):  # RocksDB has just removed it
            size += file.stat().st_size
    return size


def test_the_space_of_what_was_removed_is_given_back(tmp_path: Path) -> None:
    store = RocksStore(tmp_path)
    fill(store, 20)
    empty(store)
    before = on_disk(tmp_path)
    store.tidy()
    store.tidy()  # while it is under way: no effect
    write(store, b"meanwhile", b"2")
    eventually(lambda: on_disk(tmp_path) < before // 20, "the space is given back")
    assert dict(store.scan(*ALL, store.families.messages)) == {b"kept": b"1", b"meanwhile": b"2"}
    store.close()


def test_a_store_closes_while_it_gives_space_back(tmp_path: Path) -> None:
    store = RocksStore(tmp_path)
    fill(store, 20)
    empty(store)
    store.tidy()
    store.close()
    again = RocksStore(tmp_path)
    assert list(again.scan(*ALL, again.families.messages)) == [(b"kept", b"1")]
    again.close()
