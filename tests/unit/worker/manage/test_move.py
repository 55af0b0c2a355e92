"""Move: the backlog of a queue, or of one of its keys, goes to the line of another queue."""

from itertools import count
from random import Random

import pytest

from fila_proto_zmq.commands import (
    Browse,
    DeleteQueue,
    Enqueue,
    Moved,
    MoveMessages,
    Pause,
    PutConfig,
    QueueOptions,
    Reply,
    Subscribe,
    UpdateQueue,
    Verb,
)
from fila_proto_zmq.errors import (
    FilaError,
    InvalidArgumentError,
    OverloadedError,
    QueueNotFoundError,
    ShardUnavailableError,
)
from fila_proto_zmq.ids import format_id
from fila_proto_zmq.names import shard_of
from fila_proto_zmq.record import payload_of, seal_envelope
from fila_proto_zmq.templates import TEMPLATE, encode_options
from fila_worker.core.settings import Limits, ShardSettings
from tests.property.replication.test_reshard import resharded
from tests.support.shard.batched import SHARD_OF, Batched
from tests.support.shard.batched import THERE as THEIRS
from tests.support.shard.hooked import on_enqueue
from tests.support.shard.linked_shards import LinkedShards, name_on
from tests.support.shard.random_cluster import copied
from tests.support.shard.shard import Got, ShardHarness

HERE, THERE = 3, 5
FROM, ASIDE, FAR = name_on(HERE), name_on(HERE, "aside"), name_on(THERE, "far")


@pytest.fixture
def shard() -> ShardHarness:
    harness = ShardHarness(index=HERE)
    harness.create(FROM)
    harness.create(ASIDE)
    return harness


@pytest.fixture
def linked() -> LinkedShards:
    shards = LinkedShards(HERE, THERE)
    shards[HERE].create(FROM)
    shards[THERE].create(FAR)
    return shards


def move(shard: ShardHarness, target: str = ASIDE, count: int = 0, key: str | None = None, queue: str = FROM) -> Reply:
    return shard.ask(MoveMessages(target, count, key), queue)


def move_far(linked: LinkedShards, count: int = 0, key: str | None = None, target: str = FAR) -> Reply:
    """Move to another shard, which answers."""
    shard = linked[HERE]
    number = shard.begin(MoveMessages(target, count, key), FROM)
    for _ in range(100):
        linked.carry()
        if number in shard.late:
            break
        linked.pass_time(2)
    answer = shard.late.pop(number)
    if isinstance(answer, FilaError):
        raise answer
    return answer


def payloads(got: list[Got]) -> list[bytes]:
    return [each.payload for each in got]


# --- on one shard -----------------------------------------------------------------------------------------------------


def test_a_message_keeps_what_it_was_enqueued_with(shard: ShardHarness) -> None:
    (message_id,) = shard.enqueue(
        b"x",
        queue=FROM,
        key="acme",
        priority=-3,
        lease_ms=2_000,
        ttl_ms=60_000,
        throttle_keys=[["t"]],
        weight=4,
        max_attempts=7,
    )  # type: ignore[arg-type]
    shard.settle(Verb.RETRY, shard.receive(1, FROM), FROM, error="boom", metadata=b"left")
    shard.pass_time(20_000)
    assert move(shard) == Moved(1, 0)
    (got,) = shard.receive(9, ASIDE)
    extension = got.record.extension
    assert (got.id, got.key, got.weight, got.throttle_keys) == (message_id, "acme", 4, ("t",))
    assert (got.record.priority, got.attempts, got.error, extension.metadata) == (-3, 0, "", b"left")
    assert (got.expires_ms, extension.max_attempts) == (shard.now_ms + 2_000, 7)
    assert extension.expires_ms == 1_000_000 + 60_000


def test_delayed_messages_keep_what_is_left_of_their_delay(shard: ShardHarness) -> None:
    shard.enqueue(b"later", queue=FROM, delay_ms=5_000)
    shard.enqueue(b"retried", queue=FROM)
    shard.settle(Verb.RETRY, shard.receive(1, FROM), FROM, after_ms=3_000)
    shard.pass_time(1_000)
    assert move(shard) == Moved(2, 0)
    assert (shard.counts(FROM), shard.counts(ASIDE)) == ((0, 0, 0), (0, 0, 2))
    shard.pass_time(1_999)
    assert shard.receive(9, ASIDE) == []
    shard.pass_time(1)
    assert payloads(shard.receive(9, ASIDE)) == [b"retried"]
    shard.pass_time(2_000)
    assert payloads(shard.receive(9, ASIDE)) == [b"later"]


