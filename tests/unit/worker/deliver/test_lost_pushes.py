"""Deliveries that never reach their client: they go back uncounted, and nothing goes back that has reached it."""

import pytest

from fila_proto_zmq.commands import (
    CancelReceive,
    Delivered,
    Goodbye,
    QueueOptions,
    Receive,
    Subscribe,
    Subscribed,
    Unsubscribe,
    UpdateQueue,
    Verb,
)
from fila_proto_zmq.errors import InvalidArgumentError, OverloadedError
from fila_proto_zmq.limits import FENCES_MAX, HELD_MAX
from fila_worker.core.effects import ClientCall
from fila_worker.core.settings import Limits, ShardSettings
from tests.support.shard.shard import Got, ShardHarness, opened


@pytest.fixture
def shard() -> ShardHarness:
    harness = ShardHarness()
    harness.create(max_attempts=1)
    return harness


def say(
    shard: ShardHarness, incarnation: int | None, *holds: int, prefetch: int = 10, renew: tuple[int, ...] = ()
) -> Subscribed:
    """What a client says of its only subscription, and what it hears."""
    answer = shard.ask(Subscribe(1, prefetch, list(renew), incarnation, list(holds)))
    assert isinstance(answer, Subscribed)
    return answer


def numbered(count: int) -> list[bytes]:
    return [b"%d" % number for number in range(count)]


def seen(got: list[Got]) -> list[tuple[bytes, int]]:
    return [(each.payload, each.attempts) for each in got]


def test_a_client_has_a_bounded_number_of_subscriptions() -> None:
    shard = ShardHarness(settings=ShardSettings(limits=Limits(client_subscriptions_max=2)))
    shard.create()
    for number in (1, 2):
        assert isinstance(shard.ask(Subscribe(number, 1)), Subscribed)
    with pytest.raises(OverloadedError, match="2 of them of this client"):
        shard.ask(Subscribe(3, 1))
    assert isinstance(shard.ask(Subscribe(2, 5)), Subscribed), "those that are open go on"
    shard.ask(Unsubscribe(1))
    assert isinstance(shard.ask(Subscribe(3, 1)), Subscribed)


def test_clients_share_a_bounded_number_of_subscriptions() -> None:
    shard = ShardHarness(settings=ShardSettings(limits=Limits(subscriptions_max=6)))
    shard.create()

    def opened_by(client: bytes, numbers: range) -> int:
        """How many subscriptions a client gets, one after the other."""
        for count, number in enumerate(numbers):
            try:
                shard.ask(Subscribe(number, 1), client=client)
            except OverloadedError:
                return count
        return len(numbers)

    assert opened_by(b"c1", range(1, 3)) == 2
    assert opened_by(b"c2", range(1, 9)) == 3, "half of all"
    assert opened_by(b"c3", range(1, 9)) == 1, "none is left"
    assert opened_by(b"c1", range(3, 9)) == 0
    shard.goodbye(b"c2")
    assert opened_by(b"c1", range(3, 9)) == 1


# --- pushes -----------------------------------------------------------------------------------------------------------


def test_on_a_new_connection_what_is_not_named_comes_again_uncounted(shard: ShardHarness) -> None:
    first = say(shard, 0, prefetch=1)
    shard.enqueue(b"lost")
    (lost,) = shard.take_pushed()
    second = say(shard, 0, prefetch=1)
    assert second.incarnation > lost.lease > first.incarnation
    assert second.pushes == 0
    assert seen(shard.take_pushed()) == [(b"lost", 0)]
    assert say(shard, second.incarnation, prefetch=1).pushes == 1


@pytest.mark.parametrize("renewed", [False, True])
def test_what_is_named_stays(shard: ShardHarness, renewed: bool) -> None:
    say(shard, 0)
    shard.enqueue(b"held", lease_ms=40_000)
    (held,) = shard.take_pushed()
    shard.pass_time(14_000)
    say(shard, 0, *([] if renewed else [held.lease]), renew=(held.lease,) if renewed else ())
    assert shard.take_pushed() == []
    shard.ack([held])
    assert shard.counts() == (0, 0, 0)


