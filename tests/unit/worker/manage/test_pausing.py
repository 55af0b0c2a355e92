"""Pausing: no new deliveries of a queue, or of one of its keys, while everything else goes on."""

import pytest

from fila_proto_zmq.commands import Delivered, Pause, Receive, Verb
from fila_proto_zmq.errors import QueueNotFoundError
from tests.support.shard.shard import ADMIN, Got, ShardHarness, opened


def pause(shard: ShardHarness, key: str | None = None, queue: str = "q") -> None:
    shard.ask(Pause(True, key), queue, ADMIN)


def resume(shard: ShardHarness, key: str | None = None, queue: str = "q") -> None:
    shard.ask(Pause(False, key), queue, ADMIN)


def payloads(got: list[Got]) -> list[bytes]:
    return [each.payload for each in got]


# --- a queue ----------------------------------------------------------------------------------------------------------


def test_a_paused_queue_takes_messages_and_delivers_none(shard: ShardHarness) -> None:
    shard.enqueue(b"before")
    pause(shard)
    shard.enqueue(b"after")
    assert shard.receive(9) == []
    assert shard.counts() == (2, 0, 0)


def test_resumed_it_delivers_all_of_it_in_order(shard: ShardHarness) -> None:
    shard.enqueue(b"before")
    pause(shard)
    shard.enqueue(b"after")
    resume(shard)
    assert payloads(shard.receive(9)) == [b"before", b"after"]


@pytest.mark.parametrize("key", [None, "default"])
def test_subscriptions_wait_and_go_on_by_themselves(shard: ShardHarness, key: str | None) -> None:
    shard.subscribe(100)
    pause(shard, key)
    shard.enqueue(b"x")
    assert shard.take_pushed() == []
    resume(shard, key)
    assert payloads(shard.take_pushed()) == [b"x"]


@pytest.mark.parametrize("key", [None, "default"])
def test_so_do_receives(shard: ShardHarness, key: str | None) -> None:
    shard.enqueue(b"x")
    pause(shard, key)
    request = shard.send(Receive(1, 60_000))
    assert request not in shard.late
    resume(shard, key)
    answer = shard.late.pop(request)
    assert isinstance(answer, Delivered)
    assert payloads(opened(answer)) == [b"x"]


def test_a_receive_that_waited_in_vain_is_answered(shard: ShardHarness) -> None:
    shard.enqueue(b"x")
    pause(shard)
    request = shard.send(Receive(1, 1_000))
    shard.pass_time(1_000)
    assert shard.late.pop(request) == Delivered(0, [])


def test_what_is_leased_may_be_settled(shard: ShardHarness) -> None:
    shard.enqueue(b"0", b"1", b"2")
    got = shard.receive(3)
    pause(shard)
    shard.ack(got[:1])
    shard.nack(got[1:2])
    shard.settle(Verb.RETRY, got[2:], after_ms=1_000)
    shard.pass_time(1_000)
    assert (shard.receive(9), shard.counts()) == ([], (2, 0, 0))
    resume(shard)
    assert payloads(shard.receive(9)) == [b"1", b"2"]


def test_other_queues_notice_nothing(shard: ShardHarness) -> None:
    shard.create("other")
    shard.enqueue(b"x", queue="other")
    pause(shard)
    assert payloads(shard.receive(queue="other")) == [b"x"]


def test_a_dead_letter_queue_may_be_paused_by_itself(shard: ShardHarness) -> None:
    shard.enqueue(b"0", b"1")
    shard.settle(Verb.FAIL, shard.receive())
    pause(shard, queue="q.dlq")
    assert (shard.receive(queue="q.dlq"), payloads(shard.receive())) == ([], [b"1"])


def test_a_queue_that_is_not_there_can_not_be_paused(shard: ShardHarness) -> None:
    with pytest.raises(QueueNotFoundError):
        pause(shard, queue="nobody")


# --- a key ------------------------------------------------------------------------------------------------------------


def test_a_paused_key_is_passed_by_the_others(shard: ShardHarness) -> None:
    for key in "abc":
        shard.enqueue(b"0", b"1", key=key)
    pause(shard, "b")
    assert "".join(each.key for each in shard.receive(99)) == "acac"
    resume(shard, "b")
    assert "".join(each.key for each in shard.receive(99)) == "bb"


def test_a_key_may_be_paused_before_it_has_messages(shard: ShardHarness) -> None:
    pause(shard, "yet to come")
    shard.enqueue(b"x", key="yet to come")
    assert shard.receive() == []
    resume(shard, "yet to come")
    assert payloads(shard.receive()) == [b"x"]


def test_all_lanes_of_a_key_are_paused(shard: ShardHarness) -> None:
    shard.enqueue(b"0")
    shard.enqueue(b"1", throttle_keys=[["t"]])
    pause(shard, "default")
    shard.enqueue(b"2", throttle_keys=[["t", "u"]])
    assert shard.receive(9) == []
    resume(shard, "default")
    assert payloads(shard.receive(9)) == [b"0", b"1", b"2"]


def test_a_key_gains_no_credit_while_it_is_paused(shard: ShardHarness) -> None:
    for key in "ab":
        shard.enqueue(*[b"x"] * 50, key=key)
    pause(shard, "a")
    assert {each.key for each in shard.receive(20)} == {"b"}
    resume(shard, "a")
    assert "".join(each.key for each in shard.receive(8)) == "abababab"


def test_a_resumed_queue_leaves_its_paused_keys_alone(shard: ShardHarness) -> None:
    shard.enqueue(b"0", key="a")
    shard.enqueue(b"1", key="b")
    pause(shard, "a")
    pause(shard)
    resume(shard)
    assert payloads(shard.receive(9)) == [b"1"]


def test_a_resumed_key_of_a_paused_queue_still_waits(shard: ShardHarness) -> None:
    shard.enqueue(b"x")
    pause(shard)
    pause(shard, "default")
    resume(shard, "default")
    assert shard.receive() == []


# --- seen, repeated, recovered ----------------------------------------------------------------------------------------


def test_statistics_say_what_is_paused(shard: ShardHarness) -> None:
    shard.enqueue(b"0", key="a")
    shard.enqueue(b"1", key="b")
    pause(shard, "a")
    assert (shard.stats().info.paused, {key.fairness_key: key.paused for key in shard.stats().keys}) == (
        False,
        {"a": True, "b": False},
    )
    pause(shard)
    assert shard.stats().info.paused


def test_pausing_twice_is_pausing_once(shard: ShardHarness) -> None:
    shard.enqueue(b"x")
    for key in (None, "default"):
        pause(shard, key)
        pause(shard, key)
        resume(shard, key)
        resume(shard, key)
    assert payloads(shard.receive()) == [b"x"]


@pytest.mark.parametrize("key", [None, "a", "yet to come"])
def test_a_pause_survives_a_restart_and_so_does_its_end(shard: ShardHarness, key: str | None) -> None:
    shard.enqueue(b"known", key="a")
    shard.ack(shard.receive())
    pause(shard, key)
    shard.restart()
    shard.enqueue(b"x", key=key or "a")
    assert shard.receive() == []
    resume(shard, key)
    shard.restart()
    assert payloads(shard.receive()) == [b"x"]
