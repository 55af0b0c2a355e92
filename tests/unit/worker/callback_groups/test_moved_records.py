"""Batches go with their queues to another number of shards, and a check compares their counts with their messages."""

import itertools

import pytest

from fila_proto_zmq.commands import Settle, Verb
from fila_proto_zmq.names import batch_id, shard_of
from fila_worker.check.shard import check_shard
from fila_worker.core.callback_group_parts import PART, PartPlace, decode_part, encode_part, part_key
from fila_worker.core.keys import LAST
from fila_worker.core.store import Store
from fila_worker.reshard.copying import ReshardProgress, Shards, copy_all
from fila_worker.storage.memory import MemoryStore
from tests.support.shard.batched import DONE, ELSEWHERE, HERE, ID, SHARD_OF, THERE, TOKEN, Batched
from tests.support.shard.linked_shards import LinkedShards
from tests.support.shard.shard import SHARDS, ShardHarness, fences

OTHER = bytes(16)


class KilledError(Exception):
    """The end of a process."""


def resharded(batched: Batched, after: int, die_at: int) -> LinkedShards:
    """Copy all shards to another number. The copy dies once, at a step."""
    old = {index: station.store for index, station in batched.stations.items()}
    news = {index: MemoryStore() for index in range(after)}
    shards = Shards(SHARDS, after, lambda index: old.setdefault(index, MemoryStore()), news.__getitem__)
    steps = itertools.count()

    def step(name: str) -> None:
        if next(steps) == die_at:
            raise KilledError(name)

    now_ms = batched[5].now_ms
    try:
        copy_all(shards, now_ms, lambda: 7, ReshardProgress(step=step))
    except KilledError:
        copy_all(shards, now_ms, lambda: 7, ReshardProgress())
    return LinkedShards(*range(after), stores=news, total=after, now_ms=now_ms)


@pytest.mark.parametrize(("after", "die_at"), [(1, 3), (3, 40), (9, 60), (3, 1000)])
def test_batches_go_on_after_a_reshard(after: int, die_at: int) -> None:
    batched = Batched()
    batched.open()
    batched.open(OTHER)
    for queue in (HERE, THERE, ELSEWHERE):
        batched.add(queue, b"a", b"b")
        batched.add(queue, b"c", batch=batch_id(DONE, OTHER))
    batched.seal()
    batched.settle_all(ELSEWHERE)
    held = batched[3].receive(1, THERE)
    moved = resharded(batched, after, die_at)

    def of(queue: str) -> ShardHarness:
        return moved[shard_of(queue, after)]

    moved.pass_time(1)
    of(THERE).ask(Settle(Verb.ACK, fences(held)), THERE)
    for queue in (HERE, THERE):
        of(queue).ack(of(queue).receive(9, queue), queue)
    moved.pass_time(3000)
    (callback,) = of(DONE).receive(9, DONE)
    assert callback.headers["fila-batch"] == ID
    assert [callback.headers[f"fila-batch-{name}"] for name in ("total", "acked")] == ["6", "6"]
    places = {place for station in moved.stations.values() for place in station.shard.batch_parts.parts}
    assert places == {PartPlace(queue, OTHER) for queue in (HERE, THERE, ELSEWHERE)}


# --- the check --------------------------------------------------------------------------------------------------------


@pytest.fixture
def store() -> Store:
    """A shard with a batch of its own, whose members are in all places."""
    batched = Batched()
    batched.open()
    batched.add(HERE, *[b"%d" % number for number in range(6)])
    batched.add(HERE, b"later", delay_ms=60_000)
    batched.settle_all(HERE, count=2)
    batched[5].receive(1, HERE)
    batched.settle_all(HERE, Verb.FAIL, 1)
    batched.seal()
    return batched[5].store


def findings(store: Store) -> list[str]:
    return [finding.text for finding in check_shard(store, SHARD_OF[HERE], SHARDS)]


def test_a_sound_batch_has_no_findings(store: Store) -> None:
    assert findings(store) == []


def test_records_that_can_not_be_read_are_found(store: Store) -> None:
    batch = store.new_batch()
    for key, _ in store.scan(b"batch", b"batch" + LAST, store.families.state):
        batch.put(key, b"\xc1", store.families.state)
    batch.put(PART + b"short", b"", store.families.state)
    store.commit(batch)
    assert sum("is not known, or cannot be read" in text for text in findings(store)) == 5


@pytest.mark.parametrize("change", [-2, 3])
def test_counts_that_do_not_fit_the_messages_are_found_and_repaired(store: Store, change: int) -> None:
    key, state = part_key(PartPlace(HERE, TOKEN)), store.families.state
    part = decode_part(store.get(key, state) or b"")
    assert (part.added, part.acked, part.dead, part.open) == (7, 2, 1, 4)
    part.added += change
    batch = store.new_batch()

    batch.put(key, encode_part(part), state)
    store.commit(batch)
    (finding,) = check_shard(store, SHARD_OF[HERE], SHARDS)
    assert f"counts {4 + change} members of a batch that are not done, and has 4" in finding.text
    (repair,) = finding.changes
    batch = store.new_batch()
    batch.put(repair.key, repair.value or b"", state)
    store.commit(batch)
    assert findings(store) == []
