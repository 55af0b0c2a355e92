"""Shards on a replicated log, in hosts: who serves, who follows, and what clients hear meanwhile."""

from collections.abc import Callable, Iterator
from pathlib import Path
from threading import Lock
from typing import Any

import pytest

from fila_proto_zmq.codec import decode_body, encode_command
from fila_proto_zmq.commands import (
    Appointed,
    Command,
    CreateQueue,
    Delivered,
    Enqueue,
    Enqueued,
    Explain,
    Explained,
    Fault,
    GetHosts,
    GetMetrics,
    GetQueueStats,
    HostCopy,
    HostList,
    HostWorker,
    LogReplicas,
    Metrics,
    PutDraining,
    QueueOptions,
    QueueStats,
    Receive,
    Registered,
    Reply,
    SetConfig,
)
from fila_proto_zmq.events import ShardFollowed, ShardOpened
from fila_proto_zmq.frames import ERROR, unpack_header
from fila_proto_zmq.outages import FOLLOWING, OPENING, QUARANTINED
from fila_proto_zmq.record import seal_envelope
from fila_worker.core.effects import Post
from fila_worker.core.settings import ShardSettings
from fila_worker.log.bodies import Leaves, Node
from fila_worker.log.bodies import decode_body as decode_log_body
from fila_worker.log.member import Member
from fila_worker.log.placement import PlacementLimits, Placing
from fila_worker.log.records import LogRecord, RecordKind, decode
from fila_worker.process.shard_process import ShardProcess
from fila_worker.replication.log_checkpoints.cutting import Cutting
from fila_worker.replication.log_checkpoints.exchange import Beginning, Exchange
from fila_worker.replication.replicated import FOLLOW_MS, HostPlace, MustEnd, ReplicatedShards, ReplicatedSlot
from fila_worker.settings import CheckpointSettings
from fila_worker.storage.replica import Replica
from fila_worker.transport.router_links import bank_proof
from tests.support.memory_log import MemoryLog, MemoryPartition
from tests.support.shard.shard_process import CLIENT, NAMES, SHARDS_TOTAL, compile_hooks

QUEUE = NAMES[0]
LOG = "fila.test-1"


class Machine:
    """A host that has a copy of shards 0 and 1."""

    def __init__(self, town: "Town", name: str, home: Path) -> None:
        self.town, self.name, self.home = town, name, home
        self.partitions = [MemoryPartition(log, town.clock) for log in town.logs]
        self.exchanges = [Exchange(home, index) for index in range(len(town.logs))]
        self.control = MemoryPartition(town.control, town.clock)
        self.log = LOG
        self.answers: dict[int, Reply | Fault] = {}
        self._commands: dict[int, Command] = {}
        self._offered = 0
        self.told: list[str] = []
        """The states of all outages that the router has heard of."""
        self.start()

    def start(self) -> None:
        self._one_at_a_time = Lock()
        self._node = Node(self.name, self.name, life=str(self.town.clock()))

        def make_placing(members: Callable[[], dict[int, Member]]) -> Placing:
            town = self.town
            return Placing(self._node, len(self.partitions), members, self.control, town.clock(), town.placement)

        shards = ReplicatedShards(
            range(len(self.partitions)), self._slot, make_placing, self.town.clock, lambda: None,
            place=HostPlace(self.name, f"{self.name}.example"),
        )  # fmt: skip
        self.host = ShardProcess(shards.slots, SHARDS_TOTAL, self.town.clock(), self.name, [shards])

    def _slot(self, index: int, placing: Placing) -> ReplicatedSlot:
        partition, exchange, settings = self.partitions[index], self.exchanges[index], self.town.checkpoints

        def make(now_ms: int) -> Member:
            member = Member(partition, Replica(exchange.copy, log=self.log), self._node, now_ms)
            placing.join(index, member)
            return member

        def make_cutting(copy: Replica, now_ms: int) -> Cutting:
            assert settings is not None
            return Cutting(copy, partition, exchange, settings, LOG, SHARDS_TOTAL, self._one_at_a_time, now_ms)

        beginning = Beginning(exchange, SHARDS_TOTAL, LOG if settings else None)
        cutter = make_cutting if settings else None
        return ReplicatedSlot(index, SHARDS_TOTAL, ShardSettings(), compile_hooks, make, self.town.clock, beginning, cutter)

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
            self.told += [outage.state for outage in self.host.slots.outages]
            self.host.registered(Registered(self.host.config.version), self.town.clock())

    def posts(self, told: Command) -> list[Command]:
        """Let shard 0 say something; return what leaves the process."""
        self.host.shards[0].effects.append(Post(told))
        return [effect.command for effect in self.host.turn(self.town.clock()) if isinstance(effect, Post)]

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
    placement = PlacementLimits()

    def __init__(self, tmp_path: Path, checkpoints: CheckpointSettings | None = None) -> None:
        self.now_ms = 1_000_000
        self.checkpoints = checkpoints
        self.requests = 0
        self.logs = [MemoryLog(), MemoryLog()]
        self.control = MemoryLog()
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


