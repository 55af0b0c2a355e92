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

    def __init__(self, cluster: "ReplicatedCluster", name: str, home: Path) -> None:
        self.cluster, self.name, self.home = cluster, name, home
        self.partitions = [MemoryPartition(log, cluster.clock) for log in cluster.logs]
        self.exchanges = [Exchange(home, index) for index in range(len(cluster.logs))]
        self.control = MemoryPartition(cluster.control, cluster.clock)
        self.log = LOG
        self.answers: dict[int, Reply | Fault] = {}
        self._commands: dict[int, Command] = {}
        self._offered = 0
        self.told: list[str] = []
        """The states of all outages that the router has heard of."""
        self.start()

    def start(self) -> None:
        self._one_at_a_time = Lock()
        self._node = Node(self.name, self.name, life=str(self.cluster.clock()))

        def make_placing(members: Callable[[], dict[int, Member]]) -> Placing:
            cluster = self.cluster
            return Placing(self._node, len(self.partitions), members, self.control, cluster.clock(), cluster.placement)

        shards = ReplicatedShards(
            range(len(self.partitions)), self._slot, make_placing, self.cluster.clock, lambda: None,
            place=HostPlace(self.name, f"{self.name}.example"),
        )  # fmt: skip
        self.host = ShardProcess(shards.slots, SHARDS_TOTAL, self.cluster.clock(), self.name, [shards])

    def _slot(self, index: int, placing: Placing) -> ReplicatedSlot:
        partition, exchange, settings = self.partitions[index], self.exchanges[index], self.cluster.checkpoints

        def make(now_ms: int) -> Member:
            member = Member(partition, Replica(exchange.copy, log=self.log), self._node, now_ms)
            placing.join(index, member)
            return member

        def make_cutting(copy: Replica, now_ms: int) -> Cutting:
            assert settings is not None
            return Cutting(copy, partition, exchange, settings, LOG, SHARDS_TOTAL, self._one_at_a_time, now_ms)

        beginning = Beginning(exchange, SHARDS_TOTAL, LOG if settings else None)
        cutter = make_cutting if settings else None
        return ReplicatedSlot(
            index, SHARDS_TOTAL, ShardSettings(), compile_hooks, make, self.cluster.clock, beginning, cutter
        )

    def end(self) -> None:
        """End as a killed process does: what is unconfirmed is lost."""
        self.host.close()

    def turn(self, *frames: list[Any]) -> None:
        self.host.begin_turn(self.cluster.clock())
        for frame in frames:
            self.host.accept(frame, self.cluster.clock())
        for effect in self.host.turn(self.cluster.clock()):
            raw, _, body = effect.frames()
            header = unpack_header(raw)
            if effect.client:
                kind = Fault if header.flags & ERROR else self._commands[header.request].reply
                self.answers[header.request] = decode_body(kind, body)

        if self.host.offers != self._offered:  # the router takes its new offer
            self._offered = self.host.offers
            self.told += [outage.state for outage in self.host.slots.outages]
            self.host.registered(Registered(self.host.config.version), self.cluster.clock())

    def posts(self, told: Command) -> list[Command]:
        """Let shard 0 say something; return what leaves the process."""
        self.host.shards[0].effects.append(Post(told))
        return [effect.command for effect in self.host.turn(self.cluster.clock()) if isinstance(effect, Post)]

    def say(self, command: Command, queue: str = QUEUE) -> int:
        """Send a request; return its number."""
        self.cluster.requests += 1
        request = self.cluster.requests
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


class ReplicatedCluster:
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
def cluster(tmp_path: Path) -> Iterator[ReplicatedCluster]:
    """The first machine leads both shards, the second one follows."""
    made = ReplicatedCluster(tmp_path)
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
    host = ReplicatedCluster(tmp_path).one.host
    assert [outage.state for outage in host.slots.outages] == [OPENING, OPENING]
    before = host.offers
    host.turn(1_000_000)
    assert [outage.state for outage in host.slots.outages] == [FOLLOWING, FOLLOWING]
    assert host.offers > before
    before = host.offers
    host.turn(1_000_020)
    assert host.offers == before
    host.close()


