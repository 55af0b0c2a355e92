"""Dead letters of one shard in a queue of another: each arrives once, whatever becomes of frames and processes."""

import random

import pytest

from fila_proto_zmq.commands import (
    Command,
    CreateQueue,
    DeleteQueue,
    MessagesTransferred,
    QueueOptions,
    TransferMessages,
    Verb,
)
from fila_worker.core.settings import Limits
from tests.support.shard.linked_shards import SOURCE, TARGET, LinkedShards, dead_letters_elsewhere, fail, letters
from tests.support.shard.shard import limited


@pytest.fixture
def linked() -> LinkedShards:
    return dead_letters_elsewhere()


def sent(linked: LinkedShards) -> list[TransferMessages]:
    return [command for command in linked.seen if isinstance(command, TransferMessages)]


class Losing:
    """Loses the first frames of a kind."""

    def __init__(self, kind: type[Command], times: int = 1) -> None:
        self.kind, self.times = kind, times

    def __call__(self, command: Command) -> int:
        if isinstance(command, self.kind) and self.times:
            self.times -= 1
            return 0
        return 1


def test_a_letter_arrives_with_all_that_is_known(linked: LinkedShards) -> None:
    (message_id,) = fail(linked, b"x", key="acme", priority=5, weight=3, throttle_keys=[["t2", "t1"]])
    assert linked[3].counts(SOURCE) == (0, 0, 0)
    linked.carry()
    (got,) = linked[5].receive(9, TARGET)
    extension = got.record.extension
    assert (got.id, got.key, got.weight, got.record.priority, got.attempts, got.error) == (
        message_id, "acme", 3, 5, 1, "boom"
    )  # fmt: skip
    assert (extension.reason, extension.source_queue, extension.dead_lettered_ms) == ("failed", SOURCE, linked[3].now_ms)


def test_letters_come_in_order_behind_what_is_there(linked: LinkedShards) -> None:
    linked[5].enqueue(b"own", queue=TARGET)
    fail(linked, *[b"%d" % number for number in range(5)])
    linked.carry()
    assert letters(linked[5]) == [b"own", b"0", b"1", b"2", b"3", b"4"]


@pytest.mark.parametrize("kind", [TransferMessages, MessagesTransferred])
@pytest.mark.parametrize("times", [1, 3])
@pytest.mark.parametrize("restarted", [(), (3,), (5,), (3, 5)])
def test_a_lost_frame_is_repeated(linked: LinkedShards, kind: type[Command], times: int, restarted: tuple[int, ...]) -> None:
    linked.copies = Losing(kind, times)
    fail(linked, b"0", b"1")
    linked.carry()
    for index in restarted:
        linked[index].restart()
    fail(linked, b"2")
    linked.pass_time((times + 1) * Limits().transfer_repeat_ms)
    assert letters(linked[5]) == [b"0", b"1", b"2"]
    assert linked[3].shard.outbox.next_due() is None
    linked.pass_time(10_000)
    assert letters(linked[5]) == [b"0", b"1", b"2"]


def test_frames_that_come_twice_do_no_harm(linked: LinkedShards) -> None:
    linked.copies = lambda command: 3
    fail(linked, b"0", b"1")
    linked.carry()
    fail(linked, b"2")
    linked.carry()
    for old in list(linked.seen):
        linked.deliver(old)
    linked.carry()
    assert letters(linked[5]) == [b"0", b"1", b"2"]
    assert linked[3].counts(SOURCE) == (0, 0, 0)


def test_many_go_a_frame_at_a_time(linked: LinkedShards) -> None:
    linked[3].limit(transfer_messages_max=10)
    for _ in range(3):
        fail(linked, *[b"x"] * 15)
    linked.carry()
    assert linked[5].counts(TARGET) == (45, 0, 0)
    assert max(len(command.transfers) for command in sent(linked)) == 10


def test_large_ones_go_in_small_frames(linked: LinkedShards) -> None:
    for _ in range(4):
        fail(linked, bytes(700_000))
    linked.carry()
    assert linked[5].counts(TARGET) == (4, 0, 0)
    assert [len(command.transfers) for command in sent(linked)] == [1, 2, 1]


def test_nothing_is_said_while_there_is_nothing_to_say(linked: LinkedShards) -> None:
    fail(linked, b"x")
    linked.carry()
    count = len(linked.seen)
    linked.pass_time(60_000)
    assert len(linked.seen) == count
    assert linked[3].shard.next_due(linked[3].now_ms) is None


