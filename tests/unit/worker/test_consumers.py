"""Consumers: what they are sent, and what happens when they fall silent."""

import pytest

from fila_proto_zmq.commands import Delivered, Goodbye, Heartbeat, Receive, Subscribe, Unsubscribe, Verb
from fila_proto_zmq.errors import InvalidArgumentError, QueueNotFoundError
from fila_proto_zmq.limits import PREFETCH_MAX, WAIT_MS_MAX
from fila_worker.core.effects import Call
from tests.support.shard import Got, ShardHarness, opened

TIMEOUT_MS = 15_000


def payloads(got: list[Got]) -> list[bytes]:
    return [each.payload for each in got]


def numbered(count: int) -> list[bytes]:
    return [b"%d" % number for number in range(count)]


# --- subscriptions ----------------------------------------------------------------------------------------------------


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


@pytest.mark.parametrize("prefetch", [0, -1, PREFETCH_MAX + 1])
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


def test_goodbye_gives_back_everything_uncounted(shard: ShardHarness) -> None:
    shard.create("other")
    shard.enqueue(*numbered(4))
    shard.enqueue(b"x", queue="other")
    shard.subscribe(2)
    shard.receive(1)
    shard.receive(1, "other")
    shard.goodbye()
    assert (shard.counts(), shard.counts("other")) == ((4, 0, 0), (1, 0, 0))
    assert [(each.payload, each.attempts, each.error) for each in shard.receive(9, client=b"c2")] == [
        (payload, 0, "") for payload in numbered(4)
    ]
    assert shard.stats().expired == shard.stats().nacked == 0


def test_goodbye_leaves_the_others_alone(shard: ShardHarness) -> None:
    shard.enqueue(*numbered(4))
    shard.subscribe(2, client=b"c1")
    shard.subscribe(2, client=b"c2")
    held = shard.take_pushed(b"c2")
    shard.goodbye(b"c1")
    shard.ack(held)
    assert len(shard.take_pushed(b"c2")) == 2


def test_goodbye_ends_a_waiting_receive(shard: ShardHarness) -> None:
    waiting = shard.send(Receive(1, 60_000))
    shard.goodbye()
    shard.enqueue(b"")
    assert waiting not in shard.late
    assert shard.counts() == (1, 0, 0)


def test_goodbye_of_a_stranger_is_no_error(shard: ShardHarness) -> None:
    shard.ask(Goodbye(), client=b"stranger")


def test_what_was_given_back_by_goodbye_cannot_be_settled(shard: ShardHarness) -> None:
    shard.enqueue(b"")
    got = shard.receive()
    shard.goodbye()
    assert [fault.code for _, _, fault in shard.settle(Verb.ACK, got).faults] == ["LEASE_EXPIRED"]
    assert shard.counts() == (1, 0, 0)


def test_a_released_message_goes_back_to_its_place_uncounted(shard: ShardHarness) -> None:
    shard.enqueue(*numbered(4))
    got = shard.receive(3)
    shard.settle(Verb.RELEASE, got[:2])
    assert [(each.payload, each.attempts) for each in shard.receive(9)] == [(b"0", 0), (b"1", 0), (b"3", 0)]
    assert shard.stats().nacked == 0


# --- silence ----------------------------------------------------------------------------------------------------------


def test_a_silent_consumers_messages_go_to_others_as_failed_attempts(shard: ShardHarness) -> None:
    shard.enqueue(*numbered(3))
    shard.subscribe(3, client=b"silent")
    shard.pass_time(TIMEOUT_MS - 1)
    assert shard.counts() == (0, 3, 0)
    shard.pass_time(1)
    assert [(each.payload, each.attempts, each.error) for each in shard.receive(3)] == [
        (payload, 1, "consumer lost") for payload in numbered(3)
    ]


def test_a_lost_consumer_is_sent_nothing_more(shard: ShardHarness) -> None:
    shard.subscribe(3)
    shard.pass_time(TIMEOUT_MS)
    assert shard.stats().info.consumers == 0
    shard.enqueue(b"")
    assert shard.take_pushed() == []


