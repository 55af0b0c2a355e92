"""The joined broker without a client library: frames in, frames out, on a clock of the test."""

from collections import Counter

import pytest

from fila_cluster.embedded.joined import Joined, Joint
from fila_proto_zmq.codec import decode_body, encode_command
from fila_proto_zmq.commands import (
    CreateQueue,
    Delivered,
    Enqueue,
    Fault,
    GetClusterStatus,
    Hello,
    ListQueues,
    QueueOptions,
    Receive,
    SetConfig,
    Welcome,
)
from fila_proto_zmq.errors import StorageError
from fila_proto_zmq.frames import ERROR, VERSIONS, unpack_header
from fila_proto_zmq.record import payload_of, seal_envelope
from fila_router.core.limits import DEFAULTS
from fila_worker.core.settings import ShardSettings
from fila_worker.core.store import StoreBatch
from fila_worker.lua import compile_hooks
from fila_worker.process.shard_process import LOG_FULL_MS, ShardProcess
from fila_worker.process.slots import Slot
from fila_worker.storage.memory import MemoryStore

SETTINGS = ShardSettings()


class FragileStore(MemoryStore):
    """Refuses the next commits. Its log confirms nothing more while it is ``stuck``; then each commit counts as so many bytes."""

    refuses = 0
    stuck = False
    commit_bytes = 0
    _confirmed = 0

    @property
    def confirmed(self) -> int:
        if not self.stuck:
            self._confirmed = self.committed
        return self._confirmed

    @property
    def unconfirmed_bytes(self) -> int:
        return (self.committed - self.confirmed) * self.commit_bytes

    def commit(self, batch: StoreBatch, *, sync: bool = False) -> None:
        if self.refuses:
            self.refuses -= 1
            raise StorageError("the disk is full")
        super().commit(batch, sync=sync)


class Harness:
    def __init__(self, shards: int = 1) -> None:
        self.now_ms = 1_700_000_000_000
        self.stores = [FragileStore() for _ in range(shards)]
        slots = [
            Slot(number, shards, SETTINGS, compile_hooks, lambda store=store: store)
            for number, store in enumerate(self.stores)
        ]
        self.joined = Joined(ShardProcess(slots, shards, self.now_ms, "worker-0"), SETTINGS, shards, "worker-0")
        self.rings: Counter[str] = Counter()
        self.requests = 0
        self.run()

    def connect(self, name: str) -> Joint:
        joint = self.joined.connect(lambda: self.rings.update([name]))
        self.ask(joint, Hello(list(VERSIONS), "test"))
        return joint

    def run(self, for_ms: int = 0) -> None:
        """Turns until nothing is left to do, now and in the next milliseconds."""
        end_ms = self.now_ms + for_ms
        for _ in range(100_000):
            self.joined.turn(self.now_ms)
            due_ms = self.joined.next_due(self.now_ms)
            if due_ms is None or self.now_ms + due_ms > end_ms:
                self.now_ms = end_ms
                return
            self.now_ms += due_ms
        raise AssertionError("it does not come to rest")

    def send(self, joint: Joint, command: object, queue: str = "") -> None:
        self.requests += 1
        joint.put(encode_command(command, self.requests, queue))  # type: ignore[arg-type]

    def ask(self, joint: Joint, command: object, queue: str = "") -> object:
        """What comes for a command, at once."""
        self.send(joint, command, queue)
        self.run()
        header, _, body = joint.arrived.popleft()
        failed = unpack_header(header).flags & ERROR
        return decode_body(Fault if failed else command.reply, body)  # type: ignore[attr-defined]


@pytest.fixture
def harness() -> Harness:
    return Harness()


def enqueue(payload: bytes) -> Enqueue:
    return Enqueue([seal_envelope(payload)])


def test_it_serves_at_once(harness: Harness) -> None:
    assert harness.joined.is_ready
    joint = harness.joined.connect(lambda: None)
    welcome = harness.ask(joint, Hello(list(VERSIONS), "test"))
    assert isinstance(welcome, Welcome)
    assert (welcome.shards, welcome.doors) == (1, None)


def test_a_client_is_told_when_frames_have_come(harness: Harness) -> None:
    one, other = harness.connect("one"), harness.connect("other")
    harness.ask(one, CreateQueue(QueueOptions()), "q")
    harness.send(other, Receive(1, wait_ms=5000), "q")
    harness.run()
    harness.rings.clear()
    harness.ask(one, enqueue(b"x"), "q")
    assert harness.rings == {"one": 1, "other": 1}
    delivered = decode_body(Delivered, other.arrived.popleft()[2])
    assert payload_of(delivered.batches[0].records[0]) == b"x"


