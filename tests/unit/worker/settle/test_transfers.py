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
from tests.support.shard.linked_shards import SOURCE, TARGET, Carrier, dead_letters_elsewhere, fail, letters
from tests.support.shard.shard import limited


@pytest.fixture
def carrier() -> Carrier:
    return dead_letters_elsewhere()


def sent(carrier: Carrier) -> list[TransferMessages]:
    return [command for command in carrier.seen if isinstance(command, TransferMessages)]


class Losing:
    """Loses the first frames of a kind."""

    def __init__(self, kind: type[Command], times: int = 1) -> None:
        self.kind, self.times = kind, times

    def __call__(self, command: Command) -> int:
        if isinstance(command, self.kind) and self.times:
            self.times -= 1
            return 0
        return 1


def test_a_letter_arrives_with_all_that_is_known(carrier: Carrier) -> None:
    (message_id,) = fail(carrier, b"x", key="acme", priority=5, weight=3, throttle_keys=[["t2", "t1"]])
    assert carrier[3].counts(SOURCE) == (0, 0, 0)
    carrier.carry()
    (got,) = carrier[5].receive(9, TARGET)
    extension = got.record.extension
    assert (got.id, got.key, got.weight, got.record.priority, got.attempts, got.error) == (
        message_id, "acme", 3, 5, 1, "boom"
    )  # fmt: skip
    assert (extension.reason, extension.source_queue, extension.dead_lettered_ms) == ("failed", SOURCE, carrier[3].now_ms)


def test_letters_come_in_order_behind_what_is_there(carrier: Carrier) -> None:
    carrier[5].enqueue(b"own", queue=TARGET)
    fail(carrier, *[b"%d" % number for number in range(5)])
    carrier.carry()
    assert letters(carrier[5]) == [b"own", b"0", b"1", b"2", b"3", b"4"]


@pytest.mark.parametrize("kind", [TransferMessages, MessagesTransferred])
@pytest.mark.parametrize("times", [1, 3])
@pytest.mark.parametrize("restarted", [(), (3,), (5,), (3, 5)])
def test_a_lost_frame_is_repeated(carrier: Carrier, kind: type[Command], times: int, restarted: tuple[int, ...]) -> None:
    carrier.copies = Losing(kind, times)
    fail(carrier, b"0", b"1")
    carrier.carry()
    for index in restarted:
        carrier[index].restart()
    fail(carrier, b"2")
    carrier.pass_time((times + 1) * Limits().transfer_repeat_ms)
    assert letters(carrier[5]) == [b"0", b"1", b"2"]
    assert carrier[3].shard.outbox.next_due() is None
    carrier.pass_time(10_000)
    assert letters(carrier[5]) == [b"0", b"1", b"2"]


def test_frames_that_come_twice_do_no_harm(carrier: Carrier) -> None:
    carrier.copies = lambda command: 3
    fail(carrier, b"0", b"1")
    carrier.carry()
    fail(carrier, b"2")
    carrier.carry()
    for old in list(carrier.seen):
        carrier.deliver(old)
    carrier.carry()
    assert letters(carrier[5]) == [b"0", b"1", b"2"]
    assert carrier[3].counts(SOURCE) == (0, 0, 0)


def test_many_go_a_frame_at_a_time(carrier: Carrier) -> None:
    carrier[3].limit(transfer_messages_max=10)
    for _ in range(3):
        fail(carrier, *[b"x"] * 15)
    carrier.carry()
    assert carrier[5].counts(TARGET) == (45, 0, 0)
    assert max(len(command.transfers) for command in sent(carrier)) == 10


def test_large_ones_go_in_small_frames(carrier: Carrier) -> None:
    for _ in range(4):
        fail(carrier, bytes(700_000))
    carrier.carry()
    assert carrier[5].counts(TARGET) == (4, 0, 0)
    assert [len(command.transfers) for command in sent(carrier)] == [1, 2, 1]


def test_nothing_is_said_while_there_is_nothing_to_say(carrier: Carrier) -> None:
    fail(carrier, b"x")
    carrier.carry()
    count = len(carrier.seen)
    carrier.pass_time(60_000)
    assert len(carrier.seen) == count
    assert carrier[3].shard.next_due(carrier[3].now_ms) is None


def test_while_the_other_shard_is_away_one_frame_a_second_asks_for_it(carrier: Carrier) -> None:
    carrier.stopped.add(5)
    fail(carrier, *[b"x"] * 30)
    carrier.pass_time(30_000)
    assert len(sent(carrier)) <= 31
    carrier.stopped.clear()
    carrier.pass_time(2_000)
    assert carrier[5].counts(TARGET) == (30, 0, 0)


