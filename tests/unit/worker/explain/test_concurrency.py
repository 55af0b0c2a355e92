"""Limits on the messages that are leased at a time, as reasons: the first reason names the holders of the places."""

from fila_proto_zmq.ids import client_name
from tests.support.shard.explained import first, text_of, these, why
from tests.support.shard.shard import ShardHarness

C1 = client_name(b"c1")


def test_a_queue_that_has_its_maximum_leased() -> None:
    shard = ShardHarness()
    shard.create("q", max_in_flight=3)
    messages = shard.enqueue(*[b"m"] * 9, key="acme")
    shard.receive(2)
    shard.pass_time(10_000)
    shard.receive(9, client=b"c2")
    shard.pass_time(1000)
    holders = [{"message_id": messages[at], "consumer": C1, "since_ms": 1_000_000} for at in (0, 1)]
    holders.append({"message_id": messages[2], "consumer": client_name(b"c2"), "since_ms": 1_010_000})
    for told in (why(shard, messages[-1]), why(shard, key="acme"), why(shard)):
        assert these(first(told, "concurrency"), ["queue", "limit", "in_use", "holders"]) == ["q", 3, 3, holders]
        assert (told.reasons[0].until_ms, told.estimated_ms) == (1_030_000, 0)
    text = text_of(shard, messages[-1])
    assert f"the longest is message {messages[0]}, leased by client {C1} for 11.0 s" in text


def test_the_longest_holders_are_named_and_not_more_of_them() -> None:
    shard = ShardHarness()
    shard.create("q", max_in_flight=20)
    messages = shard.enqueue(*[b"m"] * 30)
    for count in (1, 19):
        shard.receive(count)
        shard.pass_time(1000)
    holders = first(why(shard), "concurrency")["holders"]
    assert [each["message_id"] for each in holders] == messages[:5]


def test_a_queue_with_a_free_place_has_no_such_reason() -> None:
    shard = ShardHarness()
    shard.create("q", max_in_flight=2)
    shard.enqueue(b"1", b"2")
    shard.receive()
    assert "concurrency" not in [each.code for each in why(shard).reasons]