def test_one_host_serves_and_the_other_one_follows_and_says_so(cluster: ReplicatedCluster) -> None:
    assert (cluster.one.serves, cluster.two.serves) == ([0, 1], [])
    assert [(outage.shard, outage.state) for outage in cluster.two.host.slots.outages] == [(0, "following"), (1, "following")]
    assert not cluster.two.host.slots.opening, "it has started"
    refused = cluster.two.ask(GetQueueStats())
    assert isinstance(refused, Fault)
    assert (refused.code, refused.details["refused"], refused.details["state"]) == ("SHARD_UNAVAILABLE", True, "following")


def test_what_was_confirmed_is_there_after_the_end_of_its_host(cluster: ReplicatedCluster) -> None:
    for payload in (b"0", b"1", b"2"):
        assert isinstance(cluster.one.ask(enqueue(payload)), Enqueued)
    taken = cluster.one.ask(Receive(1))
    assert isinstance(taken, Delivered)
    assert not isinstance(cluster.one.ask(SetConfig("region", "eu"), ""), Fault)
    epoch = cluster.one.host.shards[0].epoch
    cluster.one.end()
    took_ms = cluster.until(lambda: cluster.two.serves == [0, 1], cluster.two)
    assert took_ms < 8000
    assert cluster.two.host.shards[0].epoch > epoch
    assert pending(cluster.two) == 2
    assert cluster.two.host.config.values == {"region": "eu"}


def test_nothing_leaves_the_process_before_the_log_has_confirmed_it(cluster: ReplicatedCluster) -> None:
    cluster.one.partitions[0].held = True
    request = cluster.one.say(enqueue(b"0"))
    receive = cluster.one.say(Receive(1))
    cluster.pass_ms(500, cluster.one)
    assert not {request, receive} & set(cluster.one.answers)
    appender = cluster.one.partitions[0].appenders[-1]
    appender.arrive(appender.on_the_way)
    appender.report(appender.unreported)
    cluster.one.partitions[0].held = False
    cluster.pass_ms(100)
    assert isinstance(cluster.one.answers[request], Enqueued)
    assert isinstance(cluster.one.answers[receive], Delivered)


def test_a_copy_catches_up_without_pauses(cluster: ReplicatedCluster) -> None:
    cluster.pass_ms(3000)
    for number in range(300):
        cluster.one.say(SetConfig("a", str(number)), "")
    cluster.two.turn()
    for _ in range(4):
        assert cluster.two.host.next_due(cluster.now_ms) == 0
        cluster.two.turn()
    assert cluster.two.host.next_due(cluster.now_ms) == FOLLOW_MS


def test_a_shard_is_recovered_without_pauses(cluster: ReplicatedCluster) -> None:
    slot = cluster.two.host.slots[0]
    assert isinstance(slot, ReplicatedSlot)
    assert slot.due_ms, "it follows"
    cluster.one.end()
    cluster.until(lambda: slot.member is not None and slot.member.leads, cluster.two)
    assert (slot.shard, slot.due_ms) == (None, 0)
    cluster.until(lambda: cluster.two.serves == [0, 1], cluster.two)


def test_a_stop_hands_all_shards_over_at_once(cluster: ReplicatedCluster) -> None:
    cluster.one.ask(enqueue(b"0"))
    cluster.one.host.retire()
    assert cluster.until(lambda: cluster.two.serves == [0, 1]) < 1500
    assert (cluster.one.serves, cluster.one.host.holds_effects) == ([], False)
    assert [note.shard for note in cluster.one.host.notes if isinstance(note, ShardFollowed)] == [0, 1]
    assert cluster.one.host.failed == [0, 1], "its own door interrupts what waits there"
    assert pending(cluster.two) == 1
    cluster.pass_ms(10_000)
    assert cluster.two.serves == [0, 1], "who has retired claims nothing"


def test_a_stop_names_its_successor(cluster: ReplicatedCluster) -> None:
    cluster.pass_ms(1000)
    cluster.one.host.retire()
    cluster.until(lambda: cluster.two.serves == [0, 1])
    left = [
        decode_log_body(record.body, Leaves)
        for log in cluster.logs
        for record in records(log)
        if record.kind is RecordKind.LEAVES
    ]
    assert [each.successor for each in left if each is not None] == ["two", "two"]


