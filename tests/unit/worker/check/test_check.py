"""Each invariant, broken on purpose on a real disk: it is found, and what can be derived is repaired."""

import shutil
from collections.abc import Callable, Iterator
from pathlib import Path

import msgspec
import pytest

from fila_worker.check.directory import ShardReport, check_path, repair
from fila_worker.check.shard import apply, check_shard
from fila_worker.core.enqueue.insert import LAST_QUEUE_ID
from fila_worker.core.keys import FIRST, LAST, first_of_all, pack_u32, pack_u64
from fila_worker.core.model.acked_messages import is_mark, pack_mark
from fila_worker.core.model.due_index import CHECKPOINT, DueKind, entry_key
from fila_worker.core.model.leases import FINISHED, decode_lease
from fila_worker.core.model.ledger import LaneCounts, LedgerEntry, decode_lane, encode_lane, pack_entry, parse_entry
from fila_worker.core.model.queues import decode_queue, encode_queue
from fila_worker.core.recovery import IDENTITY, Identity
from fila_worker.core.store import StoreBatch
from fila_worker.storage.made import mark_of
from fila_worker.storage.rocks import RocksStore
from tests.support.shard.shard import SHARDS
from tests.unit.worker.check.conftest import INDEX, Change

Write = Callable[[Change], None]


def items(store: RocksStore, family: str) -> list[tuple[bytes, bytes]]:
    return list(store.scan(FIRST, LAST, getattr(store.families, family)))


def ends(store: RocksStore) -> tuple[bytes, LedgerEntry]:
    """The last entry of the ledger, and the next one's key."""
    key, data = items(store, "ledger")[-1]
    return pack_u64(int.from_bytes(key, "big") + 1), parse_entry(data)


def checked(path: Path) -> list[tuple[str, bool]]:
    """The kinds of what is found, each with whether it can be repaired."""
    return sorted({(each.kind, each.repairable) for each in check_path(path, INDEX, SHARDS).kept})


def repaired(path: Path) -> ShardReport:
    return repair(ShardReport(INDEX, path, check_path(path, INDEX, SHARDS)), SHARDS)


def test_a_sound_shard_is_clean_and_the_check_writes_nothing(shard: Path) -> None:
    before = {file.name: file.read_bytes() for file in shard.iterdir()}
    assert checked(shard) == []
    assert {file.name: file.read_bytes() for file in shard.iterdir()} == before


# --- what can be derived ----------------------------------------------------------------------------------------------


def wrong_counts(store: RocksStore, batch: StoreBatch) -> None:
    key, entry = ends(store)
    lanes = {lane: LaneCounts(counts.stored + 5, 3, 1, counts.weight) for lane, counts in entry.lanes.items()} or {
        1: LaneCounts(77, 0, 0, 1)
    }
    batch.put(key, pack_entry(entry._replace(lanes=lanes, sizes={})), store.families.ledger)


def wrong_size(store: RocksStore, batch: StoreBatch) -> None:
    key, entry = ends(store)
    batch.put(key, pack_entry(entry._replace(lanes={}, sizes={1: 12_345})), store.families.ledger)


def low_counters(store: RocksStore, batch: StoreBatch) -> None:
    key, entry = ends(store)
    batch.put(key, pack_entry(LedgerEntry(1, 1, entry.clock_ms, {}, {})), store.families.ledger)


def unreadable_entry(store: RocksStore, batch: StoreBatch) -> None:
    key, _ = ends(store)
    batch.put(key, b"short", store.families.ledger)


def lost_ledger(store: RocksStore, batch: StoreBatch) -> None:
    batch.delete_range(FIRST, LAST, store.families.ledger)


def high_floor(store: RocksStore, batch: StoreBatch) -> None:
    key, data = items(store, "lanes")[0]
    record = decode_lane(data)
    record.floor = key + b"\xff" * 12
    batch.put(key, encode_lane(record), store.families.lanes)


def idle_lane(store: RocksStore, batch: StoreBatch) -> None:
    record = decode_lane(items(store, "lanes")[0][1])
    record.stored = record.delayed = record.retrying = 0
    record.fairness_key = "nobody"
    batch.put(pack_u64(4), encode_lane(record), store.families.lanes)
    key, entry = ends(store)
    batch.put(key, pack_entry(LedgerEntry(entry.sequence, 100, entry.clock_ms, {}, {})), store.families.ledger)


def lost_due_index(store: RocksStore, batch: StoreBatch) -> None:
    batch.delete_range(FIRST, LAST, store.families.schedule)


def late_cursor(store: RocksStore, batch: StoreBatch) -> None:
    batch.put(CHECKPOINT, pack_u64(1 << 50), store.families.state)


