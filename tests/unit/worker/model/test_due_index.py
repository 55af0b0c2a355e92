"""The due index: one durable family for all that waits for the clock, never read from its start."""

from collections import Counter
from collections.abc import Iterator
from typing import Any

import pytest

from fila_proto_zmq.commands import Cancel, DeleteQueue, PurgeQueue, Verb
from fila_proto_zmq.ids import parse_id
from fila_worker.core.keys import FIRST, LAST, pack_u64
from fila_worker.core.model.due_index import DueIndex, DueKind
from fila_worker.core.settings import Limits
from fila_worker.core.store import Families, Family
from fila_worker.storage.memory import MemoryStore
from tests.support.shard.shard import ShardHarness


class CountingStore(MemoryStore):
    """Counts what is read of each family, and where scans of the due index begin."""

    def __init__(self) -> None:
        super().__init__()
        self.items: Counter[str] = Counter()
        self.begins: list[bytes] = []

    def scan(self, begin: bytes, end: bytes, family: Family) -> Iterator[tuple[bytes, bytes]]:
        name = next(name for name, each in zip(Families._fields, self.families, strict=True) if each is family)
        if family is self.families.schedule:
            self.begins.append(begin)
        for key in family.irange(begin, end, (True, False)):
            self.items[name] += 1
            yield key, family[key]

    def get_many(self, keys: Any, family: Family) -> list[bytes | None]:
        self.items["looked up"] += len(keys)
        return super().get_many(keys, family)


def fill(store: MemoryStore, index: DueIndex, due_ms: range, subject: bytes = b"x") -> None:
    batch = store.new_batch()
    for each in due_ms:
        index.add(each, DueKind.RELEASE, subject, batch)
    store.commit(batch)


def drain(store: MemoryStore, index: DueIndex, now_ms: int) -> list[tuple[int, bytes]]:
    taken = []
    while index.next_due_ms is not None and index.next_due_ms <= now_ms:
        batch = store.new_batch()
        taken += [(entry.due_ms, entry.subject) for entry in index.take_due(now_ms, batch)]
        store.commit(batch)
    return taken


# --- the index alone --------------------------------------------------------------------------------------------------


def test_entries_that_are_not_due_are_not_read_and_a_restart_reads_one() -> None:
    store = CountingStore()
    index = DueIndex(store)
    fill(store, index, range(10_000, 30_000))
    assert (index.next_due_ms, store.items["schedule"]) == (10_000, 0)
    index = DueIndex(store)
    index.recover()
    assert (index.next_due_ms, store.items["schedule"]) == (10_000, 1)


def test_entries_come_in_the_order_of_their_times() -> None:
    store = MemoryStore()
    index = DueIndex(store)
    for due_ms in (7, 3, 9, 3, 5):
        fill(store, index, range(due_ms, due_ms + 1))
    assert drain(store, index, 8) == [(3, b"x"), (5, b"x"), (7, b"x")]
    assert index.next_due_ms == 9


def test_every_entry_is_read_a_constant_number_of_times_however_many_share_a_millisecond() -> None:
    store = CountingStore()
    index = DueIndex(store)
    batch = store.new_batch()
    for number in range(20_000):
        index.add(5_000, DueKind.EXPIRE, pack_u64(number), batch)
    store.commit(batch)
    assert [u for _, u in drain(store, index, 5_000)] == [pack_u64(number) for number in range(20_000)]
    assert store.items["schedule"] <= 2 * 20_000
    assert store.begins == sorted(store.begins), "what was taken lies dead in front: never begin there again"


def test_an_entry_before_the_cursor_moves_it_back() -> None:
    store = MemoryStore()
    index = DueIndex(store, Limits(turn_due_max=1))
    for subject in (b"b", b"d"):
        fill(store, index, range(5, 6), subject)
    batch = store.new_batch()
    assert [entry.subject for entry in index.take_due(5, batch)] == [b"b"]
    store.commit(batch)
    fill(store, index, range(5, 6), b"a")  # the same time, but in front of what was taken
    fill(store, index, range(4, 5), b"z")
    assert drain(store, index, 5) == [(4, b"z"), (5, b"a"), (5, b"d")]


