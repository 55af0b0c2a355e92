"""The storage port's contract, kept by RocksDB, by its twin in memory, and by a leading copy of a replicated shard."""

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from fila_worker.core.store import Families, Family, Store
from fila_worker.storage.memory import MemoryStore
from fila_worker.storage.replica import Replica
from fila_worker.storage.rocks import RocksStore
from tests.support.hosts.copies import ConfirmedReplica, Leader

ALL = (b"", b"\xff" * 32)


OPEN: dict[str, Callable[[Path], Store]] = {
    "memory": lambda _: MemoryStore(),
    "rocks": RocksStore,
    "replica, nothing confirmed": lambda path: Leader(Replica(path)).copy,
    "replica, all confirmed": ConfirmedReplica,
}


@pytest.fixture(params=OPEN)
def store(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Store]:
    opened = OPEN[request.param](tmp_path)
    yield opened
    opened.close()


@pytest.fixture
def family(store: Store) -> Family:
    return store.families.messages


def put(store: Store, family: Family, **items: bytes) -> None:
    batch = store.new_batch()
    for key, value in items.items():
        batch.put(key.encode(), value, family)
    store.commit(batch)


def keys(store: Store, family: Family, begin: bytes = ALL[0], end: bytes = ALL[1]) -> list[bytes]:
    return [key for key, _ in store.scan(begin, end, family)]


# --- batches ----------------------------------------------------------------------------------------------------------


def test_nothing_of_a_batch_is_seen_before_its_commit_and_all_after(store: Store) -> None:
    messages, leases = store.families.messages, store.families.leases
    batch = store.new_batch()
    batch.put(b"a", b"1", messages)
    batch.put(b"a", b"2", leases)
    assert (store.get(b"a", messages), keys(store, leases)) == (None, [])
    store.commit(batch)
    assert (store.get(b"a", messages), store.get(b"a", leases)) == (b"1", b"2")


def test_a_batch_that_is_dropped_leaves_no_trace(store: Store, family: Family) -> None:
    store.new_batch().put(b"a", b"1", family)
    store.commit(store.new_batch())
    assert keys(store, family) == []


def test_a_batch_counts_its_changes(store: Store, family: Family) -> None:
    batch = store.new_batch()
    assert len(batch) == 0
    batch.put(b"a", b"1", family)
    batch.delete(b"b", family)
    batch.delete_range(b"c", b"d", family)
    assert len(batch) == 3
    store.commit(batch)


def test_changes_of_a_batch_take_effect_in_order(store: Store, family: Family) -> None:
    batch = store.new_batch()
    batch.put(b"a", b"1", family)
    batch.put(b"a", b"2", family)
    batch.put(b"b", b"1", family)
    batch.delete(b"b", family)
    batch.delete(b"c", family)
    batch.put(b"c", b"3", family)
    batch.put(b"d", b"1", family)
    batch.delete_range(b"d", b"e", family)
    batch.put(b"dd", b"4", family)
    store.commit(batch)
    assert list(store.scan(*ALL, family)) == [(b"a", b"2"), (b"c", b"3"), (b"dd", b"4")]


def test_a_later_batch_overwrites(store: Store, family: Family) -> None:
    put(store, family, a=b"1")
    put(store, family, a=b"2")
    assert store.get(b"a", family) == b"2"


def test_families_do_not_see_each_other(store: Store) -> None:
    for name in Families._fields:
        put(store, getattr(store.families, name), key=name.encode())
    for name in Families._fields:
        found = [value for key, value in store.scan(*ALL, getattr(store.families, name)) if key == b"key"]
        assert found == [name.encode()]


# --- deleting ---------------------------------------------------------------------------------------------------------


def test_a_deleted_key_is_gone(store: Store, family: Family) -> None:
    put(store, family, a=b"1", b=b"2")
    batch = store.new_batch()
    batch.delete(b"a", family)
    store.commit(batch)
    assert (store.get(b"a", family), keys(store, family)) == (None, [b"b"])


def test_deleting_what_is_not_there_is_no_error(store: Store, family: Family) -> None:
    batch = store.new_batch()
    batch.delete(b"a", family)
    store.commit(batch)
    assert keys(store, family) == []