def test_a_push_that_crosses_what_is_said_is_leased_once_at_a_time(shard: ShardHarness) -> None:
    """The client ignores what is pushed until it is answered: so the broker may take it back."""
    say(shard, 0)
    shard.enqueue(b"x")
    shard.enqueue(b"y")
    shard.take_pushed()
    answer = say(shard, 0)
    assert seen(shard.take_pushed()) == [(b"x", 0), (b"y", 0)]
    assert say(shard, answer.incarnation).incarnation == answer.incarnation
    assert shard.take_pushed() == []


def test_a_heartbeat_does_not_take_back_what_is_under_way(shard: ShardHarness) -> None:
    incarnation = say(shard, 0).incarnation
    shard.enqueue(b"x")
    assert len(shard.take_pushed()) == 1
    for _ in range(3):
        assert say(shard, incarnation).pushes == 1
    assert shard.take_pushed() == []


def test_it_counts_the_pushes_of_this_incarnation(shard: ShardHarness) -> None:
    incarnation = say(shard, 0).incarnation
    for _ in range(3):
        shard.enqueue(b"x")
    assert say(shard, incarnation).pushes == 3


def test_who_says_nothing_of_incarnations_loses_nothing(shard: ShardHarness) -> None:
    shard.subscribe(10)
    shard.enqueue(b"x")
    shard.take_pushed()
    say(shard, None)
    assert shard.take_pushed() == []


def test_a_frame_that_was_overtaken_is_not_heeded(shard: ShardHarness) -> None:
    say(shard, 0)
    old = shard.requests
    incarnation = say(shard, 0).incarnation
    shard.enqueue(b"x")
    (held,) = shard.take_pushed()
    shard.shard.apply(ClientCall(b"c1", old, "q", shard.now_ms), Subscribe(1, 5, [], 0))
    shard.turn()
    assert shard.late.pop(old) == Subscribed(incarnation, 1)
    assert shard.take_pushed() == []
    shard.ack([held])


def test_a_frame_that_the_end_of_its_subscription_overtook_opens_none(shard: ShardHarness) -> None:
    shard.requests += 1
    old = shard.requests
    shard.ask(Unsubscribe(1, []))
    shard.enqueue(b"x")
    shard.shard.apply(ClientCall(b"c1", old, "q", shard.now_ms), Subscribe(1, 5, [], 0))
    shard.turn()
    assert shard.late.pop(old) == Subscribed()
    assert shard.counts() == (1, 0, 0)
    assert say(shard, 0).incarnation, "a later frame opens it again"


def test_it_names_the_leases_that_ended(shard: ShardHarness) -> None:
    incarnation = say(shard, 0).incarnation
    shard.enqueue(*numbered(2))
    got = shard.take_pushed()
    assert say(shard, incarnation, got[0].lease, renew=(77,)).gone == [77]
    shard.ack(got)
    assert say(shard, incarnation, 78, renew=(got[0].lease,)).gone == [got[0].lease, 78]


# --- over a restart ---------------------------------------------------------------------------------------------------


def test_after_a_restart_what_never_came_is_taken_back_with_the_second_word(shard: ShardHarness) -> None:
    """With the first one it may still be on its way."""
    before = say(shard, 0)
    shard.enqueue(b"held")
    shard.enqueue(b"lost")
    held, lost = shard.take_pushed()
    shard.restart()
    first = say(shard, before.incarnation, held.lease)
    assert first.incarnation > lost.lease
    assert shard.take_pushed() == []
    assert shard.counts() == (0, 2, 0)
    assert say(shard, first.incarnation, held.lease).incarnation == first.incarnation
    assert seen(shard.take_pushed()) == [(b"lost", 0)]
    shard.ack([held])


def test_after_a_restart_and_on_a_new_connection_one_word_is_enough(shard: ShardHarness) -> None:
    say(shard, 0)
    shard.enqueue(b"lost")
    shard.take_pushed()
    shard.restart()
    say(shard, 0)
    assert seen(shard.take_pushed()) == [(b"lost", 0)]


