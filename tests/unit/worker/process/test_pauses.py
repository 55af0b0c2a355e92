"""A worker that was stopped for a while reads what waited before it ends leases."""

import pytest

from fila_proto_zmq.codec import encode_command
from fila_proto_zmq.commands import Command, CreateQueue, Enqueue, Extend, QueueOptions, Receive, Settle, Subscribe, Verb
from fila_proto_zmq.names import shard_of
from fila_proto_zmq.record import seal_envelope
from fila_worker.core.recovery import recover
from fila_worker.core.settings import ShardSettings
from fila_worker.lua import compile_hooks
from fila_worker.process.pauses import CATCH_UP_MS, GAP_MS, Pauses
from fila_worker.process.shard_process import ShardProcess
from fila_worker.process.slots import Slot
from fila_worker.storage.memory import MemoryStore

QUEUE = next(f"q{number}" for number in range(99) if shard_of(f"q{number}", 2) == 1)
LEASE_MS = 30_000


class Worker:
    """A host of one shard; frames go in a turn each, in which others may be left unread."""

    def __init__(self) -> None:
        self.now_ms = 1_000_000
        settings = ShardSettings(consumer_timeout_ms=20_000)
        shard = recover(MemoryStore(), settings, compile_hooks, index=1, shards=2, now_ms=self.now_ms)
        self.host = ShardProcess([Slot.of(shard)], 2, self.now_ms)
        self.shard = shard
        self.turn(CreateQueue(QueueOptions(visibility_timeout_ms=LEASE_MS)))
        self.turn(Enqueue([seal_envelope(b"x")]))

    def turn(self, *commands: Command, drained: bool = True, after_ms: int = 0) -> None:
        self.now_ms += after_ms
        self.host.begin_turn(self.now_ms)
        for number, command in enumerate(commands):
            self.host.accept([b"c1", *encode_command(command, self.now_ms + number, QUEUE)], self.now_ms)
        self.host.turn(self.now_ms, drained=drained)

    @property
    def lease(self) -> int:
        return next(iter(self.shard.leases.leases))


@pytest.mark.parametrize("how", ["renew", "extend", "ack"])
def test_what_was_said_during_a_pause_counts_however_much_lies_before_it(how: str) -> None:
    worker = Worker()
    worker.turn(Receive(1, 0) if how != "renew" else Subscribe(1, 1))
    lease = worker.lease
    said = {
        "renew": Subscribe(1, 1, [lease]),
        "extend": Extend([(lease, [])], LEASE_MS),
        "ack": Settle(Verb.ACK, [(lease, [])]),
    }
    worker.turn(drained=False, after_ms=LEASE_MS + 5_000)
    worker.turn(drained=False, after_ms=CATCH_UP_MS // 2)
    worker.turn(said[how], drained=True)
    assert worker.shard.queues[QUEUE].expired == 0
    assert (worker.shard.queues[QUEUE].acked, len(worker.shard.leases)) == ((1, 0) if how == "ack" else (0, 1))


def test_when_all_is_read_what_has_expired_ends() -> None:
    worker = Worker()
    worker.turn(Receive(1, 0))
    worker.turn(drained=False, after_ms=LEASE_MS + 5_000)
    assert len(worker.shard.leases) == 1
    worker.turn(drained=True, after_ms=10)
    assert len(worker.shard.leases) == 0


def test_a_load_that_is_never_drained_keeps_no_lease_alive() -> None:
    worker = Worker()
    worker.turn(Receive(1, 0))
    for _ in range(LEASE_MS // 100):
        worker.turn(drained=False, after_ms=100)
    assert len(worker.shard.leases) == 0


@pytest.mark.parametrize("turn_ms", [100, GAP_MS + 1])
def test_a_pause_is_forgiven_for_a_moment_only(turn_ms: int) -> None:
    worker = Worker()
    worker.turn(Receive(1, 0))
    worker.turn(drained=False, after_ms=LEASE_MS + 5_000)
    for _ in range(1 + CATCH_UP_MS // turn_ms):
        worker.turn(drained=False, after_ms=turn_ms)
    assert len(worker.shard.leases) == 0


def test_a_sleep_is_no_pause() -> None:
    pauses = Pauses()
    pauses.begin_turn(GAP_MS, GAP_MS)
    assert not pauses.forgiving
    pauses.begin_turn(2 * GAP_MS + 1, GAP_MS + 1)
    assert pauses.forgiving
    pauses.drained()
    assert not pauses.forgiving
    pauses.begin_turn(2 * GAP_MS + 2, 1)
    assert not pauses.forgiving
