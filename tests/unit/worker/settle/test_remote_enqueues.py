"""What the broker itself enqueues: one message in a queue of any shard, and one outcome, whatever becomes of frames and processes."""

import random
from collections.abc import Mapping
from contextlib import suppress

import pytest

from fila_proto_zmq.commands import (
    Command,
    CreateQueue,
    DeleteQueue,
    Enqueue,
    Fault,
    MessagesTransferred,
    PutConfig,
    QueueOptions,
    TransferMessages,
)
from fila_proto_zmq.record import seal_envelope
from fila_proto_zmq.runtime_config import template_changes_for
from fila_proto_zmq.templates import encode_options
from fila_worker.core.model.shard_transfers import Owner
from fila_worker.core.settings import ShardSettings
from fila_worker.core.settle.remote_enqueues import RETRY_MS_MAX, Owners, RemoteOutcome, send
from fila_worker.core.store import Store
from tests.support.external.power_cut import UnsyncedStore, cut_power
from tests.support.shard.linked_shards import LinkedShards, letters, name_on
from tests.support.shard.shard import ShardHarness, limited

HERE, THERE = name_on(3), name_on(5)


class Desk:
    """An owner of enqueues on shard 3. ``outcomes``: what it was told, by name; it forgets nothing over a restart."""

    def __init__(self, settings: ShardSettings | None = None, stores: Mapping[int, Store] | None = None) -> None:
        self.linked = LinkedShards(3, 5, settings=settings, stores=stores)
        self.outcomes: dict[str, list[RemoteOutcome]] = {}
        for shard, queue in ((3, HERE), (5, THERE)):
            self.linked[shard].create(queue)
        self.listen()

    def listen(self) -> None:
        self.linked[3].shard.part(Owners).register("desk", self.take)

    def take(self, name: str, outcome: RemoteOutcome, now_ms: int) -> bool:
        self.outcomes.setdefault(name, []).append(outcome)
        return True

    def restart(self, shard: int) -> None:
        self.linked[shard].posted.clear()
        self.linked[shard].restart()
        self.listen()

    def enqueue(self, name: str, queue: str, **columns: object) -> None:
        command = Enqueue([seal_envelope(name.encode(), {"by": "desk"})], **columns)  # type: ignore[arg-type]
        send(self.linked[3].shard, Owner("desk", name), queue, command)
        self.linked[3].turn()

    def settle(self) -> None:
        self.linked[3].pass_time(0)
        self.linked.carry()

    def last(self, name: str) -> RemoteOutcome:
        return self.outcomes[name][-1]

    def fault(self, name: str) -> Fault:
        fault = self.last(name).fault
        assert fault is not None
        return fault


@pytest.fixture
def desk() -> Desk:
    return Desk()


@pytest.fixture(params=[3, 5], ids=["same shard", "another shard"])
def target(request: pytest.FixtureRequest) -> tuple[int, str]:
    return request.param, {3: HERE, 5: THERE}[request.param]


def only_message(station: ShardHarness, queue: str):  # type: ignore[no-untyped-def]
    (got,) = station.receive(9, queue)
    return got


def test_a_message_arrives_with_its_options_and_the_owner_learns_its_id(desk: Desk, target: tuple[int, str]) -> None:
    shard, queue = target
    desk.enqueue(
        "a", queue, fairness_key="acme", weight=3, priority=-2, throttle_keys=[["t2", "t1"]], cost_milli=2500, ttl_ms=60_000
    )
    desk.settle()
    got = only_message(desk.linked[shard], queue)
    assert (got.payload, got.headers, got.key, got.weight, got.record.priority, got.throttle_keys) == (
        b"a", {"by": "desk"}, "acme", 3, -2, ("t1", "t2")
    )  # fmt: skip
    assert got.record.extension.cost_milli == 2500
    assert got.record.extension.expires_ms == 1_000_000 + 60_000
    assert desk.outcomes == {"a": [RemoteOutcome((got.record.id_high, got.record.id_low), None, None)]}


def test_a_delay_holds(desk: Desk, target: tuple[int, str]) -> None:
    shard, queue = target
    desk.enqueue("a", queue, delay_ms=5000)
    desk.settle()
    assert desk.linked[shard].counts(queue) == (0, 0, 1)
    desk.linked.pass_time(5000)
    assert letters(desk.linked[shard], queue=queue) == [b"a"]


def templated(desk: Desk, shard: int, **options: object) -> str:
    """The name of a queue that does not exist, and that a template makes. Templates are made on shard 0, which tells all others."""
    changes = template_changes_for("made-*", encode_options(QueueOptions(**options)), {})  # type: ignore[arg-type]
    desk.linked[shard].shard.put_config(PutConfig(1, changes), desk.linked[shard].now_ms)
    return name_on(shard, "made-")


def test_a_queue_is_made_by_its_template(desk: Desk, target: tuple[int, str]) -> None:
    shard, _ = target
    name = templated(desk, shard, max_attempts=2)
    desk.enqueue("a", name)
    desk.settle()
    assert desk.last("a").fault is None
    assert only_message(desk.linked[shard], name).payload == b"a"
    assert desk.linked[shard].shard.queues[name].options.max_attempts == 2