def test_a_retried_message_frees_its_slot(shard: ShardHarness) -> None:
    shard.ask(UpdateQueue(QueueOptions(max_in_flight_per_key=1), ["max_in_flight_per_key"]), FROM)
    shard.enqueue(b"first", queue=FROM)
    shard.settle(Verb.RETRY, shard.receive(1, FROM), FROM, after_ms=60_000)
    assert move(shard) == Moved(1, 0)
    shard.enqueue(b"second", queue=FROM)
    assert payloads(shard.receive(9, FROM)) == [b"second"]


def test_one_key_a_count_and_line_order(shard: ShardHarness) -> None:
    shard.enqueue(*(b"%d" % number for number in range(6)), queue=FROM, key="acme")
    shard.enqueue(b"other", queue=FROM, key="other")
    assert move(shard, count=4, key="acme") == Moved(4, 2)
    assert payloads(shard.receive(9, ASIDE)) == [b"0", b"1", b"2", b"3"]
    assert move(shard, key="nobody") == Moved(0, 0)
    assert sorted(payloads(shard.receive(9, FROM))) == [b"4", b"5", b"other"]


def test_leased_messages_stay(shard: ShardHarness) -> None:
    shard.enqueue(b"leased", queue=FROM)
    leased = shard.receive(1, FROM)
    shard.enqueue(b"free", queue=FROM)
    assert move(shard) == Moved(1, 0)
    assert payloads(shard.receive(9, ASIDE)) == [b"free"]
    shard.ack(leased, FROM)


def test_members_of_a_batch_stay() -> None:
    batched = Batched()
    batched.open()
    batched.add(THEIRS, b"member")
    batched.of(THEIRS).enqueue(b"free", queue=THEIRS)
    other = name_on(SHARD_OF[THEIRS], "aside")
    batched.of(THEIRS).create(other)
    assert move(batched.of(THEIRS), other, queue=THEIRS) == Moved(1, 1)
    batched.seal()
    assert batched.settle_all(THEIRS) == 1
    assert batched.counts() == [(1, 1, 0, 0)]


def test_a_message_whose_time_is_up_stays_and_is_dead_lettered(shard: ShardHarness) -> None:
    shard.ask(Pause(True, None), FROM)
    shard.enqueue(b"x", queue=FROM, ttl_ms=500)
    shard.now_ms += 501
    assert move(shard) == Moved(0, 1)
    shard.pass_time(6_000)
    assert shard.counts(f"{FROM}.dlq") == (1, 0, 0)


def test_a_pause_keeps_nothing_back(shard: ShardHarness) -> None:
    shard.ask(Pause(True, None), FROM)
    shard.ask(Pause(True, "default"), ASIDE)
    shard.enqueue(b"x", queue=FROM)
    assert move(shard) == Moved(1, 0)
    assert shard.receive(9, ASIDE) == []
    shard.ask(Pause(False, "default"), ASIDE)
    assert payloads(shard.receive(9, ASIDE)) == [b"x"]


def test_who_waits_there_gets_them_at_once(shard: ShardHarness) -> None:
    shard.ask(Subscribe(1, 10), ASIDE)
    shard.enqueue(b"x", queue=FROM)
    move(shard)
    assert payloads(shard.take_pushed()) == [b"x"]


def test_dead_letters_become_messages_of_the_other_queue(shard: ShardHarness) -> None:
    shard.enqueue(b"x", queue=FROM)
    shard.settle(Verb.FAIL, shard.receive(1, FROM), FROM, error="boom")
    assert move(shard, queue=f"{FROM}.dlq") == Moved(1, 0)
    (got,) = shard.receive(9, ASIDE)
    assert (got.attempts, got.error, got.record.extension.source_queue, got.record.extension.reason) == (0, "", None, None)


def test_the_hook_of_the_other_queue_decides_again(shard: ShardHarness) -> None:
    script = on_enqueue('return { fairness_key = "chosen", delay_ms = 2000 }')
    shard.ask(UpdateQueue(QueueOptions(on_enqueue=script), ["on_enqueue"]), ASIDE)
    shard.enqueue(b"x", queue=FROM, key="acme")
    assert move(shard) == Moved(1, 0)
    assert shard.counts(ASIDE) == (0, 0, 1)
    shard.pass_time(2_000)
    (got,) = shard.receive(9, ASIDE)
    assert got.key == "chosen"


