"""Limits on the messages that are leased at a time, as reasons: the first reason names the holders of the places."""

from fila_proto_zmq.commands import ListThrottles, ThrottleHolder, ThrottleStats, joined_throttles
from fila_proto_zmq.ids import client_name
from fila_worker.core.effects import ClientCall
from fila_worker.core.manage.throttles import list_throttles
from tests.support.shard.explained import first, text_of, these, why
from tests.support.shard.placed_shards import PlacedShards
from tests.support.shard.shard import ADMIN, ShardHarness

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


def test_a_throttle_key_whose_places_are_used_up_in_the_cluster() -> None:
    cluster = PlacedShards()
    cluster.limit("llm", 3)
    cluster.enqueue(2, 1, "llm")
    cluster.consume(2)
    cluster.enqueue(1, 9, "llm", fairness_key="acme")
    cluster[1].pass_time(1000)
    cluster.consume(1)
    for told in (why(cluster[1], key="acme"), why(cluster[1])):
        details = first(told, "concurrency")
        assert these(details, ["throttle_key", "limit", "in_use"]) == ["llm", 3, 3]
        assert [each["since_ms"] for each in details["holders"]] == [1_001_000] * 2
    assert "throttle key 'llm' has 3 messages leased of at most 3 (concurrency)" in text_of(cluster[1], key="acme")


def test_messages_that_nothing_stops_now_are_limited_by_places_all_the_same() -> None:
    cluster = PlacedShards()
    cluster.limit("llm", 3)
    cluster.enqueue(1, 9, "llm", fairness_key="acme")
    told = why(cluster[1])
    assert [each.code for each in told.reasons] == ["no_consumers", "limited"]
    limits = [{"throttle_key": "llm", "messages": 9, "rate": None, "tokens": None, "concurrency": 3}]
    assert told.reasons[1].details["limits"] == limits
    assert told.reasons[1].text.endswith("most of them 'llm': 3 at a time")


def test_the_statistics_of_a_queue_show_the_places_of_its_throttle_keys() -> None:
    cluster = PlacedShards()
    cluster.limit("llm", 2)
    cluster.enqueue(1, 9, "llm")
    cluster.consume(1)
    assert cluster[1].stats().throttles == [ThrottleStats("llm", None, None, None, 2, 2, 7)]


def test_one_throttle_key_with_all_that_hold_it_and_wait_for_it() -> None:
    cluster = PlacedShards()
    cluster.limit("llm", 3)
    cluster.enqueue(2, 1, "llm", fairness_key="beta")
    cluster.consume(2)
    cluster[1].pass_time(1000)
    cluster.enqueue(1, 9, "llm", fairness_key="acme")
    cluster.enqueue(1, 4, "llm", "other", fairness_key="beta")
    cluster.consume(1)
    cluster[1].create("once", delivery="at_most_once")
    cluster.enqueue(1, 5, "llm", queue="once")
    cluster[1].receive(5, "once")
    stations = [cluster[shard] for shard in range(cluster.count)]
    told = joined_throttles(
        list_throttles(each.shard, ClientCall(ADMIN, 1, "", each.now_ms), ListThrottles("llm", exact=True))
        for each in stations
    )
    assert told.throttles == [ThrottleStats("llm", concurrency=3, in_use=3, waiting=11)]
    (beta,), (first, second) = cluster.taken(2), cluster.taken(1)
    assert told.holders == [
        ThrottleHolder(beta.id, "q", "beta", client_name(b"consumer 2"), 1_000_000),
        *(ThrottleHolder(each.id, "q", each.key, client_name(b"consumer 1"), 1_001_000) for each in (first, second)),
    ]
    assert sum(each.pending for each in told.waiters) == 11
    assert [(each.queue, each.fairness_key) for each in told.waiters] == [("q", "acme"), ("q", "beta")]
    assert told.next == ""