def unreadable_due_entry(store: RocksStore, batch: StoreBatch) -> None:
    batch.put(entry_key(5_000_000, DueKind.RELEASE, b"short"), b"", store.families.schedule)


def unreadable_dedup_id(store: RocksStore, batch: StoreBatch) -> None:
    batch.put(pack_u32(1) + b"three", b"short", store.families.dedup)


def dedup_id_of_no_queue(store: RocksStore, batch: StoreBatch) -> None:
    batch.put(pack_u32(99) + b"one", bytes(24), store.families.dedup)


def lease_without_messages(store: RocksStore, batch: StoreBatch) -> None:
    key, data = next(item for item in items(store, "leases") if item[1][0] > 1)
    record = decode_lease(data)
    record.keys = pack_u64(1) + bytes(12)
    batch.put(pack_u64(int.from_bytes(key, "big") + 100), msgspec.msgpack.encode(record), store.families.leases)


def mark_without_messages(store: RocksStore, batch: StoreBatch) -> None:
    batch.put(pack_u64(7), pack_mark(b"client", [pack_u64(1) + bytes(12)]), store.families.leases)


def low_queue_number(store: RocksStore, batch: StoreBatch) -> None:
    batch.put(LAST_QUEUE_ID, pack_u32(1), store.families.state)


def lost_dead_letters(store: RocksStore, batch: StoreBatch) -> None:
    key, data = items(store, "queues")[0]
    record = decode_queue(data)
    record.dead_letters = 77
    batch.put(key, encode_queue(record), store.families.queues)


def unknown_priority(store: RocksStore, batch: StoreBatch) -> None:
    key, data = items(store, "queues")[0]
    record = decode_queue(data)
    record.priorities = [5]
    batch.put(key, encode_queue(record), store.families.queues)


def unreadable_enqueue(store: RocksStore, batch: StoreBatch) -> None:
    batch.put(entry_key(1 << 50, DueKind.ENQUEUE, bytes(24)), b"\xc1", store.families.schedule)


REPAIRABLE = [
    (wrong_counts, "count"),
    (wrong_size, "size"),
    (low_counters, "counter"),
    (unreadable_entry, "ledger"),
    (lost_ledger, "counter"),
    (high_floor, "lane"),
    (idle_lane, "lane"),
    (lost_due_index, "due index"),
    (late_cursor, "due index"),
    (unreadable_due_entry, "due index"),
    (unreadable_enqueue, "due index"),
    (unreadable_dedup_id, "dedup"),
    (dedup_id_of_no_queue, "dedup"),
    (lease_without_messages, "lease"),
    (mark_without_messages, "lease"),
    (low_queue_number, "counter"),
    (lost_dead_letters, "queue"),
    (unknown_priority, "queue"),
]


@pytest.mark.parametrize(("breaking", "kind"), REPAIRABLE, ids=lambda each: getattr(each, "__name__", each))
def test_what_can_be_derived_is_found_and_repaired(shard: Path, change: Write, breaking: Change, kind: str) -> None:
    change(breaking)
    assert (kind, True) in checked(shard)
    assert all(repairable for _, repairable in checked(shard))
    report = repaired(shard)
    assert report.repaired > 0
    assert [each.text for each in report.findings.kept] == []
    assert checked(shard) == []