def test_the_hook_of_the_queue_decides(desk: Desk, target: tuple[int, str]) -> None:
    shard, _ = target
    name = name_on(shard, "hooked")
    script = 'function on_enqueue(msg) return {fairness_key = msg.headers["by"], priority = 7} end'
    desk.linked[shard].ask(CreateQueue(QueueOptions(on_enqueue=script)), name)
    desk.enqueue("a", name, fairness_key="other")
    desk.settle()
    got = only_message(desk.linked[shard], name)
    assert (got.key, got.record.priority) == ("desk", 7)


def test_a_known_dedup_id_gives_the_first_message(desk: Desk, target: tuple[int, str]) -> None:
    shard, queue = target
    desk.enqueue("a", queue, dedup_id="d")
    desk.enqueue("b", queue, dedup_id="d")
    desk.settle()
    assert letters(desk.linked[shard], queue=queue) == [b"a"]
    assert desk.last("a") == desk.last("b")
    assert desk.last("a").message is not None


def test_a_queue_that_does_not_exist_is_the_last_outcome(desk: Desk, target: tuple[int, str]) -> None:
    shard, _ = target
    desk.enqueue("a", name_on(shard, "missing"))
    desk.settle()
    assert desk.fault("a").code == "QUEUE_NOT_FOUND"
    assert desk.last("a").retry_ms is None
    desk.linked.pass_time(2 * RETRY_MS_MAX)
    assert len(desk.outcomes["a"]) == 1


def test_dead_letter_queues_take_nothing(desk: Desk, target: tuple[int, str]) -> None:
    _, queue = target
    desk.enqueue("a", queue + ".dlq")
    desk.settle()
    assert desk.fault("a").code == "INVALID_ARGUMENT"


def test_while_a_queue_is_full_an_enqueue_waits_and_dead_letters_pass(target: tuple[int, str]) -> None:
    desk = Desk(ShardSettings(max_queue_messages=1))
    shard, queue = target
    station = desk.linked[shard]
    station.enqueue(b"first", queue=queue)
    desk.enqueue("a", queue)
    desk.settle()
    assert desk.fault("a").code == "OVERLOADED"
    assert desk.last("a").retry_ms is not None
    assert not desk.linked[3].shard.outbox.ways[shard].stretches, "it is out of the way of others"
    desk.restart(3)
    desk.linked.pass_time(RETRY_MS_MAX)
    assert station.counts(queue) == (1, 0, 0)
    station.ack(station.receive(1, queue), queue)
    desk.linked.pass_time(RETRY_MS_MAX + 1000)
    assert letters(station, queue=queue) == [b"a"]
    assert desk.last("a").message is not None
    waits = desk.outcomes["a"][:-1]
    assert waits
    assert all(outcome.fault and outcome.fault.code == "OVERLOADED" for outcome in waits)


def test_a_queue_that_is_deleted_meanwhile_ends_the_waiting() -> None:
    desk = Desk(ShardSettings(max_queue_messages=1))
    desk.linked[5].enqueue(b"first", queue=THERE)
    desk.enqueue("a", THERE)
    desk.settle()
    desk.linked[5].ask(DeleteQueue(force=True), THERE)
    desk.linked.pass_time(RETRY_MS_MAX + 1000)
    assert desk.fault("a").code == "QUEUE_NOT_FOUND"


def test_a_namespace_s_rate_holds(desk: Desk) -> None:
    queue = name_on(5, "ns/q")
    station = desk.linked[5]
    station.create(queue)
    station.shard.put_config(PutConfig(1, {"namespace:ns:max_enqueues_per_minute": "1"}), station.now_ms)
    desk.enqueue("a", queue)
    desk.settle()
    assert desk.fault("a").code == "RATE_LIMITED"
    assert desk.last("a").retry_ms is not None
    wanted = [post.command for post in station.posted] + desk.linked.seen
    wants = [want for command in wanted if type(command).__name__ == "Tokens" for want in command.wants]
    assert [(want.most, want.returned) for want in wants] == [(1_000_000, 0)]


def test_others_pass_an_enqueue_that_is_refused(desk: Desk) -> None:
    desk.enqueue("bad", name_on(5, "missing"))
    desk.enqueue("good", THERE)
    desk.settle()
    assert letters(desk.linked[5], queue=THERE) == [b"good"]
    assert desk.last("good").message is not None


def test_a_worker_of_an_earlier_version_refuses_and_is_asked_again(desk: Desk) -> None:
    """It takes the transfer for a message of a layout that it can't read."""
    real = desk.linked.deliver

    def of_an_earlier_version(command: Command) -> None:
        if isinstance(command, TransferMessages):
            last = command.first + len(command.transfers) - 1
            refused = list(range(command.first, last + 1))
            command = MessagesTransferred(3, 5, last, refused, command.stream)
        real(command)

    desk.linked.deliver = of_an_earlier_version  # type: ignore[method-assign]
    desk.enqueue("a", THERE)
    desk.settle()
    assert desk.fault("a").code == "UNSUPPORTED_VERSION"
    assert desk.last("a").retry_ms is not None
    desk.linked.deliver = real  # type: ignore[method-assign]
    desk.linked.pass_time(RETRY_MS_MAX)
    assert letters(desk.linked[5], queue=THERE) == [b"a"]