def records(log: MemoryLog) -> list[LogRecord]:
    return [decode(entry.data, entry.offset) for entry in log.entries]


def pending(machine: Machine) -> int:
    stats = machine.ask(GetQueueStats())
    assert isinstance(stats, QueueStats), stats
    return stats.info.pending


def test_the_router_hears_when_a_copy_is_open(tmp_path: Path) -> None:
    host = Town(tmp_path).one.host
    assert [outage.state for outage in host.slots.outages] == [OPENING, OPENING]
    before = host.offers
    host.turn(1_000_000)
    assert [outage.state for outage in host.slots.outages] == [FOLLOWING, FOLLOWING]
    assert host.offers > before
    before = host.offers
    host.turn(1_000_020)
    assert host.offers == before
    host.close()


def test_one_host_serves_and_the_other_one_follows_and_says_so(town: Town) -> None:
    assert (town.one.serves, town.two.serves) == ([0, 1], [])
    assert [(outage.shard, outage.state) for outage in town.two.host.slots.outages] == [(0, "following"), (1, "following")]
    assert not town.two.host.slots.opening, "it has started"
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


def test_a_copy_catches_up_without_pauses(town: Town) -> None:
    town.pass_ms(3000)
    for number in range(300):
        town.one.say(SetConfig("a", str(number)), "")
    town.two.turn()
    for _ in range(4):
        assert town.two.host.next_due(town.now_ms) == 0
        town.two.turn()
    assert town.two.host.next_due(town.now_ms) == FOLLOW_MS


def test_a_shard_is_recovered_without_pauses(town: Town) -> None:
    slot = town.two.host.slots[0]
    assert isinstance(slot, ReplicatedSlot)
    assert slot.due_ms, "it follows"
    town.one.end()
    town.until(lambda: slot.member is not None and slot.member.leads, town.two)
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


def test_a_stop_names_its_successor(town: Town) -> None:
    town.pass_ms(1000)
    town.one.host.retire()
    town.until(lambda: town.two.serves == [0, 1])
    left = [
        decode_log_body(record.body, Leaves)
        for log in town.logs
        for record in records(log)
        if record.kind is RecordKind.LEAVES
    ]
    assert [each.successor for each in left if each is not None] == ["two", "two"]


def test_a_host_that_drains_leaves_its_shards_and_gets_its_part_back_afterwards(town: Town) -> None:
    town.one.turn([b"", *encode_command(PutDraining(draining=True), 0, "")])
    town.until(lambda: town.two.serves == [0, 1])
    town.pass_ms(20_000)
    assert (town.one.serves, town.two.serves) == ([], [0, 1])
    town.one.turn([b"", *encode_command(PutDraining(draining=False), 0, "")])
    town.until(lambda: len(town.one.serves) == 1)
    town.pass_ms(20_000)
    assert len(town.one.serves) == len(town.two.serves) == 1


def test_a_host_that_drains_claims_what_no_other_has(town: Town) -> None:
    town.two.turn([b"", *encode_command(PutDraining(draining=True), 0, "")])
    town.pass_ms(2000)
    town.one.end()
    town.until(lambda: town.two.serves == [0, 1], town.two)