def test_a_lost_consumer_cannot_settle(shard: ShardHarness) -> None:
    shard.enqueue(b"")
    got = shard.receive()
    shard.pass_time(TIMEOUT_MS)
    held = shard.receive(client=b"c2")
    assert [fault.code for _, _, fault in shard.settle(Verb.ACK, got).faults] == ["LEASE_EXPIRED"]
    shard.ack(held)


def test_a_lost_consumer_that_returns_is_a_consumer_again(shard: ShardHarness) -> None:
    shard.subscribe(3)
    shard.pass_time(TIMEOUT_MS)
    shard.subscribe(3)
    shard.enqueue(b"")
    assert len(shard.take_pushed()) == 1


@pytest.mark.parametrize(
    "sign_of_life",
    [Heartbeat(), Subscribe(1, 3), Receive(1, 0), Unsubscribe(9)],
    ids=lambda command: type(command).__name__,
)
def test_any_frame_keeps_its_client_alive(shard: ShardHarness, sign_of_life: object) -> None:
    shard.enqueue(b"")
    shard.subscribe(3)
    for _ in range(3):
        shard.pass_time(TIMEOUT_MS - 1)
        shard.send(sign_of_life)  # type: ignore[arg-type]
    assert shard.stats().info.consumers == 1


def test_a_refused_frame_keeps_its_client_alive_too(shard: ShardHarness) -> None:
    shard.subscribe(3)
    shard.pass_time(TIMEOUT_MS - 1)
    shard.send(Receive(0, 0))
    shard.pass_time(TIMEOUT_MS - 1)
    assert shard.stats().info.consumers == 1


def test_a_heartbeat_is_answered() -> None:
    """Every request is: whoever forwards one keeps it in mind until then."""
    shard = ShardHarness()
    assert shard.send(Heartbeat()) in shard.late


def test_a_lost_consumer_may_lose_many_messages_at_once(shard: ShardHarness) -> None:
    shard.enqueue(*numbered(3000))
    shard.subscribe(3000)
    shard.pass_time(0)
    assert len(shard.take_pushed()) == 3000
    shard.pass_time(TIMEOUT_MS)
    assert shard.counts() == (3000, 0, 0)


def test_an_attempt_that_ends_with_its_consumer_counts_towards_max_attempts() -> None:
    shard = ShardHarness()
    shard.create(max_attempts=1)
    shard.enqueue(b"")
    shard.receive()
    shard.pass_time(TIMEOUT_MS)
    (dead,) = shard.receive(queue="q.dlq")
    assert (dead.error, dead.record.extension.reason) == ("consumer lost", "max_attempts")


# --- receives ---------------------------------------------------------------------------------------------------------


def receive_later(shard: ShardHarness, count: int = 1, wait_ms: int = 5_000, client: bytes = b"c1") -> int:
    return shard.send(Receive(count, wait_ms), client=client)


def answered(shard: ShardHarness, request: int) -> list[bytes]:
    reply = shard.late.pop(request)
    assert isinstance(reply, Delivered)
    return payloads(opened(reply))


def test_a_receive_takes_what_is_ready_and_does_not_wait_for_more(shard: ShardHarness) -> None:
    shard.enqueue(b"0", b"1")
    assert answered(shard, receive_later(shard, count=10)) == [b"0", b"1"]


def test_a_receive_from_an_empty_queue_is_answered_with_nothing_at_once(shard: ShardHarness) -> None:
    assert answered(shard, receive_later(shard, wait_ms=0)) == []


def test_a_waiting_receive_is_answered_as_soon_as_something_comes(shard: ShardHarness) -> None:
    waiting = receive_later(shard)
    assert waiting not in shard.late
    shard.pass_time(3_000)
    shard.enqueue(b"0", b"1")
    assert answered(shard, waiting) == [b"0"]
    assert shard.counts() == (1, 1, 0)


def test_a_waiting_receive_is_answered_with_nothing_when_its_time_is_up(shard: ShardHarness) -> None:
    waiting = receive_later(shard, wait_ms=5_000)
    shard.pass_time(4_999)
    assert waiting not in shard.late
    assert shard.shard.next_due(shard.now_ms) == 1
    shard.pass_time(1)
    assert answered(shard, waiting) == []
    shard.enqueue(b"late")
    assert shard.counts() == (1, 0, 0)


