"""A receive of no messages: it leases nothing, and is answered as soon as one could be delivered. And what answers say of weights."""

import pytest

from fila_proto_zmq.commands import (
    Delivered,
    Enqueue,
    Park,
    Pause,
    QueueOptions,
    Receive,
    Subscribe,
    Subscribed,
    UpdateQueue,
    Verb,
)
from fila_proto_zmq.record import seal_envelope
from tests.support.shard.cluster_of_shards import ClusterOfShards
from tests.support.shard.placed_shards import PlacedShards
from tests.support.shard.shard import ShardHarness, opened

NOTHING = Delivered(0, [])


def look(shard: ShardHarness, wait_ms: int = 60_000, client: bytes = b"looker") -> int:
    return shard.send(Receive(0, wait_ms), client=client)


def weight_of(shard: ShardHarness, wait_ms: int = 0) -> int:
    reply = shard.late.pop(look(shard, wait_ms))
    assert isinstance(reply, Delivered)
    assert not reply.batches
    return reply.weight


# --- looks ------------------------------------------------------------------------------------------------------------


def test_a_look_leases_nothing_and_is_answered_at_once_if_something_is_there(shard: ShardHarness) -> None:
    shard.enqueue(b"0", b"1")
    assert shard.late[look(shard)] == Delivered(0, [], weight=1)
    assert shard.counts() == (2, 0, 0)
    assert [each.attempts for each in shard.receive(9)] == [0, 0]


def test_a_look_waits_for_a_message(shard: ShardHarness) -> None:
    looks = [look(shard, client=b"%d" % each) for each in range(3)]
    assert not shard.late.keys() & set(looks)
    shard.pass_time(3_000)
    shard.enqueue(b"0")
    assert [shard.late[each] for each in looks] == [Delivered(0, [], weight=1)] * 3
    assert shard.counts() == (1, 0, 0)


def test_a_look_ends_with_its_time(shard: ShardHarness) -> None:
    assert shard.late[look(shard, wait_ms=0)] == NOTHING
    waiting = look(shard, wait_ms=5_000)
    shard.pass_time(4_999)
    assert waiting not in shard.late
    shard.pass_time(1)
    assert shard.late[waiting] == NOTHING
    assert not shard.shard.queues["q"].subscribers


def test_a_look_waits_until_a_delay_is_over(shard: ShardHarness) -> None:
    shard.enqueue(b"x", delay_ms=2_000)
    waiting = look(shard)
    shard.pass_time(1_999)
    assert waiting not in shard.late
    shard.pass_time(1)
    assert shard.late[waiting] == Delivered(0, [], weight=1)


def test_a_look_takes_nothing_from_consumers_in_line(shard: ShardHarness) -> None:
    first = look(shard, client=b"a")
    taker = shard.send(Receive(1, 60_000), client=b"b")
    last = look(shard, client=b"c")
    shard.enqueue(b"0")
    assert shard.late[first] == Delivered(0, [], weight=1)
    reply = shard.late[taker]
    assert isinstance(reply, Delivered)
    assert reply.batches
    assert last not in shard.late


def test_a_look_waits_while_the_queue_is_paused(shard: ShardHarness) -> None:
    shard.ask(Pause(True))
    shard.enqueue(b"x")
    waiting = look(shard)
    shard.pass_time(1_000)
    assert waiting not in shard.late
    shard.ask(Pause(False))
    assert waiting in shard.late


def test_a_look_waits_while_its_key_is_paused(shard: ShardHarness) -> None:
    shard.ask(Pause(True, "default"))
    shard.enqueue(b"x")
    waiting = look(shard)
    assert waiting not in shard.late
    shard.enqueue(b"y", key="other")
    assert waiting in shard.late


@pytest.mark.parametrize("option", ["max_in_flight", "max_in_flight_per_key"])
def test_a_look_waits_while_too_many_are_leased(shard: ShardHarness, option: str) -> None:
    shard.ask(UpdateQueue(QueueOptions(**{option: 1}), [option]))
    shard.enqueue(b"0", b"1")
    waiting = look(shard)
    assert waiting in shard.late
    got = shard.receive(1)
    waiting = look(shard)
    shard.pass_time(1_000)
    assert waiting not in shard.late
    shard.ack(got)
    assert waiting in shard.late
    assert shard.counts() == (1, 0, 0)


@pytest.mark.parametrize("lanes", [1, 2])
@pytest.mark.parametrize("cap", [None, 1, 5])
def test_a_look_waits_for_tokens_and_spends_none(lanes: int, cap: int | None) -> None:
    cluster = ClusterOfShards(1)
    cluster.create(0, max_in_flight_per_key=cap)
    cluster.limit("t", 1, 1)
    shard = cluster.shards[0]
    for lane in range(lanes):
        cluster.enqueue(0, 2, f"t set-{lane}")
    waiting = look(shard)
    assert waiting not in shard.late, "the bank is asked"
    cluster.run(1_500)
    assert waiting in shard.late
    assert shard.counts() == (2 * lanes, 0, 0)
    again = look(shard)
    cluster.run(100)
    assert again in shard.late, "the token is still there, or at the bank again"
    taker = shard.send(Receive(9, 60_000))
    cluster.run(100)
    reply = shard.late[taker]
    assert isinstance(reply, Delivered)
    got = opened(reply)
    assert len(got) == 1
    shard.ack(got)
    waiting = look(shard)
    cluster.run(400)
    assert waiting not in shard.late
    cluster.run(1_500)
    assert waiting in shard.late


