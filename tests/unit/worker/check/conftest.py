"""A shard on a real disk with messages in all places, and a way to break it."""

import gc
from collections.abc import Callable
from pathlib import Path

import pytest

from fila_proto_zmq.commands import Enqueue, PutSchedule, Verb
from fila_proto_zmq.names import shard_of
from fila_proto_zmq.record import seal_envelope
from fila_worker.core.model.shard_transfers import Owner
from fila_worker.core.settle.remote_enqueues import send
from fila_worker.core.store import StoreBatch
from fila_worker.storage.made import mark_made
from fila_worker.storage.rocks import RocksStore
from tests.support.shard.shard import SHARDS, ShardHarness

INDEX = 3
QUEUE, IDLE_QUEUE = [name for name in map("q{}".format, range(99)) if shard_of(name, SHARDS) == INDEX][:2]

ELSEWHERE = next(name for name in map("q{}".format, range(99)) if shard_of(name, SHARDS) != INDEX)

Change = Callable[[RocksStore, StoreBatch], None]


def fill(store: RocksStore) -> None:
    """Messages that wait, are leased, acked, delayed, failed; with times to live and dedup ids."""
    harness = ShardHarness(store=store, index=INDEX, checked=False)
    harness.create(QUEUE)
    harness.create(IDLE_QUEUE, idle_expiry_ms=3_600_000)
    harness.enqueue(*(b"message %d" % number for number in range(20)), queue=QUEUE, key="a")
    harness.ask(Enqueue([seal_envelope(b"once")] * 2, "b", ttl_ms=600_000, dedup_id=["one", "two"]), QUEUE)
    for delay_ms in (0, 0, 5000):  # stored, replaced in its place, and put off
        harness.now_ms += 2000
        harness.ask(Enqueue([seal_envelope(b"last")], "b", dedup_id="three", dedup_last=True, delay_ms=delay_ms), QUEUE)
    harness.enqueue(b"later", queue=QUEUE, key="c", delay_ms=600_000)
    got = harness.receive(8, QUEUE)
    harness.settle(Verb.NACK, got[:1], QUEUE)
    harness.ack(harness.receive(3, QUEUE), QUEUE)  # the whole lease: it leaves a mark
    harness.ask(PutSchedule(QUEUE, Enqueue([seal_envelope(b"tick")]), every_ms=1000), QUEUE)
    send(harness.shard, Owner("none", QUEUE), ELSEWHERE, Enqueue([seal_envelope(b"away")]))
    harness.turn()


@pytest.fixture
def shard(tmp_path: Path) -> Path:
    """The directory of a sound shard."""
    path = tmp_path / "data" / "shard-0003"
    store = RocksStore(path)
    fill(store)
    gc.collect()  # the shard has handles of its store
    store.close()
    mark_made(path)
    return path


@pytest.fixture
def change(shard: Path) -> Callable[[Change], None]:
    """A function that writes to the shard, as a bug would."""

    def write(change: Change) -> None:
        store = RocksStore(shard)
        batch = store.new_batch()
        change(store, batch)
        store.commit(batch)
        store.close()

    return write
