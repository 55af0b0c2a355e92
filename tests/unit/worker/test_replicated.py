"""Shards on a replicated log, in hosts: who serves, who follows, and what clients hear meanwhile."""

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from fila_proto_zmq.codec import decode_body, encode_command
from fila_proto_zmq.commands import (
    Command,
    CreateQueue,
    Delivered,
    Enqueue,
    Enqueued,
    Fault,
    GetQueueStats,
    QueueOptions,
    QueueStats,
    Receive,
    Registered,
    Reply,
    SetConfig,
)
from fila_proto_zmq.events import ShardFollowed
from fila_proto_zmq.frames import ERROR, unpack_header
from fila_proto_zmq.record import seal_envelope
from fila_worker.core.settings import ShardSettings
from fila_worker.host import Host
from fila_worker.log.bodies import Node
from fila_worker.log.member import Member
from fila_worker.log.memory import MemoryLog, MemoryPartition
from fila_worker.replicated import MustEnd, ReplicatedSlot
from fila_worker.storage.replica import Replica
from tests.support.host import CLIENT, NAMES, SHARDS_TOTAL, compile_hooks

QUEUE = NAMES[0]


class Machine:
    """A host that has a copy of shards 0 and 1."""

    def __init__(self, town: "Town", name: str, home: Path) -> None:
        self.town, self.name, self.home = town, name, home
        self.partitions = [MemoryPartition(log, town.clock) for log in town.logs]
        self.answers: dict[int, Reply | Fault] = {}
        self._commands: dict[int, Command] = {}
        self._offered = 0
        self.start()

    def start(self) -> None:
        slots = [self._slot(index) for index in range(len(self.partitions))]
        self.host = Host([], SHARDS_TOTAL, self.town.clock(), self.name, opening=slots)

    def _slot(self, index: int) -> ReplicatedSlot:
        def make(now_ms: int) -> Member:
            copy = Replica(self.home / f"shard-{index:04d}")
            return Member(self.partitions[index], copy, Node(self.name, self.name), now_ms)

        return ReplicatedSlot(index, SHARDS_TOTAL, ShardSettings(), compile_hooks, make, self.town.clock)

    def end(self) -> None:
        """End as a killed process does: what is unconfirmed is lost."""
        self.host.close()

    def turn(self, *frames: list[Any]) -> None:
        self.host.begin_turn(self.town.clock())
        for frame in frames:
            self.host.accept(frame, self.town.clock())
        for effect in self.host.turn(self.town.clock()):
            raw, _, body = effect.frames()
            header = unpack_header(raw)
            if effect.client:
                kind = Fault if header.flags & ERROR else self._commands[header.request].reply
                self.answers[header.request] = decode_body(kind, body)

        if self.host.offers != self._offered:  # the router takes its new offer
            self._offered = self.host.offers
            self.host.registered(Registered(self.host.config.version), self.town.clock())

    def say(self, command: Command, queue: str = QUEUE) -> int:
        """Send a request; return its number."""
        self.town.requests += 1
        request = self.town.requests
        self._commands[request] = command
        self.turn([CLIENT, *encode_command(command, request, queue)])
        return request

    def ask(self, command: Command, queue: str = QUEUE) -> Reply | Fault:
        request = self.say(command, queue)
        for _ in range(20):
            if request in self.answers:
                break
            self.turn()
        return self.answers[request]

    @property
    def serves(self) -> list[int]:
        return sorted(self.host.shards)