def test_the_same_dedup_id_still_finds_the_moved_message(shard: ShardHarness) -> None:
    (first,) = shard.enqueue(b"x", queue=FROM, dedup_id="once")  # type: ignore[arg-type]
    move(shard)
    again = shard.ask(Enqueue([seal_envelope(b"y")], dedup_id="once"), FROM)
    assert [format_id(*ids) for _, *ids in again.known] == [first]  # type: ignore[attr-defined]
    assert (shard.counts(FROM), shard.counts(ASIDE)) == ((0, 0, 0), (1, 0, 0))


def test_a_step_is_bounded_and_a_restart_between_steps_harms_nothing() -> None:
    settings = ShardSettings(limits=Limits(redrive_messages_max=2, step_effort=1))
    shard = ShardHarness(index=HERE, settings=settings)
    shard.create(FROM)
    shard.create(ASIDE)
    shard.enqueue(*(b"%d" % number for number in range(5)), queue=FROM, key="a")
    shard.enqueue(*(b"%d" % number for number in range(5, 7)), queue=FROM, key="b", delay_ms=1_000)
    steps = []
    while (step := move(shard)) != Moved(0, 0):
        steps.append(step)
        shard.restart()
    assert steps == [Moved(2, 5), Moved(2, 3), Moved(2, 1), Moved(1, 0)]
    shard.pass_time(1_000)
    assert sorted(payloads(shard.receive(9, ASIDE))) == [b"%d" % number for number in range(7)]


# --- refusals ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("target", "count", "error"),
    [
        (FROM, 0, InvalidArgumentError),
        (f"{ASIDE}.dlq", 0, InvalidArgumentError),
        (ASIDE, -1, InvalidArgumentError),
        ("no name", 0, InvalidArgumentError),
        (name_on(HERE, "missing"), 0, QueueNotFoundError),
    ],
)
def test_moves_that_will_not_do(shard: ShardHarness, target: str, count: int, error: type[FilaError]) -> None:
    shard.enqueue(b"x", queue=FROM)
    with pytest.raises(error):
        move(shard, target, count)
    assert shard.counts(FROM) == (1, 0, 0)


def test_a_full_queue_ends_a_move() -> None:
    shard = ShardHarness(index=HERE, settings=ShardSettings(max_queue_messages=3))
    shard.create(FROM)
    shard.create(ASIDE)
    shard.enqueue(b"own", queue=ASIDE)
    shard.enqueue(b"0", b"1", b"2", queue=FROM)
    assert move(shard) == Moved(2, 1)
    with pytest.raises(OverloadedError, match="full"):
        move(shard)
    assert shard.counts(FROM) == (1, 0, 0)


def test_a_template_makes_the_other_queue(shard: ShardHarness) -> None:
    made = name_on(HERE, "made-")
    template: dict[str, str | None] = {f"{TEMPLATE}made-*": encode_options(QueueOptions())}
    shard.shard.put_config(PutConfig(1, template), shard.now_ms)
    shard.enqueue(b"x", queue=FROM)
    assert move(shard, made) == Moved(1, 0)
    assert payloads(shard.receive(9, made)) == [b"x"]


# --- to another shard -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("restarted", [False, True])
def test_messages_arrive_on_another_shard(linked: LinkedShards, restarted: bool) -> None:
    ids = linked[HERE].enqueue(b"0", b"1", queue=FROM, key="acme", weight=3, ttl_ms=60_000)
    ids += linked[HERE].enqueue(b"2", queue=FROM, key="acme", delay_ms=5_000)
    assert move_far(linked) == Moved(3, 0)
    if restarted:
        linked[THERE].restart()
    assert linked[THERE].counts(FAR) == (2, 0, 1)
    linked.pass_time(5_000)
    got = linked[THERE].receive(9, FAR)
    assert [each.id for each in got] == ids
    assert {(each.key, each.weight, each.attempts) for each in got} == {("acme", 3, 0)}
    assert [each.record.extension.expires_ms for each in got] == [1_060_000, 1_060_000, None]
    assert not [each for each in linked[HERE].shard.outbox.watchers if "Forwarder" not in repr(each)]


def test_a_refused_message_is_in_its_place_again(linked: LinkedShards) -> None:
    shard = linked[HERE]
    shard.enqueue(b"0", b"1", queue=FROM, key="acme")
    shard.enqueue(b"late", queue=FROM, delay_ms=5_000, ttl_ms=60_000)
    linked[THERE].ask(DeleteQueue(), FAR)
    with pytest.raises(QueueNotFoundError, match="far"):
        move_far(linked)
    shard.restart()
    assert shard.counts(FROM) == (2, 0, 1)
    assert payloads(shard.receive(9, FROM)) == [b"0", b"1"]
    shard.pass_time(5_000)
    assert payloads(shard.receive(9, FROM)) == [b"late"]