def test_a_copy_of_an_earlier_topic_neither_follows_nor_leads(town: Town, tmp_path: Path) -> None:
    """The topic is deleted and made anew, and one of the hosts keeps its directory. Young logs have the same positions."""
    for machine in (town.one, town.two):
        machine.end()
    town.logs, town.control = [MemoryLog(), MemoryLog()], MemoryLog()
    town.one, town.two = Machine(town, "one", tmp_path / "afresh"), Machine(town, "two", tmp_path / "two")
    for machine in (town.one, town.two):
        machine.log = "fila.test-2"
    town.until(lambda: town.one.serves == [0, 1], town.one)
    assert town.one.ask(CreateQueue(QueueOptions())) is not None
    for _ in range(60):
        town.one.ask(enqueue(b"confirmed"))
    town.pass_ms(1000)
    assert [outage.state for outage in town.two.host.slots.outages] == [QUARANTINED] * 2
    assert "is a copy of the log fila.test-1, and the shard's log is fila.test-2" in town.two.host.slots.outages[0].reason
    town.one.end()
    town.pass_ms(20_000, town.two)
    assert town.two.serves == [], "it does not lead"
    town.two.end()
    town.two = Machine(town, "two", tmp_path / "emptied")
    town.two.log = "fila.test-2"
    town.until(lambda: town.two.serves == [0, 1], town.two)
    assert pending(town.two) == 60


def test_a_control_partition_that_is_lost_disturbs_nothing(town: Town) -> None:
    town.control.reachable = False
    town.pass_ms(20_000)
    assert town.one.serves == [0, 1]
    assert isinstance(town.one.ask(enqueue(b"0")), Enqueued)
    town.one.end()
    town.until(lambda: town.two.serves == [0, 1], town.two)


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


def test_a_recovery_is_timed_from_its_own_beginning(town: Town) -> None:
    town.until(lambda: town.two.serves == [0, 1], town.two)  # the first one is paused
    town.pass_ms(3000)
    town.two.host.retire()
    town.until(lambda: town.one.serves == [0, 1])
    opened = [note.recovery_ms for note in town.one.host.notes if isinstance(note, ShardOpened)]
    assert len(opened) == 4
    assert max(opened) < 1000


def test_a_shard_under_load_pauses_so_that_its_copy_can_be_flushed(town: Town) -> None:
    slot = town.one.host.slots[0]
    assert isinstance(slot, ReplicatedSlot)
    assert slot.member is not None
    copy = slot.member.copy
    assert isinstance(copy, Replica)
    town.one.partitions[0].held = True
    copy._limits = copy._limits._replace(pause_bytes=1)
    first = town.one.say(enqueue(b"0"))
    second = town.one.say(enqueue(b"1"))
    assert slot.pauses
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


# --- what operators see ---------------------------------------------------------------------------------------------------


def hosted(machine: Machine) -> HostWorker:
    """What a host says of itself, in the turn in which it is asked."""
    answer = machine.answers[machine.say(GetHosts(), "")]
    assert isinstance(answer, HostList)
    (worker,) = answer.workers
    return worker


def copy_of(machine: Machine, shard: int = 0) -> HostCopy:
    return next(copy for copy in hosted(machine).copies if copy.shard == shard)


def test_each_host_says_what_it_leads_and_follows_and_how_far_it_is(town: Town) -> None:
    leads, follows = copy_of(town.one), copy_of(town.two)
    assert (hosted(town.one).host, hosted(town.one).address) == ("one", "one.example")
    assert (leads.role, leads.behind, leads.end, leads.queues, leads.problem) == ("leads", 0, -1, 1, "")
    assert 0 <= leads.proof_age_ms <= 1200, "it beats once a second"
    assert (follows.role, follows.behind, follows.proof_age_ms, follows.queues, follows.problem) == ("follows", 0, -1, 0, "")
    assert leads.epoch == follows.epoch >= 0
    assert follows.end == follows.position + 1 <= leads.position + 1
    assert leads.confirm_ns is not None
    assert sum(leads.confirm_ns.counts) > 0
    assert follows.confirm_ns is None, "it has written nothing"
    assert leads.log is None, "this log says nothing of its own copies"
    town.one.partitions[0].replicas = LogReplicas(2, 3, 2)
    assert copy_of(town.one).log == LogReplicas(2, 3, 2)


def test_a_copy_that_cannot_read_on_says_how_far_it_is_behind(town: Town) -> None:
    town.pass_ms(2000)
    position = copy_of(town.two).position
    slot = town.two.host.slots[0]
    assert isinstance(slot, ReplicatedSlot)
    assert slot.member is not None
    slot.member._read_max = 0
    town.pass_ms(5000)
    stuck = copy_of(town.two)
    assert stuck.position == position
    assert stuck.behind == stuck.end - position - 1 >= 3


