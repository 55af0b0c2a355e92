"""Two routers of one cluster, and workers that have a link to both."""

import pytest

from fila_proto_zmq.commands import (
    ConfigChange,
    ConfigTaken,
    DrainWorker,
    Enqueue,
    GetClusterStatus,
    MoveShard,
    PutConfig,
    PutDraining,
    Registered,
    SetConfig,
    ShardOutage,
)
from fila_proto_zmq.errors import InvalidArgumentError, InvalidConfigError, RequestTimeoutError, ShardUnavailableError
from fila_proto_zmq.outages import FOLLOWING
from fila_router.core.config_replication import ConfigReplication
from tests.unit.router.desk import Desk

SHARDS = 2


class Station:
    """A worker that both routers know, with its shards' copies of the config."""

    def __init__(self, routers: list[Desk], name: str, *led: int) -> None:
        self.routers = routers
        self.name = name
        self.led = led
        self.epoch = 1
        self.version = 0
        self.config: dict[str, str] = {}
        self.confirms = True
        """Whether the logs of its shards go on."""
        self.held: list[tuple[Desk, int, ConfigTaken]] = []

    def register(self, *routers: Desk) -> None:
        followed = [ShardOutage(shard, FOLLOWING, "this host follows it") for shard in range(SHARDS) if shard not in self.led]
        for router in routers or self.routers:
            known = {"config_version": self.version, "config": dict(self.config), "outages": followed}
            assert isinstance(router.register(self.name, shards=self.led, epoch=self.epoch, **known), Registered)

    def take(self, router: Desk, put: PutConfig, request: int) -> None:
        """Apply a change as a worker does, and say which logs have it."""
        if put.whole and put.version > self.version:
            self.version, self.config = put.version, {key: value for key, value in put.changes.items() if value is not None}
        elif put.changes and put.version == self.version + 1:
            self.version = put.version
            self.config = {key: value for key, value in (self.config | put.changes).items() if value is not None}
        taken = ConfigTaken(list(self.led) if self.version >= put.version else [])
        self.held.append((router, request, taken))
        if self.confirms:
            self.confirm()

    def confirm(self) -> None:
        held, self.held = self.held, []
        for router, request, taken in held:
            router.confirm(self.name, PutConfig(0, {}), request, taken)

    def lead(self, *led: int) -> None:
        """Lead other shards from now on, with the logs' copies of the config."""
        self.led = led
        self.epoch += 1


class RouterNetwork:
    """Two routers, and two workers that lead a shard each. What routers send to workers arrives with :meth:`settle`."""

    def __init__(self) -> None:
        self.routers = [Desk(shards=SHARDS, several=True) for _ in range(2)]
        self.one, self.two = self.workers = [Station(self.routers, "a/worker-0", 0), Station(self.routers, "b/worker-0", 1)]
        self.asked: list[tuple[Desk, Station, int, SetConfig]] = []
        """Changes that wait for the leader of shard 0."""
        for worker in self.workers:
            worker.register()
        self.settle()

    def set(self, router: int, key: str, value: str) -> None:
        self.routers[router].ask(SetConfig(key, value), key=b"", client=b"client of %d" % router)

    def settle(self) -> None:
        """Let all frames to workers arrive, but leave changes to the leader of shard 0."""
        for router in self.routers:
            for name, command, request in router.said():
                worker = next(worker for worker in self.workers if worker.name == name)
                if isinstance(command, SetConfig):
                    self.asked.append((router, worker, request, command))
                elif isinstance(command, PutConfig):
                    worker.take(router, command, request)

    def judge(self, version: int) -> ConfigChange:
        """Have the leader of shard 0 carry out the next change: all routers hear of it."""
        asking, leader, request, command = self.asked.pop(0)
        made = ConfigChange(version, {command.key: command.value}, False)
        leader.version, leader.config = version, leader.config | {command.key: command.value or ""}
        for router in self.routers:
            router.confirm(leader.name, SetConfig("", ""), request if router is asking else 0, made)
        return made

    def pass_ms(self, span_ms: int) -> None:
        for router in self.routers:
            router.pass_ms(span_ms, *(worker.name for worker in self.workers))

    def values(self) -> list[tuple[int, dict[str, str]]]:
        """The config as each router has it."""
        copies = [router.feature(ConfigReplication) for router in self.routers]
        return [(copy.version, copy.values) for copy in copies]