@pytest.mark.whole
def test_a_repair_that_is_cut_off_after_any_batch_is_finished_by_the_next(
    shard: Path, change: Write, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("fila_worker.check.shard.PORTION", 1)
    for breaking in (wrong_counts, wrong_size, low_counters, lost_due_index, mark_without_messages, high_floor):
        change(breaking)
    whole = len(check_path(shard, INDEX, SHARDS))
    for cut_after in range(whole):
        copy = shard.parent / f"cut-{cut_after}" / shard.name
        shutil.copytree(shard, copy)
        mark_of(copy).touch()
        store = RocksStore(copy)
        commits = iter(range(cut_after))
        monkeypatch.setattr(store, "commit", cutting(store.commit, commits))
        with pytest.raises(KeyboardInterrupt):
            apply(store, check_shard(store, INDEX, SHARDS))
        store.close()
        assert checked(copy) != []
        assert [each.text for each in repaired(copy).findings.kept] == []


def cutting(commit: Callable[..., None], left: Iterator[int]) -> Callable[..., None]:
    """A commit that ends the repair when ``left`` is used up."""

    def cut(batch: StoreBatch, *, sync: bool) -> None:
        if next(left, None) is None:
            raise KeyboardInterrupt
        commit(batch, sync=sync)

    return cut


# --- what cannot be derived -------------------------------------------------------------------------------------------


def unreadable_message(store: RocksStore, batch: StoreBatch) -> None:
    batch.put(items(store, "messages")[-1][0], b"short", store.families.messages)


def message_at_a_wrong_place(store: RocksStore, batch: StoreBatch) -> None:
    key, record = items(store, "messages")[-1]
    batch.delete(key, store.families.messages)
    batch.put(key[:8] + pack_u32(2**31 + 9) + key[12:], record, store.families.messages)


def message_of_no_lane(store: RocksStore, batch: StoreBatch) -> None:
    key, record = items(store, "messages")[-1]
    batch.put(pack_u64(9) + key[8:], record, store.families.messages)


def message_with_a_short_key(store: RocksStore, batch: StoreBatch) -> None:
    batch.put(b"short", b"", store.families.messages)


def message_in_two_places(store: RocksStore, batch: StoreBatch) -> None:
    key, value = items(store, "delayed")[0]
    batch.put(key, value[9:], store.families.messages)


def lane_of_no_queue(store: RocksStore, batch: StoreBatch) -> None:
    key, data = items(store, "lanes")[0]
    record = decode_lane(data)
    record.queue = 77
    batch.put(key, encode_lane(record), store.families.lanes)


def unreadable_lane(store: RocksStore, batch: StoreBatch) -> None:
    batch.put(items(store, "lanes")[0][0], b"\xc1", store.families.lanes)


def unreadable_queue(store: RocksStore, batch: StoreBatch) -> None:
    batch.put(items(store, "queues")[0][0], b"\xc1", store.families.queues)


def queue_of_another_shard(store: RocksStore, batch: StoreBatch) -> None:
    key, data = items(store, "queues")[0]
    record = decode_queue(data)
    record.name = "elsewhere"
    batch.put(key, encode_queue(record), store.families.queues)


def message_leased_twice(store: RocksStore, batch: StoreBatch) -> None:
    key, data = next(item for item in items(store, "leases") if item[1][0] > 1)
    batch.put(pack_u64(int.from_bytes(key, "big") + 100), data, store.families.leases)


def unreadable_lease(store: RocksStore, batch: StoreBatch) -> None:
    batch.put(pack_u64(1), b"\xc1", store.families.leases)


def other_identity(store: RocksStore, batch: StoreBatch) -> None:
    batch.put(IDENTITY, msgspec.msgpack.encode(Identity(3, 4, SHARDS, 1)), store.families.state)


def lost_identity(store: RocksStore, batch: StoreBatch) -> None:
    batch.delete(IDENTITY, store.families.state)


def unknown_value(store: RocksStore, batch: StoreBatch) -> None:
    batch.put(b"whatever", b"", store.families.state)


def unreadable_schedule(store: RocksStore, batch: StoreBatch) -> None:
    batch.put(b"schedule:nightly", b"\xc1", store.families.state)


def unreadable_config(store: RocksStore, batch: StoreBatch) -> None:
    batch.put(b"key", b"\xff", store.families.config)


def unreadable_outbox(store: RocksStore, batch: StoreBatch) -> None:
    batch.put(bytes(24), b"\xc1", store.families.outbox)


LOST = [
    (unreadable_message, "message"),
    (message_at_a_wrong_place, "message"),
    (message_of_no_lane, "lane"),
    (message_with_a_short_key, "key"),
    (message_in_two_places, "message"),
    (lane_of_no_queue, "lane"),
    (unreadable_lane, "lane"),
    (unreadable_queue, "queue"),
    (queue_of_another_shard, "queue"),
    (message_leased_twice, "lease"),
    (unreadable_lease, "lease"),
    (other_identity, "identity"),
    (lost_identity, "identity"),
    (unknown_value, "state"),
    (unreadable_schedule, "state"),
    (unreadable_config, "config"),
    (unreadable_outbox, "outbox"),
]


@pytest.mark.parametrize(("breaking", "kind"), LOST, ids=lambda each: getattr(each, "__name__", each))
def test_what_is_lost_is_named_and_stays(shard: Path, change: Write, breaking: Change, kind: str) -> None:
    change(breaking)
    assert (kind, False) in checked(shard)
    report = repaired(shard)
    assert not report.clean
    assert (kind, False) in checked(shard)


def test_the_sound_shard_has_all_that_these_tests_break(shard: Path) -> None:
    store = RocksStore(shard)
    leases = [data for _, data in items(store, "leases")]
    assert any(map(is_mark, leases))
    assert any(data.startswith(FINISHED) or data[0] > 1 for data in leases)
    for family in ("messages", "delayed", "schedule", "lanes", "ledger", "queues", "dedup", "state"):
        assert items(store, family), family
    assert all(key != first_of_all(key) for key, _ in items(store, "messages"))
    store.close()