def test_a_host_that_drains_leaves_its_shards_and_gets_its_part_back_afterwards(cluster: ReplicatedCluster) -> None:
    cluster.one.turn([b"", *encode_command(PutDraining(draining=True), 0, "")])
    cluster.until(lambda: cluster.two.serves == [0, 1])
    cluster.pass_ms(20_000)
    assert (cluster.one.serves, cluster.two.serves) == ([], [0, 1])
    cluster.one.turn([b"", *encode_command(PutDraining(draining=False), 0, "")])
    cluster.until(lambda: len(cluster.one.serves) == 1)
    cluster.pass_ms(20_000)
    assert len(cluster.one.serves) == len(cluster.two.serves) == 1


def test_a_host_that_drains_claims_what_no_other_has(cluster: ReplicatedCluster) -> None:
    cluster.two.turn([b"", *encode_command(PutDraining(draining=True), 0, "")])
    cluster.pass_ms(2000)
    cluster.one.end()
    cluster.until(lambda: cluster.two.serves == [0, 1], cluster.two)


def test_a_copy_of_an_earlier_topic_neither_follows_nor_leads(cluster: ReplicatedCluster, tmp_path: Path) -> None:
    """The topic is deleted and made anew, and one of the hosts keeps its directory. Young logs have the same positions."""
    for machine in (cluster.one, cluster.two):
        machine.end()
    cluster.logs, cluster.control = [MemoryLog(), MemoryLog()], MemoryLog()
    cluster.one, cluster.two = Machine(cluster, "one", tmp_path / "afresh"), Machine(cluster, "two", tmp_path / "two")
    for machine in (cluster.one, cluster.two):
        machine.log = "fila.test-2"
    cluster.until(lambda: cluster.one.serves == [0, 1], cluster.one)
    assert cluster.one.ask(CreateQueue(QueueOptions())) is not None
    for _ in range(60):
        cluster.one.ask(enqueue(b"confirmed"))
    cluster.pass_ms(1000)
    assert [outage.state for outage in cluster.two.host.slots.outages] == [QUARANTINED] * 2
    assert "is a copy of the log fila.test-1, and the shard's log is fila.test-2" in cluster.two.host.slots.outages[0].reason
    cluster.one.end()
    cluster.pass_ms(20_000, cluster.two)
    assert cluster.two.serves == [], "it does not lead"
    cluster.two.end()
    cluster.two = Machine(cluster, "two", tmp_path / "emptied")
    cluster.two.log = "fila.test-2"
    cluster.until(lambda: cluster.two.serves == [0, 1], cluster.two)
    assert pending(cluster.two) == 60


def test_a_control_partition_that_is_lost_disturbs_nothing(cluster: ReplicatedCluster) -> None:
    cluster.control.reachable = False
    cluster.pass_ms(20_000)
    assert cluster.one.serves == [0, 1]
    assert isinstance(cluster.one.ask(enqueue(b"0")), Enqueued)
    cluster.one.end()
    cluster.until(lambda: cluster.two.serves == [0, 1], cluster.two)


def test_a_deposed_leader_with_something_unconfirmed_ends_its_process(cluster: ReplicatedCluster) -> None:
    cluster.one.partitions[0].held = True
    request = cluster.one.say(enqueue(b"never confirmed"))
    cluster.until(lambda: 0 in cluster.two.serves, cluster.two)
    appender = cluster.one.partitions[0].appenders[-1]
    appender.arrive(appender.on_the_way)
    appender.report(appender.unreported)
    cluster.one.partitions[0].held = False
    with pytest.raises(MustEnd, match="shard 0"):
        cluster.pass_ms(500, cluster.one)
    assert request not in cluster.one.answers
    cluster.one.end()
    cluster.one.start()
    cluster.pass_ms(1000)
    assert (cluster.one.serves, pending(cluster.two)) == ([], 0)


def test_a_deposed_leader_without_anything_unconfirmed_follows(cluster: ReplicatedCluster) -> None:
    cluster.one.ask(enqueue(b"0"))
    cluster.until(lambda: cluster.two.serves == [0, 1], cluster.two)  # the first one is paused
    cluster.pass_ms(3000)
    assert (cluster.one.serves, cluster.two.serves) == ([], [0, 1])
    assert isinstance(cluster.two.ask(enqueue(b"1")), Enqueued)
    cluster.two.host.retire()
    cluster.until(lambda: cluster.one.serves == [0, 1])
    assert pending(cluster.one) == 2