@pytest.fixture
def network() -> RouterNetwork:
    return RouterNetwork()


# --- the runtime config -----------------------------------------------------------------------------------------------


def test_a_change_reaches_both_routers_and_is_confirmed_when_every_log_has_it(network: RouterNetwork):
    network.two.confirms = False
    network.set(0, "color", "blue")
    network.settle()
    made = network.judge(1)
    network.settle()
    assert network.values() == [(1, {"color": "blue"})] * 2
    assert (network.one.config, network.two.config) == ({"color": "blue"}, {"color": "blue"})
    assert network.routers[0].answers() == []
    network.two.confirm()
    assert [answer.content for answer in network.routers[0].answers()] == [made]
    assert network.routers[1].answers() == []


def test_two_routers_may_change_it_at_the_same_time(network: RouterNetwork):
    network.set(0, "a", "1")
    network.set(1, "b", "2")
    network.settle()
    first, second = network.judge(1), network.judge(2)
    network.settle()
    assert network.values() == [(2, {"a": "1", "b": "2"})] * 2
    assert [[answer.content for answer in router.answers()] for router in network.routers] == [[first], [second]]


def test_a_refused_change_concerns_only_the_router_that_asked(network: RouterNetwork):
    network.set(0, "throttle:api:rate", "nan")
    network.settle()
    asking, leader, request, _ = network.asked.pop()
    asking.confirm(leader.name, SetConfig("", ""), request, InvalidConfigError("nan is no number"))
    network.routers[1].confirm(leader.name, SetConfig("", ""), 0, InvalidConfigError("nan is no number"))
    assert isinstance(network.routers[0].error(), InvalidConfigError)
    assert network.routers[1].answers() == []


def test_a_change_that_was_heard_before_changes_nothing(network: RouterNetwork):
    network.set(0, "color", "blue")
    network.settle()
    made = network.judge(1)
    network.settle()
    network.routers[0].answers()
    for router in network.routers:
        router.confirm("a/worker-0", SetConfig("", ""), 0, made)
        assert router.told() == []
    assert network.values() == [(1, {"color": "blue"})] * 2


def test_a_shard_that_no_worker_leads_is_waited_for_and_named(network: RouterNetwork):
    network.set(0, "color", "blue")
    network.settle()
    network.judge(1)
    network.two.lead()
    network.two.register()
    network.settle()
    assert network.routers[0].answers() == []
    network.pass_ms(4000)
    error = network.routers[0].error()
    assert isinstance(error, RequestTimeoutError)
    assert "shard 1 (no worker leads it)" in error.message


def test_the_next_leader_of_a_shard_confirms_what_the_last_one_did_not(network: RouterNetwork):
    network.two.confirms = False
    network.set(0, "color", "blue")
    network.settle()
    network.judge(1)
    network.settle()
    network.two.lead()
    network.two.register()
    network.one.lead(0, 1)
    network.one.register()
    assert network.routers[0].answers() == []
    network.settle()
    assert len(network.routers[0].answers()) == 1


def test_a_log_that_has_a_change_keeps_it_whoever_leads(network: RouterNetwork):
    network.one.confirms = False
    network.set(0, "color", "blue")
    network.settle()
    network.judge(1)
    network.settle()
    network.routers[0].unreachable("b/worker-0")
    assert network.routers[0].answers() == []
    network.one.confirm()
    assert len(network.routers[0].answers()) == 1, "shard 1 has it, though nobody leads it"