def test_a_waiting_receive_sees_delayed_and_returned_messages(shard: ShardHarness) -> None:
    shard.enqueue(b"delayed", delay_ms=1_000)
    waiting = receive_later(shard)
    shard.pass_time(1_000)
    assert answered(shard, waiting) == [b"delayed"]


def test_waiting_receives_are_served_in_their_order(shard: ShardHarness) -> None:
    waiting = [receive_later(shard, client=b"c%d" % number) for number in range(3)]
    shard.enqueue(b"0", b"1")
    assert [answered(shard, request) for request in waiting[:2]] == [[b"0"], [b"1"]]
    assert waiting[2] not in shard.late


def test_one_client_may_wait_many_times(shard: ShardHarness) -> None:
    waiting = [receive_later(shard) for _ in range(3)]
    assert shard.stats().info.consumers == 1
    shard.enqueue(b"0", b"1", b"2")
    assert [answered(shard, request) for request in waiting] == [[b"0"], [b"1"], [b"2"]]


def test_a_repeated_receive_frame_is_one_receive(shard: ShardHarness) -> None:
    for _ in range(2):
        shard.shard.apply(Call(b"c1", 70, "q", shard.now_ms), Receive(1, 5_000))
    shard.turn()
    shard.enqueue(b"0", b"1")
    assert answered(shard, 70) == [b"0"]
    assert shard.counts() == (1, 1, 0)


def test_a_client_that_waits_for_long_has_to_send_heartbeats(shard: ShardHarness) -> None:
    waiting = receive_later(shard, wait_ms=60_000)
    for _ in range(5):
        shard.pass_time(10_000)
        shard.heartbeat()
    shard.enqueue(b"0")
    assert answered(shard, waiting) == [b"0"]
    forsaken = receive_later(shard, wait_ms=60_000)
    shard.pass_time(TIMEOUT_MS)
    shard.enqueue(b"1")
    assert forsaken not in shard.late
    assert shard.counts() == (2, 0, 0)


@pytest.mark.parametrize(
    ("command", "text"),
    [
        (Receive(0, 0), "receive of 0"),
        (Receive(-1, 0), "receive of -1"),
        (Receive(PREFETCH_MAX + 1, 0), "receive of 100001"),
        (Receive(1, -1), "wait of -1 ms"),
        (Receive(1, WAIT_MS_MAX + 1), "wait of 86400001 ms"),
    ],
)
def test_a_receive_out_of_bounds_is_refused(shard: ShardHarness, command: Receive, text: str) -> None:
    with pytest.raises(InvalidArgumentError, match=text):
        shard.ask(command)


def test_receiving_from_a_queue_that_does_not_exist_is_refused(shard: ShardHarness) -> None:
    with pytest.raises(QueueNotFoundError, match="'nowhere'.*queue create nowhere"):
        shard.receive(queue="nowhere")


# --- nothing piles up -------------------------------------------------------------------------------------------------


def test_receives_that_found_nothing_leave_nothing_behind(shard: ShardHarness) -> None:
    for _ in range(300):
        shard.receive()
    assert len(shard.shard.queues["q"].demands) < 10


def test_receives_that_found_nothing_do_not_slow_the_next_delivery_down(shard: ShardHarness) -> None:
    for _ in range(50):
        shard.receive()
    shard.subscribe(50)
    shard.enqueue(*numbered(50))
    got = shard.take_pushed()
    assert len(got) == 50
    assert len({each.lease for each in got}) == 1


def test_receives_that_were_answered_early_do_not_pile_up_until_their_deadline(shard: ShardHarness) -> None:
    shard.checked = False
    for _ in range(3000):
        waiting = receive_later(shard, wait_ms=WAIT_MS_MAX)
        shard.enqueue(b"")
        reply = shard.late.pop(waiting)
        assert isinstance(reply, Delivered)
        shard.ack(opened(reply))
    assert len(shard.shard.consumers.waiting) < 2000


def test_clients_that_come_and_go_are_forgotten(shard: ShardHarness) -> None:
    for number in range(50):
        shard.receive(client=b"c%d" % number)
    shard.pass_time(TIMEOUT_MS)
    assert len(shard.shard.consumers) == 0
    assert shard.shard.next_due(shard.now_ms) is None