def test_a_recovery_is_timed_from_its_own_beginning(cluster: ReplicatedCluster) -> None:
    cluster.until(lambda: cluster.two.serves == [0, 1], cluster.two)  # the first one is paused
    cluster.pass_ms(3000)
    cluster.two.host.retire()
    cluster.until(lambda: cluster.one.serves == [0, 1])
    opened = [note.recovery_ms for note in cluster.one.host.notes if isinstance(note, ShardOpened)]
    assert len(opened) == 4
    assert max(opened) < 1000


def test_a_shard_under_load_pauses_so_that_its_copy_can_be_flushed(cluster: ReplicatedCluster) -> None:
    slot = cluster.one.host.slots[0]
    assert isinstance(slot, ReplicatedSlot)
    assert slot.member is not None
    copy = slot.member.copy
    assert isinstance(copy, Replica)
    cluster.one.partitions[0].held = True
    copy._limits = copy._limits._replace(pause_bytes=1)
    first = cluster.one.say(enqueue(b"0"))
    second = cluster.one.say(enqueue(b"1"))
    assert slot.pauses
    assert copy.committed == copy.confirmed + 1, "the second one waits for the flush"
    appender = cluster.one.partitions[0].appenders[-1]
    appender.arrive(appender.on_the_way)
    appender.report(appender.unreported)
    cluster.one.partitions[0].held = False
    cluster.until(lambda: {first, second} <= set(cluster.one.answers))
    assert pending(cluster.one) == 2


def test_a_leader_without_the_log_stops_serving_and_serves_again(cluster: ReplicatedCluster) -> None:
    for log in cluster.logs:
        log.reachable = False
    request = cluster.one.say(enqueue(b"0"))
    cluster.until(lambda: cluster.one.serves == [])
    assert request not in cluster.one.answers
    for log in cluster.logs:
        log.reachable = True
    cluster.until(lambda: [*cluster.one.serves, *cluster.two.serves] == [0, 1])
    leader = cluster.one if cluster.one.serves else cluster.two
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


def test_each_host_says_what_it_leads_and_follows_and_how_far_it_is(cluster: ReplicatedCluster) -> None:
    leads, follows = copy_of(cluster.one), copy_of(cluster.two)
    assert (hosted(cluster.one).host, hosted(cluster.one).address) == ("one", "one.example")
    assert (leads.role, leads.behind, leads.end, leads.queues, leads.problem) == ("leads", 0, -1, 1, "")
    assert 0 <= leads.proof_age_ms <= 1200, "it beats once a second"
    assert (follows.role, follows.behind, follows.proof_age_ms, follows.queues, follows.problem) == ("follows", 0, -1, 0, "")
    assert leads.epoch == follows.epoch >= 0
    assert follows.end == follows.position + 1 <= leads.position + 1
    assert leads.confirm_ns is not None
    assert sum(leads.confirm_ns.counts) > 0
    assert follows.confirm_ns is None, "it has written nothing"
    assert leads.log is None, "this log says nothing of its own copies"
    cluster.one.partitions[0].replicas = LogReplicas(2, 3, 2)
    assert copy_of(cluster.one).log == LogReplicas(2, 3, 2)


def test_a_copy_that_cannot_read_on_says_how_far_it_is_behind(cluster: ReplicatedCluster) -> None:
    cluster.pass_ms(2000)
    position = copy_of(cluster.two).position
    slot = cluster.two.host.slots[0]
    assert isinstance(slot, ReplicatedSlot)
    assert slot.member is not None
    slot.member._read_max = 0
    cluster.pass_ms(5000)
    stuck = copy_of(cluster.two)
    assert stuck.position == position
    assert stuck.behind == stuck.end - position - 1 >= 3


