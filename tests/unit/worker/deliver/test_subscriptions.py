"""Subscriptions: what a consumer is sent, and how it leaves."""

import pytest

from fila_proto_zmq.commands import Unsubscribe, Verb
from fila_proto_zmq.errors import InvalidArgumentError, QueueNotFoundError
from fila_proto_zmq.limits import PREFETCH_MAX
from tests.support.shard.shard import Got, ShardHarness


def payloads(got: list[Got]) -> list[bytes]:
    return [each.payload for each in got]


def numbered(count: int) -> list[bytes]:
    return [b"%d" % number for number in range(count)]


def test_a_subscription_is_sent_what_is_there_and_what_comes(shard: ShardHarness) -> None:
    shard.enqueue(b"0", b"1")
    shard.subscribe(10)
    assert payloads(shard.take_pushed()) == [b"0", b"1"]
    shard.enqueue(b"2")
    assert payloads(shard.take_pushed()) == [b"2"]


def test_a_subscription_holds_at_most_its_prefetch(shard: ShardHarness) -> None:
    shard.enqueue(*numbered(10))
    shard.subscribe(4)
    got = shard.take_pushed()
    assert payloads(got) == numbered(4)
    assert shard.counts() == (6, 4, 0)
    shard.ack(got[:1])
    assert payloads(shard.take_pushed()) == [b"4"]


@pytest.mark.parametrize("verb", list(Verb))
def test_every_settlement_returns_credit(shard: ShardHarness, verb: Verb) -> None:
    shard.enqueue(*numbered(4))
    shard.subscribe(2)
    shard.settle(verb, shard.take_pushed())
    assert len(shard.take_pushed()) == 2


def test_an_expired_lease_returns_credit(shard: ShardHarness) -> None:
    shard.enqueue(b"", lease_ms=1_000)
    shard.subscribe(1)
    assert [each.attempts for each in shard.take_pushed()] == [0]
    shard.pass_time(1_000)
    assert [each.attempts for each in shard.take_pushed()] == [1]


def test_a_repeated_subscription_is_a_heartbeat_and_sends_nothing_twice(shard: ShardHarness) -> None:
    shard.enqueue(*numbered(3))
    shard.subscribe(3)
    shard.subscribe(3)
    assert len(shard.take_pushed()) == 3
    assert shard.stats().info.consumers == 1


def test_a_prefetch_can_be_raised_and_lowered(shard: ShardHarness) -> None:
    shard.enqueue(*numbered(10))
    shard.subscribe(2)
    shard.subscribe(5)
    got = shard.take_pushed()
    assert len(got) == 5
    shard.subscribe(1)
    shard.ack(got[:4])
    assert shard.take_pushed() == []
    shard.ack(got[4:])
    assert payloads(shard.take_pushed()) == [b"5"]


def test_subscriptions_of_several_clients_share(shard: ShardHarness) -> None:
    shard.subscribe(100, client=b"c1")
    shard.subscribe(100, client=b"c2")
    shard.enqueue(*numbered(100))
    counts = [len(shard.take_pushed(client)) for client in (b"c1", b"c2")]
    assert sum(counts) == 100
    assert min(counts) >= 25


def test_one_client_may_have_several_subscriptions(shard: ShardHarness) -> None:
    shard.create("other")
    shard.subscribe(10, number=1)
    shard.subscribe(10, number=2)
    shard.subscribe(10, queue="other", number=3)
    shard.enqueue(*numbered(10))
    shard.enqueue(b"x", queue="other")
    assert len(shard.take_pushed(number=1)) + len(shard.take_pushed(number=2)) == 10
    assert payloads(shard.take_pushed(number=3)) == [b"x"]
    assert shard.stats().info.consumers == 1


def test_the_same_subscription_number_of_another_client_is_another_subscription(shard: ShardHarness) -> None:
    shard.subscribe(1, client=b"c1")
    shard.subscribe(1, client=b"c2")
    shard.enqueue(*numbered(3))
    assert len(shard.take_pushed(b"c1")) == len(shard.take_pushed(b"c2")) == 1
    assert shard.stats().info.consumers == 2


def test_a_subscription_cannot_move_to_another_queue(shard: ShardHarness) -> None:
    shard.create("other")
    shard.subscribe(1)
    with pytest.raises(InvalidArgumentError, match="'q'"):
        shard.subscribe(1, queue="other")


@pytest.mark.parametrize("prefetch", [-1, PREFETCH_MAX + 1])
def test_a_prefetch_out_of_bounds_is_refused(shard: ShardHarness, prefetch: int) -> None:
    with pytest.raises(InvalidArgumentError, match=f"prefetch of {prefetch}"):
        shard.subscribe(prefetch)


def test_subscription_0_is_refused_because_it_stands_for_receives(shard: ShardHarness) -> None:
    with pytest.raises(InvalidArgumentError):
        shard.subscribe(1, number=0)


def test_subscribing_to_a_queue_that_does_not_exist_is_refused(shard: ShardHarness) -> None:
    with pytest.raises(QueueNotFoundError):
        shard.subscribe(1, queue="nowhere")


def test_a_dead_letter_queue_can_be_consumed(shard: ShardHarness) -> None:
    shard.enqueue(b"bad")
    shard.settle(Verb.FAIL, shard.receive())
    shard.subscribe(1, queue="q.dlq")
    assert payloads(shard.take_pushed()) == [b"bad"]


# --- leaving ----------------------------------------------------------------------------------------------------------


def test_after_unsubscribing_nothing_more_comes_and_what_is_held_stays(shard: ShardHarness) -> None:
    shard.enqueue(*numbered(3))
    shard.subscribe(1)
    got = shard.take_pushed()
    shard.ask(Unsubscribe(1))
    shard.ack(got)
    assert shard.take_pushed() == []
    assert shard.counts() == (2, 0, 0)
    assert shard.stats().info.consumers == 0


def test_unsubscribing_twice_or_from_nothing_is_no_error(shard: ShardHarness) -> None:
    shard.subscribe(1)
    for number in (1, 1, 7):
        shard.ask(Unsubscribe(number))
    shard.ask(Unsubscribe(1), client=b"stranger")


def test_a_new_subscription_of_the_same_number_counts_what_its_predecessor_left(shard: ShardHarness) -> None:
    shard.enqueue(*numbered(5))
    shard.subscribe(2)
    shard.ask(Unsubscribe(1))
    shard.subscribe(3)
    assert len(shard.take_pushed()) == 3


def test_a_released_message_goes_back_to_its_place_uncounted(shard: ShardHarness) -> None:
    shard.enqueue(*numbered(4))
    got = shard.receive(3)
    shard.settle(Verb.RELEASE, got[:2])
    assert [(each.payload, each.attempts) for each in shard.receive(9)] == [(b"0", 0), (b"1", 0), (b"3", 0)]
    assert shard.stats().nacked == 0