def test_what_counts_as_held_after_a_restart_takes_credit_until_then(shard: ShardHarness) -> None:
    before = say(shard, 0, prefetch=1)
    shard.enqueue(b"held")
    shard.enqueue(b"next")
    (held,) = shard.take_pushed()
    shard.restart()
    after = say(shard, before.incarnation, held.lease, prefetch=1)
    say(shard, after.incarnation, held.lease, prefetch=1)
    assert shard.take_pushed() == []


# --- how much, and whose ----------------------------------------------------------------------------------------------


def test_many_go_back_in_bounded_turns() -> None:
    shard = ShardHarness(settings=ShardSettings(limits=Limits(unseen_messages_max=2)))
    shard.create()
    say(shard, 0)
    for payload in numbered(7):
        shard.enqueue(payload)
    shard.take_pushed()
    shard.send(Subscribe(1, 1, [], 0))
    assert shard.counts()[1] > 4
    shard.pass_time(0)
    assert shard.counts() == (6, 1, 0)
    assert seen(shard.take_pushed()) == [(b"0", 0)]


def test_leases_of_receives_and_of_other_subscriptions_are_left_alone(shard: ShardHarness) -> None:
    shard.enqueue(*numbered(1))
    shard.receive(1)
    shard.ask(Subscribe(2, 10, [], 0))
    shard.enqueue(b"of the other")
    assert len(shard.take_pushed(number=2)) == 1
    say(shard, 0)
    shard.pass_time(0)
    assert shard.take_pushed() == shard.take_pushed(number=2) == []
    assert shard.counts() == (0, 2, 0)


def test_a_lease_that_ends_before_its_turn_comes_is_passed_over() -> None:
    shard = ShardHarness(settings=ShardSettings(limits=Limits(unseen_messages_max=1)))
    shard.create()
    say(shard, 0)
    for payload in numbered(3):
        shard.enqueue(payload)
    got = shard.take_pushed()
    shard.send(Subscribe(1, 1, [], 0))
    shard.settle(Verb.ACK, got[1:])
    shard.pass_time(0)
    assert shard.counts()[0] + shard.counts()[1] == 1


def test_leaving_gives_back_what_is_not_named(shard: ShardHarness) -> None:
    say(shard, 0)
    shard.enqueue(b"held")
    shard.enqueue(b"lost")
    held, _ = shard.take_pushed()
    shard.ask(Unsubscribe(1, [held.lease]))
    assert shard.counts() == (1, 1, 0)
    assert seen(shard.receive(9, client=b"c2")) == [(b"lost", 0)]
    shard.ack([held])


def test_leaving_after_a_restart_does_too(shard: ShardHarness) -> None:
    say(shard, 0)
    shard.enqueue(b"lost")
    shard.take_pushed()
    shard.restart()
    shard.ask(Unsubscribe(1, []))
    assert shard.counts() == (1, 0, 0)


# --- receives ---------------------------------------------------------------------------------------------------------


def receive(shard: ShardHarness, request: int, count: int = 5, client: bytes = b"c1") -> list[Got]:
    """What a receive with this number is answered."""
    shard.shard.apply(ClientCall(client, request, "q", shard.now_ms), Receive(count))
    shard.turn()
    answer = shard.late.pop(request)
    assert isinstance(answer, Delivered)
    return opened(answer)


@pytest.mark.parametrize("restarted", [False, True])
def test_a_repeated_receive_is_answered_with_the_same_leases(shard: ShardHarness, restarted: bool) -> None:
    shard.enqueue(*numbered(2), key="a")
    shard.enqueue(b"2", key="b", lease_ms=5_000)
    first = receive(shard, 900, 3)
    shard.enqueue(b"late")
    if restarted:
        shard.restart()
    shard.pass_time(1_000)
    again = receive(shard, 900, 3)
    assert [(got.lease, got.index, got.key, got.payload) for got in again] == [
        (got.lease, got.index, got.key, got.payload) for got in first
    ]
    assert [got.expires_ms for got in again] == [got.expires_ms + 1_000 for got in first]  # nobody had them until now
    shard.ack(again)
    assert seen(receive(shard, 901)) == [(b"late", 0)]


