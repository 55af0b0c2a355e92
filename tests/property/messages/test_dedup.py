"""Batches with dedup ids against a model that takes them message by message: a dict of ids, with what each was answered and until when.

Ids repeat within a batch and across batches, windows differ, some messages are bad, queues come and go, and the shard crashes between
turns and within them. The bounds are small, so that a batch has many entries in the due index and is forgotten in many turns.
"""

from pathlib import Path
from tempfile import TemporaryDirectory
from typing import NamedTuple

import msgspec
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from fila_proto_zmq.commands import DeleteQueue, Enqueue, Enqueued
from fila_proto_zmq.ids import low_half
from fila_proto_zmq.limits import DEDUP_ID_BYTES_MAX
from fila_proto_zmq.record import seal_envelope
from fila_worker.core.effects import ClientCall
from fila_worker.core.keys import FIRST, LAST, pack_u32, u64
from fila_worker.core.model.due_index import GRID_MS, DueKind
from fila_worker.core.settings import Limits, ShardSettings
from fila_worker.storage.memory import MemoryStore
from fila_worker.storage.options import SharedMemory
from fila_worker.storage.rocks import RocksStore
from tests.support.shard.shard import ShardHarness

WINDOW_MS = 20_000
PAYLOAD_BYTES_MAX = 10
TOO_LONG = "x" * (DEDUP_ID_BYTES_MAX + 1)
TINY = Limits(dedup_entry_ids_max=2, due_note_bytes_max=7, turn_due_max=3)
MEMORY = SharedMemory()


class Sent(NamedTuple):
    """One message: its dedup id, and whether it is too large."""

    name: str
    large: bool


class First(NamedTuple):
    """The message that a dedup id stands for, and until when."""

    high: int
    low: int
    expires_ms: int


NAMES = st.sampled_from([*"abcdefghijklmnop", "é", "", TOO_LONG])
ORDINARY = st.lists(st.sampled_from("abcdefghijklmnop"), min_size=1, max_size=12, unique=True)
ANY = st.lists(NAMES, min_size=1, max_size=12)
BATCHES = st.builds(
    lambda names, large: tuple(Sent(name, index in large) for index, name in enumerate(names)),
    st.one_of(ORDINARY, ORDINARY, ANY),
    st.sets(st.integers(0, 11), max_size=3),
)
WINDOWS_MS = st.sampled_from([0, 0, 1, 1_500, 45_000])
QUEUES = st.sampled_from(["q", "q", "r"])