@pytest.mark.parametrize("seed", range(8))
def test_each_message_arrives_once_over_lost_frames_and_crashes(seed: int) -> None:
    chance = random.Random(seed)
    desk = Desk(limited(transfer_messages_max=3))
    names = [f"m{number}" for number in range(30)]
    desk.linked.copies = lambda command: chance.choice((0, 1, 1, 2))
    for name in names:
        desk.enqueue(name, chance.choice((HERE, THERE)), **chance.choice(({}, {"dedup_id": name}, {"delay_ms": 10})))
        if chance.random() < 0.5:
            desk.linked.pass_time(chance.choice((0, 1, 1000)))
        if chance.random() < 0.3:
            desk.restart(chance.choice((3, 5)))
    desk.linked.copies = lambda command: 1
    desk.linked.pass_time(60_000)
    arrived = letters(desk.linked[3], queue=HERE) + letters(desk.linked[5], queue=THERE)
    assert sorted(arrived) == sorted(name.encode() for name in names)
    assert set(desk.outcomes) == set(names)
    assert all(len({outcome.message for outcome in told}) == 1 for told in desk.outcomes.values())


@pytest.mark.parametrize("refused", [False, True])
def test_an_enqueue_that_comes_back_behind_later_ones_of_its_stream_is_one_message(refused: bool) -> None:
    desk = Desk(ShardSettings(max_queue_messages=1) if refused else None, {3: UnsyncedStore()})
    there = desk.linked[5]
    if refused:
        there.enqueue(b"full", queue=THERE)
    desk.linked.stopped.add(5)
    desk.enqueue("1", THERE)
    desk.linked[3].create("synced")
    desk.linked.stopped.clear()
    desk.linked.pass_time(1000)
    desk.enqueue("2", THERE)
    desk.settle()
    cut_power(desk.linked[3])
    desk.listen()
    if refused:
        there.ack(there.receive(1, THERE), THERE)
    desk.outcomes.clear()
    desk.linked.pass_time(RETRY_MS_MAX)
    assert desk.last("1").fault is None
    assert desk.last("1").message is not None
    assert letters(there, queue=THERE) == ([b"1"] if refused else [b"1", b"2"])
    assert desk.linked[3].shard.outbox.next_due() is None


def test_hooks_that_take_long_leave_the_rest_of_a_frame_for_later_turns(desk: Desk) -> None:
    name = name_on(5, "slow")
    desk.linked[5].ask(CreateQueue(QueueOptions(on_enqueue="function on_enqueue(msg) return {} end")), name)
    desk.linked[5].limit(turn_effort=1)
    for number in range(5):
        command = Enqueue([seal_envelope(b"%d" % number)])
        send(desk.linked[3].shard, Owner("desk", str(number)), name, command)
    desk.settle()
    confirmed = [command.last for command in desk.linked.seen if isinstance(command, MessagesTransferred)]
    assert confirmed == [1, 2, 3, 4, 5]
    assert letters(desk.linked[5], queue=name) == [b"0", b"1", b"2", b"3", b"4"]


class PowerLostError(Exception):
    """The process ends in the middle of a turn."""


@pytest.mark.parametrize("commits", range(1, 8))
def test_a_crash_before_any_commit_loses_and_repeats_nothing(target: tuple[int, str], commits: int) -> None:
    """The shards commit in the middle of turns, for dedup ids and for reads: each of these commits is the last one once."""
    shard, queue = target
    desk = Desk()
    left = [commits]

    def fails_at(station: ShardHarness) -> None:
        real = station.store.commit

        def commit(batch: object, *, sync: bool = False) -> None:
            left[0] -= 1
            if left[0] == 0:
                raise PowerLostError
            real(batch, sync=sync)  # type: ignore[arg-type]

        station.store.commit = commit  # type: ignore[method-assign]

    for name in ("a", "b"):  # in one turn, so that the frame has both
        command = Enqueue([seal_envelope(name.encode())], dedup_id=name)
        send(desk.linked[3].shard, Owner("desk", name), queue, command)
    desk.linked[3].shard.settle_writes()
    for station in desk.linked.stations.values():
        fails_at(station)
    with suppress(PowerLostError):
        desk.linked.pass_time(1000)
    for each in (3, 5):
        del desk.linked[each].store.commit  # type: ignore[method-assign]
        desk.restart(each)
    desk.linked.road.clear()
    desk.linked.pass_time(5000)
    assert letters(desk.linked[shard], queue=queue) == [b"a", b"b"]
    assert {name: desk.last(name).fault for name in desk.outcomes} == {"a": None, "b": None}