def test_a_refused_message_expires_when_its_time_is_up(linked: LinkedShards) -> None:
    shard = linked[HERE]
    shard.ask(Pause(True, None), FROM)
    shard.enqueue(b"x", queue=FROM, ttl_ms=1_500)
    linked.stopped.add(THERE)
    shard.begin(MoveMessages(FAR, 0), FROM)
    linked.pass_time(4_000)
    linked.stopped.clear()
    linked[THERE].ask(DeleteQueue(), FAR)
    linked.pass_time(4_000)
    assert shard.counts(FROM) == (0, 0, 0)
    assert shard.counts(f"{FROM}.dlq") == (1, 0, 0)


def test_a_full_queue_of_another_shard_takes_what_it_has_room_for() -> None:
    linked = LinkedShards(HERE, THERE, settings=ShardSettings(max_queue_messages=2))
    linked[HERE].create(FROM)
    linked[THERE].create(FAR)
    linked[THERE].enqueue(b"own", queue=FAR)
    linked[HERE].enqueue(b"0", b"1", queue=FROM)
    assert move_far(linked) == Moved(1, 1)
    with pytest.raises(OverloadedError, match="full"):
        move_far(linked)
    assert (linked[HERE].counts(FROM), linked[THERE].counts(FAR)) == ((1, 0, 0), (2, 0, 0))


def test_a_shard_that_is_away_ends_the_call_and_gets_them_later(linked: LinkedShards) -> None:
    linked[HERE].enqueue(b"x", queue=FROM)
    linked.stopped.add(THERE)
    number = linked[HERE].begin(MoveMessages(FAR, 0), FROM)
    linked.pass_time(5_000)
    assert isinstance(linked[HERE].late.pop(number), ShardUnavailableError)
    assert linked[HERE].counts(FROM) == (0, 0, 0)
    linked[HERE].restart()
    linked.stopped.clear()
    linked.pass_time(2_000)
    assert payloads(linked[THERE].receive(9, FAR)) == [b"x"]


def test_frames_that_are_repeated_or_lost_move_each_message_once(linked: LinkedShards) -> None:
    copies = iter([0, 3, 0, 2, 1, 1, 1, 1, 1, 1, 1, 1])
    linked.copies = lambda command: next(copies, 1)
    linked[HERE].enqueue(b"0", b"1", b"2", queue=FROM)
    number = linked[HERE].begin(MoveMessages(FAR, 0), FROM)
    linked.pass_time(6_000)
    answer = linked[HERE].late.pop(number)
    assert answer == Moved(3, 0) or isinstance(answer, ShardUnavailableError)
    assert payloads(linked[THERE].receive(9, FAR)) == [b"0", b"1", b"2"]


def test_browsing_shows_moved_messages_where_they_are(shard: ShardHarness) -> None:
    shard.enqueue(b"x", queue=FROM)
    move(shard)
    assert [payload_of(view.record) for view in shard.ask(Browse(9), ASIDE).messages] == [b"x"]  # type: ignore[attr-defined]
    assert shard.ask(Browse(9), FROM).messages == []  # type: ignore[attr-defined]


@pytest.mark.parametrize("seed", range(4))
def test_messages_on_their_way_survive_a_reshard(linked: LinkedShards, seed: int) -> None:
    chance = Random(seed)
    linked = LinkedShards(*range(3), total=3)
    source, target = name_of(0, 3, "from"), name_of(1, 3, "to")
    for shard, queue in ((0, source), (1, target)):
        linked[shard].create(queue)
    linked[0].enqueue(*(b"%d" % number for number in range(6)), queue=source)
    linked[0].enqueue(b"late", queue=source, delay_ms=60_000)
    linked.copies = lambda command: chance.choice((0, 1))
    linked[0].begin(MoveMessages(target, chance.choice((0, 3))), source)
    linked.pass_time(1_500)
    stores = [copied(station.store) for station in linked.stations.values()]
    resharded_to = list(resharded(stores, 2, linked[0].now_ms, chance, kills=2))
    linked = LinkedShards(*range(2), stores=dict(enumerate(resharded_to)), total=2, now_ms=linked[0].now_ms)
    linked.pass_time(60_000)
    got = [linked[shard_of(queue, 2)].receive(20, queue) for queue in (source, target)]
    assert sorted(payloads(got[0] + got[1])) == [*(b"%d" % number for number in range(6)), b"late"]
    assert len(got[1]) >= 3


def name_of(shard: int, shards: int, prefix: str) -> str:
    return next(name for number in count() if shard_of(name := f"{prefix}{number}", shards) == shard)