class Town:
    def __init__(self, tmp_path: Path) -> None:
        self.now_ms = 1_000_000
        self.requests = 0
        self.logs = [MemoryLog(), MemoryLog()]
        self.one, self.two = (Machine(self, name, tmp_path / name) for name in ("one", "two"))

    def clock(self) -> int:
        return self.now_ms

    def pass_ms(self, span_ms: int, *machines: Machine) -> None:
        for _ in range(span_ms // 20):
            self.now_ms += 20
            for machine in machines or (self.one, self.two):
                machine.turn()

    def until(self, what: Callable[[], bool], *machines: Machine) -> int:
        """Let time pass until something holds; return how long it took."""
        began_ms = self.now_ms
        while not what():
            assert self.now_ms - began_ms < 20_000, "it takes too long"
            self.pass_ms(20, *machines)
        return self.now_ms - began_ms


@pytest.fixture
def town(tmp_path: Path) -> Iterator[Town]:
    """The first machine leads both shards, the second one follows."""
    made = Town(tmp_path)
    made.until(lambda: made.one.serves == [0, 1], made.one)
    made.pass_ms(1000)
    assert made.one.ask(CreateQueue(QueueOptions())) is not None
    made.pass_ms(100)
    yield made
    made.one.host.close()
    made.two.host.close()


def enqueue(payload: bytes) -> Enqueue:
    return Enqueue([seal_envelope(payload, {})])


def pending(machine: Machine) -> int:
    stats = machine.ask(GetQueueStats())
    assert isinstance(stats, QueueStats), stats
    return stats.info.pending


def test_one_host_serves_and_the_other_one_follows_and_says_so(town: Town) -> None:
    assert (town.one.serves, town.two.serves) == ([0, 1], [])
    assert [(outage.shard, outage.state) for outage in town.two.host.outages] == [(0, "following"), (1, "following")]
    assert not town.two.host.opening, "it has started"
    refused = town.two.ask(GetQueueStats())
    assert isinstance(refused, Fault)
    assert (refused.code, refused.details["refused"], refused.details["state"]) == ("SHARD_UNAVAILABLE", True, "following")


def test_what_was_confirmed_is_there_after_the_end_of_its_host(town: Town) -> None:
    for payload in (b"0", b"1", b"2"):
        assert isinstance(town.one.ask(enqueue(payload)), Enqueued)
    taken = town.one.ask(Receive(1))
    assert isinstance(taken, Delivered)
    assert not isinstance(town.one.ask(SetConfig("region", "eu"), ""), Fault)
    epoch = town.one.host.shards[0].epoch
    town.one.end()
    took_ms = town.until(lambda: town.two.serves == [0, 1], town.two)
    assert took_ms < 8000
    assert town.two.host.shards[0].epoch > epoch
    assert pending(town.two) == 2
    assert town.two.host.config.values == {"region": "eu"}


def test_nothing_leaves_the_process_before_the_log_has_confirmed_it(town: Town) -> None:
    town.one.partitions[0].held = True
    request = town.one.say(enqueue(b"0"))
    receive = town.one.say(Receive(1))
    town.pass_ms(500, town.one)
    assert not {request, receive} & set(town.one.answers)
    appender = town.one.partitions[0].appenders[-1]
    appender.arrive(appender.on_the_way)
    appender.report(appender.unreported)
    town.one.partitions[0].held = False
    town.pass_ms(100)
    assert isinstance(town.one.answers[request], Enqueued)
    assert isinstance(town.one.answers[receive], Delivered)


def test_a_shard_is_recovered_without_pauses(town: Town) -> None:
    slot = town.two.host.slots[0]
    assert isinstance(slot, ReplicatedSlot)
    assert slot.due_ms, "it follows"
    town.one.end()
    town.until(lambda: slot.member is not None and slot.member.reigns, town.two)
    assert (slot.shard, slot.due_ms) == (None, 0)
    town.until(lambda: town.two.serves == [0, 1], town.two)


def test_a_stop_hands_all_shards_over_at_once(town: Town) -> None:
    town.one.ask(enqueue(b"0"))
    town.one.host.retire()
    assert town.until(lambda: town.two.serves == [0, 1]) < 1500
    assert (town.one.serves, town.one.host.holds_effects) == ([], False)
    assert [note.shard for note in town.one.host.notes if isinstance(note, ShardFollowed)] == [0, 1]
    assert town.one.host.failed == [0, 1], "its own door interrupts what waits there"
    assert pending(town.two) == 1
    town.pass_ms(10_000)
    assert town.two.serves == [0, 1], "who has retired claims nothing"


def test_a_deposed_leader_with_something_unconfirmed_ends_its_process(town: Town) -> None:
    town.one.partitions[0].held = True
    request = town.one.say(enqueue(b"never confirmed"))
    town.until(lambda: 0 in town.two.serves, town.two)
    appender = town.one.partitions[0].appenders[-1]
    appender.arrive(appender.on_the_way)
    appender.report(appender.unreported)
    town.one.partitions[0].held = False
    with pytest.raises(MustEnd, match="shard 0"):
        town.pass_ms(500, town.one)
    assert request not in town.one.answers
    town.one.end()
    town.one.start()
    town.pass_ms(1000)
    assert (town.one.serves, pending(town.two)) == ([], 0)


def test_a_deposed_leader_without_anything_unconfirmed_follows(town: Town) -> None:
    town.one.ask(enqueue(b"0"))
    town.until(lambda: town.two.serves == [0, 1], town.two)  # the first one is paused
    town.pass_ms(3000)
    assert (town.one.serves, town.two.serves) == ([], [0, 1])
    assert isinstance(town.two.ask(enqueue(b"1")), Enqueued)
    town.two.host.retire()
    town.until(lambda: town.one.serves == [0, 1])
    assert pending(town.one) == 2


def test_a_shard_under_load_pauses_so_that_its_copy_can_be_flushed(town: Town) -> None:
    slot = town.one.host.slots[0]
    assert isinstance(slot, ReplicatedSlot)
    assert slot.member is not None
    copy = slot.member.copy
    assert isinstance(copy, Replica)
    town.one.partitions[0].held = True
    copy._limits = copy._limits._replace(pause_bytes=1)
    first = town.one.say(enqueue(b"0"))
    assert slot.pauses
    second = town.one.say(enqueue(b"1"))
    assert copy.committed == copy.confirmed + 1, "the second one waits for the flush"
    appender = town.one.partitions[0].appenders[-1]
    appender.arrive(appender.on_the_way)
    appender.report(appender.unreported)
    town.one.partitions[0].held = False
    town.until(lambda: {first, second} <= set(town.one.answers))
    assert pending(town.one) == 2


def test_a_leader_without_the_log_stops_serving_and_serves_again(town: Town) -> None:
    for log in town.logs:
        log.reachable = False
    request = town.one.say(enqueue(b"0"))
    town.until(lambda: town.one.serves == [])
    assert request not in town.one.answers
    for log in town.logs:
        log.reachable = True
    town.until(lambda: [*town.one.serves, *town.two.serves] == [0, 1])
    leader = town.one if town.one.serves else town.two
    assert pending(leader) in (0, 1), "the outcome was unknown to its client"
    assert isinstance(leader.ask(enqueue(b"1")), Enqueued)