class DedupMachine(RuleBasedStateMachine):
    @initialize(queue_max=st.sampled_from([None, None, 30]))
    def start(self, queue_max: int | None) -> None:
        limits = ShardSettings(
            dedup_window_ms=WINDOW_MS, max_payload_bytes=PAYLOAD_BYTES_MAX, max_queue_messages=queue_max, limits=TINY
        )
        self.harness = ShardHarness(store=self.new_store(), settings=limits)
        self.queue_max = queue_max or 10**9
        self.known: dict[str, dict[str, First]] = {}
        self.depth: dict[str, int] = {}
        for queue in ("q", "r"):
            self.create(queue)

    def new_store(self) -> MemoryStore | RocksStore:
        return MemoryStore()

    def create(self, queue: str) -> None:
        self.harness.create(queue)
        self.known[queue], self.depth[queue] = {}, 0

    # --- what a producer does -----------------------------------------------------------------------------------------

    @rule(queue=QUEUES, batch=BATCHES, window_ms=WINDOWS_MS, delay_ms=st.sampled_from([0, 0, 5_000]))
    def enqueue(self, queue: str, batch: tuple[Sent, ...], window_ms: int, delay_ms: int) -> None:
        reply = self.harness.ask(self.command(batch, window_ms, delay_ms), queue, b"producer")
        assert isinstance(reply, Enqueued)
        self.take(queue, batch, window_ms, reply)

    def command(self, batch: tuple[Sent, ...], window_ms: int, delay_ms: int = 0) -> Enqueue:
        envelopes = [seal_envelope(bytes(PAYLOAD_BYTES_MAX + each.large)) for each in batch]
        return Enqueue(envelopes, delay_ms=delay_ms, dedup_id=[each.name for each in batch], dedup_window_ms=window_ms)

    def take(self, queue: str, batch: tuple[Sent, ...], window_ms: int, reply: Enqueued) -> None:
        """Answer a batch as the model does, and compare."""
        known, now_ms = self.known[queue], self.harness.now_ms
        faults, again = [], []
        low = reply.id_low
        for index, (name, large) in enumerate(batch):
            first = known.get(name)
            if large or name == TOO_LONG:
                faults.append(index)
            elif name and first is not None and first.expires_ms > now_ms:
                again.append((index, first.high, first.low))
            elif self.depth[queue] >= self.queue_max:
                faults.append(index)
            else:
                known[name] = First(reply.id_high, low, now_ms + (window_ms or WINDOW_MS))
                self.depth[queue] += 1
                low += 1
        assert [index for index, _ in reply.faults] == faults
        assert reply.known == again
        assert reply.count == low - reply.id_low

    @rule(queue=QUEUES)
    def delete_and_create(self, queue: str) -> None:
        self.harness.ask(DeleteQueue(force=True), queue)
        self.create(queue)

    # --- what time and crashes do -------------------------------------------------------------------------------------

    @rule(milliseconds=st.sampled_from([1, 400, 1_000, 7_000, 21_000]))
    def pass_time(self, milliseconds: int) -> None:
        self.harness.pass_time(milliseconds)

    @rule(milliseconds=st.sampled_from([1_000, 21_000]))
    def do_some_of_what_is_due(self, milliseconds: int) -> None:
        self.harness.now_ms += milliseconds
        self.harness.turn()

    @rule()
    def crash(self) -> None:
        self.harness.restart()

    @rule(batches=st.lists(BATCHES, min_size=2, max_size=3), window_ms=WINDOWS_MS, crashed=st.booleans())
    def enqueue_in_one_turn(self, batches: list[tuple[Sent, ...]], window_ms: int, crashed: bool) -> None:
        """If it crashes, each batch is in with all its ids, or not at all; those that are in came first."""
        shard, call = self.harness.shard, ClientCall(b"producer", 1, "q", self.harness.now_ms)
        for batch in batches:
            shard.apply(call, self.command(batch, window_ms))
        replies = [effect.reply for effect in shard.effects]  # type: ignore[union-attr]
        if crashed:
            self.harness.restart()
        else:
            self.harness.turn()
        for batch, reply in zip(batches, replies, strict=True):
            assert isinstance(reply, Enqueued)
            next_low = low_half(self.harness.shard.counters.sequence + 1)
            if next_low < reply.id_low + reply.count:
                assert next_low <= reply.id_low
                break
            self.take("q", batch, window_ms, reply)

    # --- what must hold -----------------------------------------------------------------------------------------------

    @invariant()
    def all_is_as_the_model_has_it(self) -> None:
        if not hasattr(self, "harness"):
            return
        for name, queue in self.harness.shard.queues.items():
            if not queue.is_dead_letter:
                assert queue.depth == self.depth[name]
                assert self.on_disk(queue.id) == self.alive(name)

    def alive(self, queue: str) -> dict[str, First]:
        return {name: first for name, first in self.known[queue].items() if name and first.expires_ms > self.harness.now_ms}

    def on_disk(self, queue_id: int) -> dict[str, First]:
        """The ids of a queue whose windows are open. All others, too, must be in the due index, soon after their windows end."""
        store, found = self.harness.store, {}
        listed: dict[bytes, int] = {}
        for key, note in store.scan(FIRST, LAST, store.families.schedule):
            if key[8] == DueKind.FORGET:
                prefix = key[9:13]
                listed.update({prefix + name.encode(): u64(key) for name in msgspec.msgpack.decode(note)})
        begin, end = pack_u32(queue_id), pack_u32(queue_id + 1)
        for key, record in store.scan(begin, end, store.families.dedup):
            first = First(u64(record, 8), u64(record, 16), u64(record))
            assert first.expires_ms <= listed[key] < first.expires_ms + GRID_MS
            if first.expires_ms > self.harness.now_ms:
                found[key[4:].decode()] = first
        return found


class TestDedup(DedupMachine.TestCase):  # type: ignore[misc,name-defined]
    settings = settings(deadline=None, max_examples=60, stateful_step_count=40)


class RocksDedupMachine(DedupMachine):
    """The same on a real database, with its Bloom filters."""

    def __init__(self) -> None:
        super().__init__()
        self.directory = TemporaryDirectory()

    def new_store(self) -> RocksStore:
        return RocksStore(Path(self.directory.name), memory=MEMORY)

    def teardown(self) -> None:
        if hasattr(self, "harness"):
            self.harness.store.close()
        self.directory.cleanup()


class TestDedupOnRocks(RocksDedupMachine.TestCase):  # type: ignore[misc,name-defined]
    settings = settings(deadline=None, max_examples=10, stateful_step_count=40)