def test_hosts_are_shown_at_once_while_the_log_does_not_confirm_and_say_what_is_wrong(cluster: ReplicatedCluster) -> None:
    for log in cluster.logs:
        log.reachable = False
    cluster.one.say(enqueue(b"0"))
    cluster.pass_ms(2000)
    assert (copy_of(cluster.one).role, copy_of(cluster.one).problem) == ("leads", ""), "it may be only slow"
    assert copy_of(cluster.one).unconfirmed_bytes > 0
    cluster.pass_ms(4000)
    late = copy_of(cluster.one)
    assert (late.role, late.problem.startswith("the log has confirmed nothing for ")) == ("leads", True)
    assert 4000 < late.proof_age_ms < 8000
    cluster.until(lambda: cluster.one.serves == [])
    cluster.pass_ms(200)
    assert copy_of(cluster.one).role == "waits"
    assert {outage.state for outage in cluster.one.host.slots.outages} == {"no_quorum"}
    assert copy_of(cluster.two).problem.startswith("the log's partition has not answered for ")
    for log in cluster.logs:
        log.reachable = True
    cluster.until(lambda: [*cluster.one.serves, *cluster.two.serves] == [0, 1])
    cluster.pass_ms(5000)
    assert [copy.problem for machine in (cluster.one, cluster.two) for copy in hosted(machine).copies] == [""] * 4


def test_a_host_that_takes_over_follows_claims_and_leads(cluster: ReplicatedCluster) -> None:
    cluster.one.end()
    roles: list[str] = []

    def leads() -> bool:
        roles.append(copy_of(cluster.two).role)
        return roles[-1] == "leads"

    cluster.until(leads, cluster.two)
    assert list(dict.fromkeys(roles))[0::2] == ["follows", "recovers"], roles
    assert list(dict.fromkeys(cluster.two.told)) == ["following", "opening"], "routers hear of the take-over before its end"


def test_a_copy_that_is_not_open_yet_begins(cluster: ReplicatedCluster) -> None:
    cluster.two.end()
    cluster.two.start()
    assert [copy.role for copy in hosted(cluster.two).copies] == ["begins", "begins"]


def test_why_says_that_the_log_does_not_confirm_and_shows_nothing_that_may_be_lost(cluster: ReplicatedCluster) -> None:
    cluster.one.partitions[0].held = True
    cluster.one.say(enqueue(b"0"))
    cluster.pass_ms(4500, cluster.one)
    answer = cluster.one.answers[cluster.one.say(Explain())]
    assert isinstance(answer, Explained)
    (reason,) = answer.reasons
    assert (answer.state, reason.code) == ("unknown", "log_waits")
    assert reason.text.startswith("the log does not confirm: the log has confirmed nothing for ")
    assert reason.details["unconfirmed_bytes"] > 0
    other = cluster.one.say(GetQueueStats())
    assert other not in cluster.one.answers, "what was only read waits"


def test_why_is_answered_as_ever_while_the_log_confirms(cluster: ReplicatedCluster) -> None:
    cluster.one.ask(enqueue(b"0"))
    cluster.pass_ms(2000)
    answer = cluster.one.ask(Explain())
    assert isinstance(answer, Explained)
    assert (answer.state, answer.reasons[0].code) == ("pending", "no_consumers")


def test_the_metrics_have_the_copies_too(cluster: ReplicatedCluster) -> None:
    answer = cluster.one.answers[cluster.one.say(GetMetrics(), "")]
    assert isinstance(answer, Metrics)
    (worker,) = answer.workers
    assert worker.host is not None
    assert [copy.role for copy in worker.host.copies] == ["leads", "leads"]


def test_what_a_shard_says_to_one_that_another_host_leads_leaves_the_process(cluster: ReplicatedCluster) -> None:
    """Though a copy of that shard is here."""
    slot = cluster.one.host.slots[1]
    assert isinstance(slot, ReplicatedSlot)
    assert slot.member is not None
    told = Appointed(1, 0, 1, True)
    assert cluster.one.posts(told) == []
    slot.member.leadership.leave("two", cluster.clock())
    cluster.until(lambda: 1 in cluster.two.serves)
    assert cluster.one.serves == [0]
    assert cluster.one.posts(told) == [told]
    assert not cluster.one.host.is_alone


def test_only_a_leader_can_prove_that_it_leads(cluster: ReplicatedCluster) -> None:
    proof = bank_proof(cluster.one.host)
    assert proof is not None
    assert (proof.epoch, proof.age_ms <= 1100, proof.alone_ms >= 1000) == (0, True, True)
    assert bank_proof(cluster.two.host) is None
    cluster.one.host.retire()
    cluster.until(lambda: 0 in cluster.two.serves)
    assert bank_proof(cluster.one.host) is None
    later = bank_proof(cluster.two.host)
    assert later is not None
    assert later.epoch > 0
    assert later.alone_ms < 1500, "it has just read the other one's last record"