def test_a_look_waits_while_the_throttle_key_is_parked(shard: ShardHarness) -> None:
    shard.ask(Enqueue([seal_envelope(b"x")], throttle_keys=[["t"]]))
    shard.shard.park(Park({"t": shard.now_ms + 5_000}).parks, shard.now_ms)
    waiting = look(shard)
    shard.pass_time(4_000)
    assert waiting not in shard.late
    shard.pass_time(1_500)
    assert waiting in shard.late


def test_a_look_waits_for_a_place() -> None:
    shards = PlacedShards(1)
    shards.limit("t", 1)
    shards.enqueue(0, 2, "t")
    shard = shards[0]
    waiting = look(shard)
    shards.pass_time(100)
    assert waiting in shard.late
    assert shard.counts() == (2, 0, 0)
    shards.consume(0, 1)
    shards.pass_time(2_000)
    got = shards.taken(0)
    assert len(got) == 1
    waiting = look(shard)
    shards.pass_time(1_000)
    assert waiting not in shard.late
    shard.subscribe(0, client=b"consumer 0")
    shards.ack(0, got)
    shards.pass_time(2_000)
    assert waiting in shard.late
    assert shard.counts() == (1, 0, 0)


def test_a_repeated_look_is_one(shard: ShardHarness) -> None:
    shard.requests = 6
    look(shard)
    shard.requests = 6
    waiting = look(shard)
    shard.enqueue(b"x")
    assert waiting in shard.late


def test_a_look_of_a_queue_that_delivers_at_most_once_removes_nothing(shard: ShardHarness) -> None:
    shard.ask(UpdateQueue(QueueOptions(delivery="at_most_once"), ["delivery"]))
    shard.enqueue(b"x")
    assert look(shard) in shard.late
    assert shard.counts() == (1, 0, 0)


# --- weights ----------------------------------------------------------------------------------------------------------


def test_an_answer_says_the_weights_of_the_keys_that_may_deliver(shard: ShardHarness) -> None:
    assert weight_of(shard) == 0
    shard.enqueue(b"a", b"b", key="a", weight=3)
    shard.enqueue(b"a", key="b")
    assert weight_of(shard) == 4
    shard.enqueue(b"a", key="b", weight=5)
    assert weight_of(shard) == 8
    shard.ask(Pause(True, "a"))
    assert weight_of(shard) == 5
    shard.enqueue(b"a", key="a", weight=7)
    assert weight_of(shard) == 5
    shard.ask(Pause(False, "a"))
    assert weight_of(shard) == 12
    shard.ask(Pause(True))
    assert weight_of(shard) == 0
    shard.restart()
    shard.ask(Pause(False))
    assert weight_of(shard) == 12


def test_a_key_that_has_no_more_leaves(shard: ShardHarness) -> None:
    shard.enqueue(b"a", b"b", key="a", weight=3)
    shard.enqueue(b"a", key="b", weight=2)
    said = []
    for _ in range(3):
        reply = shard.ask(Receive(1, 0))
        assert isinstance(reply, Delivered)
        said.append((reply.batches[0].fairness_key, reply.weight))
    assert said == [("a", 5), ("a", 2), ("b", 0)]


def test_an_answer_that_is_repeated_says_the_weight_again(shard: ShardHarness) -> None:
    shard.enqueue(b"a", b"b", key="a", weight=3)
    first = shard.ask(Receive(1, 0))
    shard.requests -= 1
    assert shard.ask(Receive(1, 0)) == first
    assert isinstance(first, Delivered)
    assert first.weight == 3


def test_a_key_at_its_cap_leaves(shard: ShardHarness) -> None:
    shard.ask(UpdateQueue(QueueOptions(max_in_flight_per_key=1), ["max_in_flight_per_key"]))
    shard.enqueue(b"a", b"b", key="a", weight=3)
    shard.enqueue(b"a", b"b", key="b", weight=2)
    got = shard.receive(1)
    assert weight_of(shard) == 2
    shard.ack(got)
    assert weight_of(shard) == 5


# --- a subscription that only renews ----------------------------------------------------------------------------------


def test_a_subscription_with_prefetch_0_gets_nothing_and_renews_its_leases(shard: ShardHarness) -> None:
    shard.enqueue(b"0", b"1")
    shard.subscribe(1)
    (got,) = shard.take_pushed()
    for _ in range(10):
        shard.pass_time(10_000)
        reply = shard.ask(Subscribe(1, 0, [got.lease]))
        assert isinstance(reply, Subscribed)
        assert not reply.gone
    assert (shard.take_pushed(), shard.counts()) == ([], (1, 1, 0))
    shard.ack([got])
    shard.subscribe(1)
    assert [each.payload for each in shard.take_pushed()] == [b"1"]


def test_a_subscription_that_begins_with_prefetch_0_holds_what_was_received(shard: ShardHarness) -> None:
    shard.enqueue(b"0")
    (got,) = shard.receive(1)
    for _ in range(10):
        shard.pass_time(10_000)
        shard.ask(Subscribe(3, 0, [got.lease]))
    assert not shard.settle(Verb.ACK, [got]).faults