def test_several_shards_are_one_broker() -> None:
    harness = Harness(shards=4)
    joint = harness.connect("one")
    for number in range(16):
        harness.ask(joint, CreateQueue(QueueOptions()), f"q{number}")
    listed = harness.ask(joint, ListQueues())
    assert {queue.shard for queue in listed.queues} == {0, 1, 2, 3}  # type: ignore[attr-defined]
    harness.ask(joint, SetConfig("key", "value"))
    assert {shard.config.get("key") for shard in harness.joined.host.shards.values()} == {"value"}


@pytest.mark.parametrize("frames", [[], [b""], [b"x", b"y", b"z"], [b"", b"", b"", b""], [b"FQ" + bytes(16), b"q", b"\x90"]])
def test_what_is_no_frame_disturbs_nobody(harness: Harness, frames: list[bytes]) -> None:
    joint = harness.connect("one")
    joint.put(frames)
    harness.run()
    joint.arrived.clear()
    assert isinstance(harness.ask(joint, GetClusterStatus()), GetClusterStatus.reply)


def test_who_reads_nothing_has_a_bound(harness: Harness) -> None:
    """Its pipe has no more than ZeroMQ's would, and the rest is bounded and refused by the router's core."""
    deaf, other = harness.connect("deaf"), harness.connect("other")
    harness.ask(other, CreateQueue(QueueOptions()), "q")
    for _ in range(60):
        harness.ask(other, Enqueue([seal_envelope(bytes(1_000_000))]), "q")
    for _ in range(500):
        harness.send(deaf, Receive(10), "q")
        harness.send(deaf, GetClusterStatus())
        harness.run()
    assert len(deaf.arrived) == DEFAULTS.pipe_frames
    assert harness.joined.router.unread.total <= DEFAULTS.client_unread_max
    assert isinstance(harness.ask(other, GetClusterStatus()), GetClusterStatus.reply)
    deaf.arrived.clear()
    harness.run(1000)
    assert deaf.arrived, "the rest comes when there is room"


def test_who_has_left_gets_nothing(harness: Harness) -> None:
    gone, other = harness.connect("gone"), harness.connect("other")
    harness.ask(other, CreateQueue(QueueOptions()), "q")
    harness.send(gone, Receive(1, wait_ms=60_000), "q")
    harness.run()
    gone.close()
    harness.ask(other, enqueue(b"x"), "q")
    assert not gone.arrived
    harness.run(20_000)  # a consumer that is silent for 15 s is lost
    delivered = harness.ask(other, Receive(1), "q")
    assert isinstance(delivered, Delivered)
    assert len(delivered.batches) == 1


def test_a_shard_that_fails_comes_back(harness: Harness) -> None:
    joint = harness.connect("one")
    harness.ask(joint, CreateQueue(QueueOptions()), "q")
    harness.ask(joint, enqueue(b"kept"), "q")
    harness.stores[0].refuses = 1
    refused = harness.ask(joint, enqueue(b"lost"), "q")
    assert isinstance(refused, Fault)
    assert refused.code == "SHARD_UNAVAILABLE"
    assert not harness.joined.is_ready
    harness.run(5000)
    assert harness.joined.is_ready
    delivered = harness.ask(joint, Receive(10), "q")
    assert isinstance(delivered, Delivered)
    assert [payload_of(record) for batch in delivered.batches for record in batch.records] == [b"kept"]
    assert {note.event for note in harness.joined.notes} >= {"storage.failed", "shard.opened"}


def test_frames_wait_asleep_while_the_log_has_too_much_to_confirm(harness: Harness) -> None:
    joint = harness.connect("one")
    harness.ask(joint, CreateQueue(QueueOptions()), "q")
    store = harness.stores[0]
    store.stuck, store.commit_bytes = True, SETTINGS.limits.unconfirmed_bytes_max + 1
    harness.send(joint, enqueue(b"x"), "q")
    harness.joined.turn(harness.now_ms)
    harness.send(joint, enqueue(b"y"), "q")
    harness.joined.turn(harness.now_ms)
    assert (len(harness.joined.arrived), harness.joined.host.log_is_full) == (1, True)
    assert 0 < (harness.joined.next_due(harness.now_ms) or 0) <= LOG_FULL_MS
    assert not joint.arrived
    store.stuck = False
    harness.run(LOG_FULL_MS)
    assert not harness.joined.arrived
    assert len(joint.arrived) == 2


def test_nothing_is_left_after_the_end(harness: Harness) -> None:
    joint = harness.connect("one")
    harness.ask(joint, CreateQueue(QueueOptions()), "q")
    harness.joined.close()
    assert harness.joined.host.shards == {}
    assert all(slot.shard is None for slot in harness.joined.host.slots.values())