# --- refused ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("restarted", [False, True])
def test_letters_that_the_target_takes_no_more_stay_with_their_queue(carrier: Carrier, restarted: bool) -> None:
    carrier[5].ask(DeleteQueue(), TARGET)
    carrier.copies = Losing(MessagesTransferred)
    ids = fail(carrier, b"0", b"1", key="acme", priority=8)
    carrier.carry()
    if restarted:
        carrier[3].restart()
        carrier[5].restart()
    carrier.pass_time(5_000)
    assert carrier[3].counts(SOURCE + ".dlq") == (2, 0, 0)
    carrier[3].restart()
    got = carrier[3].receive(9, SOURCE + ".dlq")
    assert [(each.id, each.key, each.record.extension.reason) for each in got] == [(each, "acme", "failed") for each in ids]


def test_a_refusal_that_was_not_heard_is_said_again_with_the_next(carrier: Carrier) -> None:
    """The answer to a first frame is lost; the frame comes again with more in it, some of which can be taken."""
    carrier[5].ask(DeleteQueue(), TARGET)
    carrier.copies = Losing(MessagesTransferred)
    fail(carrier, b"0", b"1")
    carrier.carry()
    carrier[5].create(TARGET)
    fail(carrier, b"2", b"3")
    carrier.pass_time(5_000)
    assert letters(carrier[5]) == [b"2", b"3"]
    assert letters(carrier[3], queue=SOURCE + ".dlq") == [b"0", b"1"]


def test_a_refused_letter_of_a_queue_that_is_gone_goes_with_it(carrier: Carrier) -> None:
    carrier[5].ask(DeleteQueue(), TARGET)
    carrier.stopped.add(5)
    fail(carrier, b"x")
    carrier[3].ask(DeleteQueue(), SOURCE)
    carrier[3].restart()
    carrier[3].create("another")  # it must not get the letters of the one before
    carrier.stopped.clear()
    carrier.pass_time(5_000)
    assert carrier[3].counts("another.dlq") == (0, 0, 0)
    assert carrier[3].shard.outbox.next_due() is None


# --- chance -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("seed", range(12))
def test_each_letter_is_in_one_place_whatever_happens(seed: int) -> None:
    chance = random.Random(seed)
    carrier = Carrier(3, 5, settings=limited(transfer_messages_max=chance.choice([1, 3, 100])))
    carrier[5].create(TARGET)
    carrier[3].send(CreateQueue(QueueOptions(dead_letter=TARGET)), SOURCE)
    carrier.carry()
    carrier.copies = lambda command: chance.choice([0, 1, 1, 2])
    expected = set()
    for step in range(40):
        match chance.choice(["fail", "fail", "redrive", "time", "restart", "replay", "recreate"]):
            case "fail":
                payloads = [b"%d.%d" % (step, number) for number in range(chance.randint(1, 5))]
                expected |= set(payloads)
                carrier[3].enqueue(*payloads, queue=SOURCE)
                carrier[3].settle(Verb.FAIL, carrier[3].receive(99, SOURCE), SOURCE)
            case "redrive":
                if TARGET in carrier[5].shard.queues and carrier[5].shard.queues[TARGET].appointed:
                    carrier[5].redrive(chance.randint(0, 3), TARGET)
            case "time":
                carrier.pass_time(chance.choice([1, 1_000, 3_000]))
            case "restart":
                carrier[chance.choice([3, 5])].restart()
            case "replay":
                for old in chance.sample(carrier.seen, min(5, len(carrier.seen))):
                    carrier.deliver(old)
            case "recreate":
                if carrier[5].shard.queues.get(TARGET) and not carrier[5].shard.queues[TARGET].depth:
                    carrier[5].ask(DeleteQueue(), TARGET)
                elif TARGET not in carrier[5].shard.queues:
                    carrier[5].create(TARGET)
        if chance.random() < 0.7:
            carrier.carry()
    carrier.copies = lambda command: 1
    carrier.pass_time(5_000)
    found = [*letters(carrier[3], queue=SOURCE)]
    if TARGET in carrier[5].shard.queues:
        found += letters(carrier[5])
    if SOURCE + ".dlq" in carrier[3].shard.queues:
        found += letters(carrier[3], queue=SOURCE + ".dlq")
    assert sorted(found) == sorted(expected)