def test_a_leader_of_shard_0_that_is_replaced_before_its_word_leaves_a_change_open_to_doubt(network: RouterNetwork):
    network.set(0, "color", "blue")
    network.settle()
    network.two.lead(0, 1)
    network.two.register()
    error = network.routers[0].error()
    assert isinstance(error, ShardUnavailableError)
    assert "refused" not in error.details, "it may be made"
    network.judge(1)
    network.settle()
    assert network.values() == [(0, {})] * 2, "the word of an earlier leader does not count"
    assert network.routers[0].answers() == []


def test_a_router_that_starts_learns_the_config_and_what_the_logs_have(network: RouterNetwork):
    network.set(0, "color", "blue")
    network.settle()
    network.judge(1)
    network.settle()
    network.routers[1] = Desk(shards=SHARDS, several=True)
    for worker in network.workers:
        worker.register(network.routers[1])
    assert network.values()[1] == (1, {"color": "blue"})
    network.set(1, "size", "10")
    network.settle()
    network.judge(2)
    network.settle()
    assert len(network.routers[1].answers()) == 1


def test_a_worker_that_missed_changes_gets_the_whole_config_and_says_when_its_log_has_it(network: RouterNetwork):
    network.set(0, "a", "1")
    network.settle()
    network.judge(1)
    network.two.lead(1)
    network.two.register()
    assert ("b/worker-0", PutConfig(1, {"a": "1"}, whole=True)) in [
        (name, command) for name, command, _ in network.routers[0].said(keep=True)
    ]
    assert network.routers[0].answers() == []
    network.settle()
    assert len(network.routers[0].answers()) == 1


def test_a_router_that_missed_a_change_asks_for_the_whole_config(network: RouterNetwork):
    made = ConfigChange(2, {"b": "2"}, False)
    network.routers[1].confirm("a/worker-0", SetConfig("", ""), 0, made)
    (refusal,) = [frame for frame in network.routers[1].router.outgoing.to_workers if frame[0] == b"a/worker-0"]
    assert b"register again" in refusal[-1]


# --- moves and drains -------------------------------------------------------------------------------------------------


def test_a_shard_with_copies_is_not_moved_by_hand(network: RouterNetwork):
    network.routers[0].ask(MoveShard(0, "b/worker-0"), key=b"")
    error = network.routers[0].error()
    assert isinstance(error, InvalidArgumentError)
    assert "`fila-cluster drain WORKER`" in error.message


def test_a_drained_worker_is_told_so_and_no_shard_is_moved(network: RouterNetwork):
    desk = network.routers[0]
    desk.ask(DrainWorker("a/worker-0"), key=b"")
    assert len(desk.answers()) == 1
    assert desk.told() == [("a/worker-0", PutDraining(True))]
    desk.pass_ms(5000, "a/worker-0", "b/worker-0")
    assert desk.told() == [], "its worker hands them over"
    desk.ask(GetClusterStatus(), key=b"")
    (answer,) = desk.answers()
    assert [worker.draining for worker in answer.content.workers] == [True, False]  # type: ignore[union-attr]
    desk.ask(DrainWorker("a/worker-0", undo=True), key=b"")
    assert desk.told() == [("a/worker-0", PutDraining(False))]


def test_the_last_copy_that_could_lead_is_not_drained(network: RouterNetwork):
    desk = network.routers[0]
    desk.ask(DrainWorker("a/worker-0"), key=b"")
    desk.answers()
    desk.ask(DrainWorker("b/worker-0"), key=b"")
    error = desk.error()
    assert isinstance(error, InvalidArgumentError)
    assert "no other worker can take shard 1 from b/worker-0" in error.message


# --- clients ----------------------------------------------------------------------------------------------------------


def test_a_request_is_forwarded_by_either_router(network: RouterNetwork):
    assert [router.ask(Enqueue([b"\0\0\0\0"]), key=b"q", client=b"c") for router in network.routers] == [b"a/worker-0"] * 2