def test_while_the_other_shard_is_away_one_frame_a_second_asks_for_it(linked: LinkedShards) -> None:
    linked.stopped.add(5)
    fail(linked, *[b"x"] * 30)
    linked.pass_time(30_000)
    assert len(sent(linked)) <= 31
    linked.stopped.clear()
    linked.pass_time(2_000)
    assert linked[5].counts(TARGET) == (30, 0, 0)


# --- refused ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("restarted", [False, True])
def test_letters_that_the_target_takes_no_more_stay_with_their_queue(linked: LinkedShards, restarted: bool) -> None:
    linked[5].ask(DeleteQueue(), TARGET)
    linked.copies = Losing(MessagesTransferred)
    ids = fail(linked, b"0", b"1", key="acme", priority=8)
    linked.carry()
    if restarted:
        linked[3].restart()
        linked[5].restart()
    linked.pass_time(5_000)
    assert linked[3].counts(SOURCE + ".dlq") == (2, 0, 0)
    linked[3].restart()
    got = linked[3].receive(9, SOURCE + ".dlq")
    assert [(each.id, each.key, each.record.extension.reason) for each in got] == [(each, "acme", "failed") for each in ids]


def test_a_refusal_that_was_not_heard_is_said_again_with_the_next(linked: LinkedShards) -> None:
    """The answer to a first frame is lost; the frame comes again with more in it, some of which can be taken."""
    linked[5].ask(DeleteQueue(), TARGET)
    linked.copies = Losing(MessagesTransferred)
    fail(linked, b"0", b"1")
    linked.carry()
    linked[5].create(TARGET)
    fail(linked, b"2", b"3")
    linked.pass_time(5_000)
    assert letters(linked[5]) == [b"2", b"3"]
    assert letters(linked[3], queue=SOURCE + ".dlq") == [b"0", b"1"]


def test_a_refused_letter_of_a_queue_that_is_gone_goes_with_it(linked: LinkedShards) -> None:
    linked[5].ask(DeleteQueue(), TARGET)
    linked.stopped.add(5)
    fail(linked, b"x")
    linked[3].ask(DeleteQueue(), SOURCE)
    linked[3].restart()
    linked[3].create("another")  # it must not get the letters of the one before
    linked.stopped.clear()
    linked.pass_time(5_000)
    assert linked[3].counts("another.dlq") == (0, 0, 0)
    assert linked[3].shard.outbox.next_due() is None


# --- chance -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("seed", range(12))
def test_each_letter_is_in_one_place_whatever_happens(seed: int) -> None:
    chance = random.Random(seed)
    linked = LinkedShards(3, 5, settings=limited(transfer_messages_max=chance.choice([1, 3, 100])))
    linked[5].create(TARGET)
    linked[3].send(CreateQueue(QueueOptions(dead_letter=TARGET)), SOURCE)
    linked.carry()
    linked.copies = lambda command: chance.choice([0, 1, 1, 2])
    expected = set()
    for step in range(40):
        match chance.choice(["fail", "fail", "redrive", "time", "restart", "replay", "recreate"]):
            case "fail":
                payloads = [b"%d.%d" % (step, number) for number in range(chance.randint(1, 5))]
                expected |= set(payloads)
                linked[3].enqueue(*payloads, queue=SOURCE)
                linked[3].settle(Verb.FAIL, linked[3].receive(99, SOURCE), SOURCE)
            case "redrive":
                if TARGET in linked[5].shard.queues and linked[5].shard.queues[TARGET].appointed:
                    linked[5].redrive(chance.randint(0, 3), TARGET)
            case "time":
                linked.pass_time(chance.choice([1, 1_000, 3_000]))
            case "restart":
                linked[chance.choice([3, 5])].restart()
            case "replay":
                for old in chance.sample(linked.seen, min(5, len(linked.seen))):
                    linked.deliver(old)
            case "recreate":
                if linked[5].shard.queues.get(TARGET) and not linked[5].shard.queues[TARGET].depth:
                    linked[5].ask(DeleteQueue(), TARGET)
                elif TARGET not in linked[5].shard.queues:
                    linked[5].create(TARGET)
        if chance.random() < 0.7:
            linked.carry()
    linked.copies = lambda command: 1
    linked.pass_time(5_000)
    found = [*letters(linked[3], queue=SOURCE)]
    if TARGET in linked[5].shard.queues:
        found += letters(linked[5])
    if SOURCE + ".dlq" in linked[3].shard.queues:
        found += letters(linked[3], queue=SOURCE + ".dlq")
    assert sorted(found) == sorted(expected)