def test_a_restart_begins_at_the_checkpoint_and_finds_what_was_put_before_it() -> None:
    store = CountingStore()
    index = DueIndex(store)
    fill(store, index, range(1_000, 1_500))
    drain(store, index, 1_500)
    recovered = DueIndex(store)
    recovered.recover()
    assert store.begins[-1] > pack_u64(1_500)
    fill(store, recovered, range(700, 701))  # the clock was put back
    recovered = DueIndex(store)
    recovered.recover()
    assert recovered.next_due_ms == 700


# --- the index in a shard ---------------------------------------------------------------------------------------------


def counted() -> tuple[ShardHarness, CountingStore]:
    store = CountingStore()
    shard = ShardHarness(store=store, checked=False)
    shard.create()
    return shard, store


def test_turns_read_nothing_while_nothing_is_due() -> None:
    shard, store = counted()
    for start in range(0, 6_000, 2_000):
        shard.enqueue(*[b""] * 2_000, delay_ms=[60_000 + start + number for number in range(2_000)])
    store.items.clear()
    store.begins.clear()
    commits = store.committed
    for _ in range(100):
        shard.pass_time(500)
    assert (dict(store.items), store.begins, store.committed) == ({}, [], commits)
    assert shard.shard.buffers.used_bytes == 0
    assert shard.shard.next_due(shard.now_ms) == 10_000


def test_delayed_messages_come_in_the_order_of_their_times() -> None:
    shard, store = counted()
    order = [number * 7_919 % 6_000 for number in range(6_000)]
    for start in range(0, 6_000, 2_000):
        part = order[start : start + 2_000]
        shard.enqueue(*[b"%d" % number for number in part], delay_ms=[1_000 + number for number in part])
    came = []
    for _ in range(7):
        shard.pass_time(1_000)
        got = [*shard.receive(500), *shard.receive(500)]
        came.append(sorted(int(each.payload) for each in got))
        shard.ack(got)
    assert [number for batch in came for number in batch] == list(range(6_000))
    assert store.items["schedule"] < 3 * 6_000


def test_a_turn_releases_a_bounded_number_of_bytes() -> None:
    shard = ShardHarness()
    shard.create()
    for _ in range(30):
        shard.enqueue(bytes(1_000_000), delay_ms=1_000)
    shard.now_ms += 1_000
    shard.turn()
    assert 0 < shard.shard.queues["q"].pending < 30
    shard.pass_time(0)
    assert shard.counts() == (30, 0, 0)


@pytest.mark.parametrize("how", ["cancelled", "purged", "deleted", "delivered"])
def test_stale_entries_are_harmless(shard: ShardHarness, how: str) -> None:
    ids = shard.enqueue(b"0", b"1", delay_ms=1_000, ttl_ms=5_000)
    match how:
        case "cancelled":
            for each in ids:
                shard.ask(Cancel(*parse_id(each)))
        case "purged":
            shard.ask(PurgeQueue())
        case "deleted":
            shard.ask(DeleteQueue())
            shard.create()
        case "delivered":
            shard.pass_time(1_000)
            shard.ack(shard.receive(2))
    shard.restart()
    shard.pass_time(60_000)
    assert shard.counts() == shard.counts("q.dlq") == (0, 0, 0)
    assert list(shard.store.scan(FIRST, LAST, shard.store.families.schedule)) == []
    assert shard.shard.next_due(shard.now_ms) is None


def test_a_message_that_is_delayed_anew_comes_at_its_last_time(shard: ShardHarness) -> None:
    shard.enqueue(b"x", delay_ms=1_000)
    shard.pass_time(1_000)
    for after_ms in (5_000, 2_000, 9_000):
        shard.settle(Verb.RETRY, shard.receive(), after_ms=after_ms)
        shard.pass_time(after_ms - 1)
        assert shard.counts() == (0, 0, 1)
        shard.restart()
        shard.pass_time(1)
        assert shard.counts() == (1, 0, 0)


def test_what_is_due_is_taken_and_acted_upon_in_one_commit() -> None:
    """Or a crash between the two would leave a message delayed for ever."""
    store = MemoryStore()
    shard = ShardHarness(store=store)
    shard.create(idle_expiry_ms=60_000)
    shard.enqueue(b"0", delay_ms=2_000)
    shard.enqueue(b"1", ttl_ms=2_000)
    shard.enqueue(b"2", ttl_ms=2_000, delay_ms=2_000, dedup_id="x")
    commits = store.committed
    shard.now_ms += 2_000
    shard.turn()
    assert store.committed == commits + 1
    assert shard.counts() == (1, 0, 0)