@pytest.mark.parametrize(
    ("begin", "end", "left"),
    [
        (b"b", b"d", [b"a", b"d", b"e"]),
        (b"aa", b"dd", [b"a", b"e"]),
        (b"", b"\xff", []),
        (b"x", b"z", [b"a", b"b", b"c", b"d", b"e"]),
        (b"c", b"c", [b"a", b"b", b"c", b"d", b"e"]),
    ],
)
def test_a_deleted_range_includes_its_begin_and_not_its_end(
    store: Store, family: Family, begin: bytes, end: bytes, left: list[bytes]
) -> None:
    put(store, family, a=b"1", b=b"2", c=b"3", d=b"4", e=b"5")
    put(store, store.families.leases, c=b"other")
    batch = store.new_batch()
    batch.delete_range(begin, end, family)
    store.commit(batch)
    assert keys(store, family) == left
    assert keys(store, store.families.leases) == [b"c"]


# --- reading ----------------------------------------------------------------------------------------------------------


def test_a_key_that_is_not_there_is_none(store: Store, family: Family) -> None:
    assert store.get(b"a", family) is None


def test_many_values_come_in_the_order_asked_for(store: Store, family: Family) -> None:
    put(store, family, a=b"1", b=b"2", c=b"3")
    assert store.get_many([b"c", b"x", b"a", b"c"], family) == [b"3", None, b"1", b"3"]
    assert store.get_many([], family) == []


@pytest.mark.parametrize(
    ("begin", "end", "found"),
    [
        (b"", b"\xff", [b"a", b"b", b"c", b"d"]),
        (b"b", b"d", [b"b", b"c"]),
        (b"b\0", b"d\0", [b"c", b"d"]),
        (b"aa", b"bb", [b"b"]),
        (b"e", b"\xff", []),
        (b"c", b"c", []),
        (b"d", b"a", []),
    ],
)
def test_a_scan_includes_its_begin_and_not_its_end(
    store: Store, family: Family, begin: bytes, end: bytes, found: list[bytes]
) -> None:
    put(store, family, d=b"4", b=b"2", a=b"1", c=b"3")
    assert keys(store, family, begin, end) == found


def test_a_scan_is_in_byte_order(store: Store, family: Family) -> None:
    numbers = [0, 1, 255, 256, 2**31, 2**32, 2**63, 2**64 - 1]
    batch = store.new_batch()
    for number in reversed(numbers):
        batch.put(number.to_bytes(8, "big"), b"", family)
    store.commit(batch)
    assert [int.from_bytes(key, "big") for key in keys(store, family)] == numbers


def test_a_scan_that_is_not_read_to_its_end_costs_nothing_later(store: Store, family: Family) -> None:
    put(store, family, a=b"1", b=b"2", c=b"3")
    scan = store.scan(*ALL, family)
    assert next(scan) == (b"a", b"1")
    del scan
    put(store, family, d=b"4")
    assert keys(store, family) == [b"a", b"b", b"c", b"d"]


def test_a_scan_shows_the_data_of_its_beginning(store: Store, family: Family) -> None:
    put(store, family, a=b"1", b=b"2")
    scan = store.scan(*ALL, family)
    batch = store.new_batch()
    batch.put(b"aa", b"new", family)
    batch.delete(b"b", family)
    store.commit(batch)
    assert list(scan) == [(b"a", b"1"), (b"b", b"2")]


@pytest.mark.parametrize("size", [0, 1, 16 * 1024 - 1, 16 * 1024, 1024 * 1024, 17 * 1024 * 1024])
def test_values_of_any_size(store: Store, family: Family, size: int) -> None:
    value = b"\xa5" * size
    put(store, family, small=b"1", value=value)
    assert store.get(b"value", family) == value
    assert store.get_many([b"value", b"small"], family) == [value, b"1"]
    assert list(store.scan(*ALL, family)) == [(b"small", b"1"), (b"value", value)]


def test_keys_and_values_are_any_bytes(store: Store, family: Family) -> None:
    awkward = [bytes([byte, 0, 255 - byte]) for byte in range(256)]
    batch = store.new_batch()
    for key in awkward:
        batch.put(key, key[::-1], family)
    store.commit(batch)
    assert list(store.scan(*ALL, family)) == [(key, key[::-1]) for key in awkward]


