"""Cancelling: one message is taken out, unless it is leased."""

import pytest

from fila_proto_zmq.commands import Cancel, Cancelled, Verb
from fila_proto_zmq.errors import MessageNotFoundError, QueueNotFoundError
from fila_proto_zmq.ids import high_half, low_half, parse_id
from fila_worker.core.settings import Limits, ShardSettings
from tests.support.shard.shard import ADMIN, ShardHarness


def cancel(shard: ShardHarness, message_id: str, queue: str = "q") -> bool:
    reply = shard.ask(Cancel(*parse_id(message_id)), queue, ADMIN)
    assert isinstance(reply, Cancelled)
    return reply.removed


def is_gone(shard: ShardHarness, message_id: str, queue: str = "q") -> bool:
    try:
        cancel(shard, message_id, queue)
    except MessageNotFoundError:
        return True
    return False


@pytest.mark.parametrize("restarted", [False, True])
def test_a_pending_message_is_removed(shard: ShardHarness, restarted: bool) -> None:
    ids = shard.enqueue(b"0", b"1", b"2")
    if restarted:
        shard.restart()
    assert cancel(shard, ids[1])
    assert shard.counts() == (2, 0, 0)
    shard.restart()
    assert [each.payload for each in shard.receive(9)] == [b"0", b"2"]
    assert is_gone(shard, ids[1])


def test_a_delayed_one_too(shard: ShardHarness) -> None:
    ids = shard.enqueue(b"0", b"1", delay_ms=1_000)
    assert cancel(shard, ids[0])
    assert shard.counts() == (0, 0, 1)
    shard.pass_time(1_000)
    assert [each.payload for each in shard.receive(9)] == [b"1"]


def test_a_leased_one_stays(shard: ShardHarness) -> None:
    (message_id,) = shard.enqueue(b"x")
    got = shard.receive()
    assert not cancel(shard, message_id)
    shard.nack(got)
    assert cancel(shard, message_id)
    assert shard.receive() == []


@pytest.mark.parametrize("fate", ["acked", "acked in part", "dead", "expired", "cancelled"])
def test_one_that_is_gone_is_not_found(shard: ShardHarness, fate: str) -> None:
    message_id, _ = shard.enqueue(b"x", b"y", ttl_ms=1_000 if fate == "expired" else 0)
    match fate:
        case "acked":
            shard.ack(shard.receive(2))
        case "acked in part":
            shard.ack(shard.receive(2)[:1])
        case "dead":
            shard.settle(Verb.FAIL, shard.receive(2))
        case "expired":
            shard.pass_time(5_000)
        case "cancelled":
            cancel(shard, message_id)
    with pytest.raises(MessageNotFoundError, match=message_id):
        cancel(shard, message_id)


def test_a_dead_letter_is_cancelled_in_its_own_queue(shard: ShardHarness) -> None:
    (message_id,) = shard.enqueue(b"x", priority=5)
    shard.settle(Verb.FAIL, shard.receive())
    shard.restart()
    assert is_gone(shard, message_id)
    assert cancel(shard, message_id, "q.dlq")
    assert shard.counts("q.dlq") == (0, 0, 0)


@pytest.mark.parametrize("count", [Limits().priorities_max - 1, Limits().priorities_max + 20])
@pytest.mark.parametrize("restarted", [False, True])
def test_any_priority_is_found_however_many_there_are(shard: ShardHarness, count: int, restarted: bool) -> None:
    ids = []
    for priority in range(count):
        ids += shard.enqueue(b"%d" % priority, key=str(priority % 3), priority=priority - 10)
    if restarted:
        shard.restart()
    assert all(cancel(shard, each) for each in ids[::7])
    left = [int(each.payload) for each in shard.receive(999)]
    assert sorted(left) == [priority for priority in range(count) if priority % 7]


@pytest.mark.parametrize("spilled", [False, True])
def test_in_a_long_line_with_several_lanes(spilled: bool) -> None:
    shard = ShardHarness(settings=ShardSettings(buffer_bytes=500 if spilled else 2**20))
    shard.create()
    ids = []
    for number in range(60):
        ids += shard.enqueue(b"%d" % number, key="ab"[number % 2], throttle_keys=[["t"]] if number % 3 else [])
    for each in ids[10:50:3]:
        assert cancel(shard, each)
    expected = [number for number in range(60) if number not in range(10, 50, 3)]
    assert sorted(int(each.payload) for each in shard.receive(99)) == expected


FOREIGN = {
    "another shard's": (high_half(1_000_000, 5), low_half(1)),
    "of the future": (high_half(9_000_000, 3), low_half(99)),
    "the same number, another time": (high_half(123, 3), low_half(1)),
    "no id at all": (0, 0),
    "too large for a sequence": (2**64 - 1, 2**64 - 1),
}


@pytest.mark.parametrize("identity", FOREIGN.values(), ids=FOREIGN.keys())
def test_ids_that_were_never_here_are_not_found(shard: ShardHarness, identity: tuple[int, int]) -> None:
    shard.enqueue(b"x")
    with pytest.raises(MessageNotFoundError):
        shard.ask(Cancel(*identity))
    assert shard.counts() == (1, 0, 0)


def test_the_queue_must_be_the_right_one(shard: ShardHarness) -> None:
    shard.create("r")
    (message_id,) = shard.enqueue(b"x")
    assert is_gone(shard, message_id, "r")
    with pytest.raises(QueueNotFoundError):
        cancel(shard, message_id, "nobody")
    assert cancel(shard, message_id)


def test_a_slot_of_a_key_is_free_again() -> None:
    shard = ShardHarness()
    shard.create(max_in_flight_per_key=1)
    message_id, _ = shard.enqueue(b"0", b"1")
    shard.settle(Verb.RETRY, shard.receive(), after_ms=60_000)
    assert shard.receive() == []
    assert cancel(shard, message_id)
    assert [each.payload for each in shard.receive()] == [b"1"]


def test_the_size_goes_down_by_what_the_message_took(shard: ShardHarness) -> None:
    small, _, delayed = [shard.enqueue(bytes(size), delay_ms=delay)[0] for size, delay in ((1, 0), (500, 0), (70, 9_000))]
    before = shard.shard.queues["q"].size_bytes
    cancel(shard, small)
    cancel(shard, delayed)
    assert before - shard.shard.queues["q"].size_bytes == 71 + 2 * 30