def test_a_lease_that_starts_again_by_a_clock_that_was_set_back_ends_in_time(shard: ShardHarness) -> None:
    shard.enqueue(b"0")
    receive(shard, 900)
    shard.now_ms -= 10_000
    shard.restart()
    (again,) = receive(shard, 900)
    shard.shard.check()
    assert again.expires_ms == shard.now_ms + 30_000
    shard.pass_time(30_000)
    assert not shard.shard.leases.leases


def test_a_receive_whose_messages_ended_is_a_new_one(shard: ShardHarness) -> None:
    shard.enqueue(*numbered(2))
    shard.ack(receive(shard, 900, 2)[:1])
    shard.enqueue(b"new")
    assert seen(receive(shard, 900)) == [(b"new", 0)]


def test_the_same_number_of_another_client_is_another_receive(shard: ShardHarness) -> None:
    shard.enqueue(*numbered(2))
    assert seen(receive(shard, 900, 1)) == [(b"0", 0)]
    assert seen(receive(shard, 900, 1, b"c2")) == [(b"1", 0)]


@pytest.mark.parametrize("restarted", [False, True])
def test_what_a_receive_was_granted_goes_back_if_it_is_not_taken(shard: ShardHarness, restarted: bool) -> None:
    shard.enqueue(*numbered(2))
    got = receive(shard, 900, 2)
    if restarted:
        shard.restart()
    shard.ask(CancelReceive(900))
    assert shard.counts() == (0, 2, 0)
    for _ in range(2):
        shard.ask(CancelReceive(900, release=True))
        assert shard.counts() == (2, 0, 0)
    assert shard.settle(Verb.RELEASE, got).faults == []  # the answer came, after all
    assert seen(shard.receive(9)) == [(b"0", 0), (b"1", 0)]


def test_a_stranger_gives_nothing_back(shard: ShardHarness) -> None:
    shard.enqueue(b"x")
    receive(shard, 900)
    shard.ask(CancelReceive(900, release=True), client=b"c2")
    assert shard.counts() == (0, 1, 0)


# --- what is delivered at most once -----------------------------------------------------------------------------------


@pytest.fixture
def once() -> ShardHarness:
    harness = ShardHarness()
    harness.create(delivery="at_most_once")  # type: ignore[arg-type]
    say(harness, 0)
    return harness


def test_what_was_lost_comes_and_what_was_taken_does_not(once: ShardHarness) -> None:
    once.enqueue(b"taken")
    once.enqueue(b"lost")
    taken, _ = once.take_pushed()
    say(once, 0, taken.lease)
    assert seen(once.take_pushed()) == [(b"lost", 0)]


def test_a_goodbye_gives_back_all_but_what_was_taken(once: ShardHarness) -> None:
    once.enqueue(*numbered(3))
    once.enqueue(b"3")
    got = once.take_pushed()
    once.ask(Goodbye([(got[0].lease, [0, 1, 99]), (77, [])]))
    assert seen(once.receive(9, client=b"c2")) == [(b"2", 0), (b"3", 0)]
    once.restart()
    assert once.counts() == (0, 0, 0)


def test_a_goodbye_takes_away_nothing_that_is_delivered_at_least_once(shard: ShardHarness) -> None:
    shard.enqueue(b"x")
    (got,) = shard.receive()
    shard.ask(UpdateQueue(QueueOptions(delivery="at_most_once"), ["delivery"]))
    shard.ask(Goodbye([(got.lease, [])]))
    assert shard.counts() == (1, 0, 0)


def test_what_names_more_leases_than_anybody_can_hold_is_refused(shard: ShardHarness) -> None:
    shard.subscribe(5)
    shard.enqueue(b"x")
    most = [*range(1, HELD_MAX + 1)]
    for command in (Subscribe(1, 5, most, 0, [7]), Subscribe(2, 5, [7], 0, most), Unsubscribe(1, [*most, 7])):
        with pytest.raises(InvalidArgumentError, match=f"name at most {HELD_MAX:,}"):
            shard.ask(command)
    with pytest.raises(InvalidArgumentError, match=f"name at most {FENCES_MAX:,}"):
        shard.ask(Goodbye([(lease, []) for lease in range(FENCES_MAX + 1)]))
    assert shard.counts() == (0, 1, 0), "nothing was given back, nothing was opened"
    assert shard.stats().info.consumers == 1