def test_hosts_are_shown_at_once_while_the_log_does_not_confirm_and_say_what_is_wrong(town: Town) -> None:
    for log in town.logs:
        log.reachable = False
    town.one.say(enqueue(b"0"))
    town.pass_ms(2000)
    assert (copy_of(town.one).role, copy_of(town.one).problem) == ("leads", ""), "it may be only slow"
    assert copy_of(town.one).unconfirmed_bytes > 0
    town.pass_ms(4000)
    late = copy_of(town.one)
    assert (late.role, late.problem.startswith("the log has confirmed nothing for ")) == ("leads", True)
    assert 4000 < late.proof_age_ms < 8000
    town.until(lambda: town.one.serves == [])
    town.pass_ms(200)
    assert copy_of(town.one).role == "waits"
    assert {outage.state for outage in town.one.host.slots.outages} == {"no_quorum"}
    assert copy_of(town.two).problem.startswith("the log's partition has not answered for ")
    for log in town.logs:
        log.reachable = True
    town.until(lambda: [*town.one.serves, *town.two.serves] == [0, 1])
    town.pass_ms(5000)
    assert [copy.problem for machine in (town.one, town.two) for copy in hosted(machine).copies] == [""] * 4


def test_a_host_that_takes_over_follows_claims_and_leads(town: Town) -> None:
    town.one.end()
    roles: list[str] = []

    def leads() -> bool:
        roles.append(copy_of(town.two).role)
        return roles[-1] == "leads"

    town.until(leads, town.two)
    assert list(dict.fromkeys(roles))[0::2] == ["follows", "recovers"], roles
    assert list(dict.fromkeys(town.two.told)) == ["following", "opening"], "routers hear of the take-over before its end"


def test_a_copy_that_is_not_open_yet_begins(town: Town) -> None:
    town.two.end()
    town.two.start()
    assert [copy.role for copy in hosted(town.two).copies] == ["begins", "begins"]


def test_why_says_that_the_log_does_not_confirm_and_shows_nothing_that_may_be_lost(town: Town) -> None:
    town.one.partitions[0].held = True
    town.one.say(enqueue(b"0"))
    town.pass_ms(4500, town.one)
    answer = town.one.answers[town.one.say(Explain())]
    assert isinstance(answer, Explained)
    (reason,) = answer.reasons
    assert (answer.state, reason.code) == ("unknown", "log_waits")
    assert reason.text.startswith("the log does not confirm: the log has confirmed nothing for ")
    assert reason.details["unconfirmed_bytes"] > 0
    other = town.one.say(GetQueueStats())
    assert other not in town.one.answers, "what was only read waits"


def test_why_is_answered_as_ever_while_the_log_confirms(town: Town) -> None:
    town.one.ask(enqueue(b"0"))
    town.pass_ms(2000)
    answer = town.one.ask(Explain())
    assert isinstance(answer, Explained)
    assert (answer.state, answer.reasons[0].code) == ("pending", "no_consumers")


def test_the_metrics_have_the_copies_too(town: Town) -> None:
    answer = town.one.answers[town.one.say(GetMetrics(), "")]
    assert isinstance(answer, Metrics)
    (worker,) = answer.workers
    assert worker.host is not None
    assert [copy.role for copy in worker.host.copies] == ["leads", "leads"]


def test_what_a_shard_says_to_one_that_another_host_leads_leaves_the_process(town: Town) -> None:
    """Though a copy of that shard is here."""
    slot = town.one.host.slots[1]
    assert isinstance(slot, ReplicatedSlot)
    assert slot.member is not None
    told = Appointed(1, 0, 1, True)
    assert town.one.posts(told) == []
    slot.member.leadership.leave("two", town.clock())
    town.until(lambda: 1 in town.two.serves)
    assert town.one.serves == [0]
    assert town.one.posts(told) == [told]
    assert not town.one.host.is_alone


def test_only_a_leader_can_prove_that_it_leads(town: Town) -> None:
    proof = bank_proof(town.one.host)
    assert proof is not None
    assert (proof.epoch, proof.age_ms <= 1100, proof.alone_ms >= 1000) == (0, True, True)
    assert bank_proof(town.two.host) is None
    town.one.host.retire()
    town.until(lambda: 0 in town.two.serves)
    assert bank_proof(town.one.host) is None
    later = bank_proof(town.two.host)
    assert later is not None
    assert later.epoch > 0
    assert later.alone_ms < 1500, "it has just read the other one's last record"