# --- pins -------------------------------------------------------------------------------------------------------------


def change_everything(store: Store, family: Family) -> None:
    batch = store.new_batch()
    batch.put(b"a", b"changed", family)
    batch.delete(b"b", family)
    batch.put(b"bb", b"new", family)
    batch.delete_range(b"c", b"z", family)
    store.commit(batch)


def test_a_pin_shows_the_moment_it_was_made_as_often_as_it_is_read(store: Store, family: Family) -> None:
    put(store, family, a=b"1", b=b"2", c=b"3", d=b"4")
    pin = store.pin([family])
    change_everything(store, family)
    for _ in range(2):
        assert list(pin.scan(b"", family)) == [(b"a", b"1"), (b"b", b"2"), (b"c", b"3"), (b"d", b"4")]
        change_everything(store, family)
    assert list(pin.scan(b"bb", family)) == [(b"c", b"3"), (b"d", b"4")]
    assert list(store.scan(*ALL, family)) == [(b"a", b"changed"), (b"bb", b"new")]


def test_a_pin_holds_on_to_what_was_flushed_and_compacted_away(store: Store, family: Family) -> None:
    large = {f"k{number:03}": bytes([number]) * 20_000 for number in range(50)}
    put(store, family, **large)
    pin = store.pin([family])
    batch = store.new_batch()
    batch.delete_range(*ALL, family)
    store.commit(batch)
    if isinstance(store, RocksStore):
        store._db.flush(True)
        reader = store._readers["messages"]
        reader.flush(True)
        reader.compact_range(None, None)
    assert keys(store, family) == []
    assert dict(pin.scan(b"", family)) == {key.encode(): value for key, value in large.items()}


def test_families_of_a_pin_are_read_side_by_side(store: Store) -> None:
    messages, delayed = store.families.messages, store.families.delayed
    put(store, messages, a=b"1", c=b"3")
    put(store, delayed, b=b"2", d=b"4")
    pin = store.pin([messages, delayed])
    assert list(zip(pin.scan(b"", messages), pin.scan(b"", delayed), strict=True)) == [
        ((b"a", b"1"), (b"b", b"2")),
        ((b"c", b"3"), (b"d", b"4")),
    ]


def test_a_scan_of_a_pin_may_be_left_and_another_begun(store: Store, family: Family) -> None:
    put(store, family, a=b"1", b=b"2", c=b"3")
    pin = store.pin([family])
    assert next(pin.scan(b"b", family)) == (b"b", b"2")
    assert next(pin.scan(b"a", family)) == (b"a", b"1")
    assert list(pin.scan(b"x", family)) == []


def test_pins_do_not_see_each_other(store: Store, family: Family) -> None:
    pins = []
    for number in range(4):
        put(store, family, **{f"k{number}": b""})
        pins.append(store.pin([family]))
    assert [len(list(pin.scan(b"", family))) for pin in pins] == [1, 2, 3, 4]
    pins[0].close()
    assert [len(list(pin.scan(b"", family))) for pin in pins[1:]] == [2, 3, 4]


@pytest.mark.parametrize("closed", [False, True])
def test_a_store_can_be_opened_again_whatever_was_pinned(tmp_path: Path, closed: bool) -> None:
    first = RocksStore(tmp_path)
    put(first, first.families.messages, a=b"1")
    pin = first.pin([first.families.messages])
    scan = pin.scan(b"", first.families.messages)
    assert next(scan) == (b"a", b"1")
    if closed:
        pin.close()
    del scan
    first.close()
    second = RocksStore(tmp_path)
    assert second.get(b"a", second.families.messages) == b"1"
    second.close()


def test_a_scan_outlives_the_bounds_it_was_asked_for_with(store: Store, family: Family) -> None:
    put(store, family, **{f"b{number:03}": b"" for number in range(100)})
    for _ in range(20):
        scan = store.scan(bytes(bytearray(b"b")), bytes(bytearray(b"c")), family)  # nobody else holds these
        rubbish, found = [], 0
        for _ in scan:
            rubbish += [bytes([number]) * 2 for number in range(found % 50)]  # where they were, something else is soon
            found += 1
        assert found == 100
