"""Why a cap or a strict order holds a message up: the first reason names each situation, with its numbers."""

from fila_proto_zmq.commands import (
    Verb,
)
from fila_proto_zmq.ids import client_name
from tests.support.shard.explained import first, text_of, these, why
from tests.support.shard.shard import ShardHarness

C1 = client_name(b"c1")


def ordered(cap: int = 1) -> ShardHarness:
    shard = ShardHarness()
    shard.create("q", max_in_flight_per_key=cap)
    return shard


def test_behind_a_stuck_message_in_strict_order() -> None:
    shard = ordered()
    stuck, _, message = shard.enqueue(*[b"m"] * 3, key="acme")
    shard.receive()
    shard.pass_time(10_000)
    for told in (why(shard, message), why(shard, key="acme")):
        details = first(told, "ordered_behind")
        names = ["fairness_key", "message_id", "waits_for", "leased_ms", "expires_ms"]
        assert these(details, names) == ["acme", stuck, "lease", 1_000_000, 1_030_000]
        assert (told.reasons[0].until_ms, told.estimated_ms) == (1_030_000, 0)
    assert why(shard, message).position == 1
    assert f"and message {stuck} is first: leased by client {C1} for 10.0 s" in text_of(shard, message)
    assert first(why(shard), "ordered_behind")["messages"] == 2


def test_behind_a_message_that_waits_for_its_retry() -> None:
    shard = ordered()
    stuck, message = shard.enqueue(b"1", b"2")
    shard.subscribe(5)
    shard.settle(Verb.RETRY, shard.take_pushed(), after_ms=9000, error="boom")
    told = why(shard, message)
    assert these(first(told, "ordered_behind"), ["message_id", "waits_for", "error"]) == [stuck, "retry", "boom"]
    assert told.reasons[0].until_ms == 1_009_000
    assert why(shard, stuck).estimated_ms == 1_009_000


def test_a_cap_that_is_reached() -> None:
    shard = ordered(3)
    messages = shard.enqueue(*[b"m"] * 6, key="acme")
    shard.subscribe(10)
    got = shard.take_pushed()
    shard.settle(Verb.RETRY, got[:1], after_ms=90_000)
    shard.pass_time(1000)
    told = why(shard, messages[-1])
    details = first(told, "in_flight_cap")
    assert these(details, ["fairness_key", "in_flight", "max_in_flight", "retrying"]) == ["acme", 3, 3, 1]
    assert (told.reasons[0].until_ms, told.position) == (1_030_000, 2)
    assert "has 3 of at most 3 in flight (max_in_flight_per_key): 2 leased" in told.reasons[0].text
    assert these(first(why(shard), "in_flight_cap"), ["keys", "messages"]) == [1, 3]
