"""Receiving, subscriptions, heartbeats, and giving back."""

import pytest

from fila_cluster.client.protocol.lease import NO_LEASE
from fila_cluster.client.protocol.settling import ACK
from fila_cluster.errors import (
    FilaError,
    LeaseExpiredError,
    QueueNotFoundError,
    RequestTimeoutError,
    ShardUnavailableError,
    UnauthenticatedError,
)
from fila_proto_zmq.codec import to_fault
from fila_proto_zmq.commands import (
    Delivered,
    Done,
    Extend,
    Extended,
    Goodbye,
    Heartbeat,
    Hello,
    Receive,
    Settle,
    Settled,
    Subscribe,
    Unsubscribe,
    Verb,
    Welcome,
)
from tests.unit.client.peer import BORN_MS, Peer, batch, give_up

CLOSED = FilaError("closed")


@pytest.fixture
def peer():
    return Peer()


def subscribe(peer, queue="q", prefetch=10, *, auto_extend=True, confirmed=True):
    subscription = peer.session.subscribe(queue, prefetch, peer.now, auto_extend=auto_extend)
    if confirmed:
        peer.reply(peer.one(Subscribe), Done())
    return subscription


def take(subscription, count):
    return [subscription.ready.popleft() for _ in range(count)]


def confirm_all(peer):
    """Answer what the client has sent."""
    for sent in peer.sent():
        peer.reply(sent, Settled() if isinstance(sent.command, Settle) else Done())


def beat(peer):
    """The next heartbeat of the only subscription."""
    peer.now = peer.session.heartbeat_at
    return peer.one(Subscribe)


# --- receive ----------------------------------------------------------------------------------------------------------


def test_a_receive_waits_longer_than_other_calls(peer):
    call = peer.session.receive({"q": 5}, 10_000, peer.now)
    assert peer.one(Receive).command == Receive(5, 10_000)
    peer.advance(14.9)
    peer.sent()
    assert not call.done
    peer.advance(0.1)
    peer.sent()
    with pytest.raises(RequestTimeoutError):
        call.outcome()


def test_what_arrives_for_a_receive_that_was_given_up_goes_back(peer):
    call = peer.session.receive({"q": 5}, 0, peer.now)
    sent = peer.one(Receive)
    peer.session.give_up(call, peer.now)
    peer.reply(sent, Delivered(0, [batch(7, 2), batch(0, 1)]))
    assert peer.one(Settle).command == Settle(Verb.RELEASE, [(7, [])])


def test_what_arrives_after_the_timeout_goes_back(peer):
    peer.session.receive({"q": 5}, 0, peer.now)
    sent = peer.one(Receive)
    peer.advance(5)
    peer.sent()
    peer.reply(sent, Delivered(0, [batch(7, 2)]))
    assert (peer.one(Settle).command.verb, sent.key) == (Verb.RELEASE, "q")


def test_what_arrived_for_a_caller_that_is_gone_goes_back(peer):
    call = peer.session.receive({"q": 5}, 0, peer.now)
    peer.reply(peer.one(Receive), Delivered(0, [batch(7, 2)]))
    peer.session.give_up(call, peer.now)
    assert peer.one(Settle).command == Settle(Verb.RELEASE, [(7, [])])


def test_received_leases_keep_their_shard_informed_but_are_not_renewed(peer):
    (first, *rest) = peer.receive("q", batch(7, 2)) + peer.receive("q.dlq", batch(8)) + peer.receive("other", batch(9))
    peer.now = peer.session.heartbeat_at
    assert peer.now <= 1000 + 15 / 3
    assert sorted((sent.key, type(sent.command)) for sent in peer.sent()) == [("other", Heartbeat), ("q", Heartbeat)]
    give_up(first, *rest)


def test_heartbeats_end_with_the_last_lease(peer):
    deliveries = peer.receive("q", batch(7, 2))
    peer.session.settle(deliveries, ACK)
    peer.reply(peer.one(Settle), Settled())
    peer.advance(10)
    assert peer.sent() == []
    assert peer.session.heartbeat_at == float("inf")


def test_a_forgotten_delivery_stays_leased_until_its_time_is_up(peer):
    """The client that got it lives, so its shard must not count it as lost."""
    deliveries = peer.receive("q", batch(7, 2))
    (lease,) = {delivery._lease for delivery in deliveries}
    for _ in deliveries:
        peer.session.forgotten.append(lease)
    give_up(*deliveries)
    until = peer.now + lease.renewal_ms / 1000
    while peer.session.heartbeat_at < until:
        peer.now = peer.session.heartbeat_at
        beat = peer.one(Heartbeat)
        assert beat.key == "q"
        peer.reply(beat, Done())
    peer.advance(until - peer.now + 10)
    assert peer.sent() == []
    assert peer.session.heartbeat_at == float("inf")


def test_extending(peer):
    (delivery,) = peer.receive("q", batch(7))
    call = peer.session.extend(delivery, 60_000, peer.now)
    sent = peer.one(Extend)
    assert sent.command == Extend([(7, [0])], 60_000)
    peer.reply(sent, Extended(BORN_MS + 90_000))
    call.outcome()
    assert delivery.lease_expires_at.timestamp() * 1000 == BORN_MS + 90_000
    give_up(delivery)


def test_extending_too_late(peer):
    (delivery,) = peer.receive("q", batch(7))
    call = peer.session.extend(delivery, 60_000, peer.now)
    peer.reply(peer.one(Extend), Extended(0, [(7, 0, to_fault(LeaseExpiredError("too late")))]))
    with pytest.raises(LeaseExpiredError, match="too late"):
        call.outcome()
    give_up(delivery)


# --- subscriptions ----------------------------------------------------------------------------------------------------


def test_subscribing_is_said_at_once(peer):
    subscribe(peer, prefetch=7, confirmed=False)
    sent = peer.one(Subscribe)
    assert (sent.key, sent.command) == ("q", Subscribe(1, 7, [], 0))


def test_pushes_find_their_subscription_and_wake_who_waits(peer):
    first, second = subscribe(peer, "a"), subscribe(peer, "b")
    wanted = first.want(), second.want()
    peer.push("b", 2, batch(7, 2), batch(8, 1))
    assert [pending.done for pending in wanted] == [False, True]
    assert [delivery.queue for delivery in second.ready] == ["b"] * 3
    assert second.want().done
    give_up(*second.ready)


def test_a_heartbeat_renews_what_is_held_and_nothing_else(peer):
    subscription = subscribe(peer)
    peer.push("q", 1, batch(7, 2), batch(8, 2))
    held = take(subscription, 2)
    peer.session.settle(held, ACK)
    peer.reply(peer.one(Settle), Settled())
    assert beat(peer).command == Subscribe(1, 10, [8], 0)
    give_up(*subscription.ready)


def test_without_auto_extend_nothing_is_renewed_but_all_is_named(peer):
    subscription = subscribe(peer, auto_extend=False)
    peer.push("q", 1, batch(7, 2))
    assert beat(peer).command == Subscribe(1, 10, [], 0, [7])
    give_up(*subscription.ready)


@pytest.mark.parametrize(("duration_ms", "interval_s"), [(30_000, 2.0), (900, 0.3), (30, 0.05)])
def test_heartbeats_come_three_times_within_the_shortest_lease(peer, duration_ms, interval_s):
    subscription = subscribe(peer)
    peer.push("q", 1, batch(7, 1), batch(8, 1, duration_ms=duration_ms))
    assert peer.session.heartbeat_at == pytest.approx(peer.now + interval_s)
    beat(peer)
    assert peer.session.heartbeat_at == pytest.approx(peer.now + interval_s)
    give_up(*subscription.ready)


def test_heartbeats_come_three_times_within_the_broker_s_patience():
    peer = Peer(connected=False)
    (hello,) = peer.sent()
    peer.reply(hello, Welcome(1, "0.0", 1, 900))
    subscribe(peer)
    assert peer.session.heartbeat_at == pytest.approx(peer.now + 0.3)


def test_a_queue_that_does_not_exist_ends_the_subscription(peer):
    subscription = subscribe(peer, confirmed=False)
    wanted = subscription.want()
    peer.refuse(peer.one(Subscribe), QueueNotFoundError("no queue 'q'"))
    assert wanted.done
    assert subscription.ended
    with pytest.raises(QueueNotFoundError):
        raise subscription.failure()
    assert peer.sent() == []


def test_a_queue_that_is_deleted_ends_it_and_what_was_prefetched_is_not_handed_out(peer):
    subscription = subscribe(peer)
    peer.push("q", 1, batch(7, 2))
    peer.refuse(beat(peer), QueueNotFoundError("deleted"))
    assert subscription.ended
    assert not subscription.ready
    peer.advance(60)
    assert peer.sent() == []


def test_a_subscription_that_is_never_confirmed_fails_in_time(peer):
    subscription = subscribe(peer, confirmed=False)
    while not subscription.ended:
        for sent in peer.sent(Subscribe):
            peer.refuse(sent, ShardUnavailableError("down", details={"refused": True}))
        peer.advance(0.05)
    assert 1004.4 < peer.now < 1005.2
    with pytest.raises(ShardUnavailableError):
        raise subscription.failure()


def test_a_subscription_that_failed_is_ended_at_the_broker(peer):
    """The broker may have opened it, and what it pushed may be lost: it stays leased while the client lives."""
    subscription = subscribe(peer, confirmed=False)
    unsubscribed = []
    while not unsubscribed:
        assert peer.now < 1006
        for sent in peer.sent():
            if isinstance(sent.command, Unsubscribe):
                unsubscribed.append(sent.command)
            else:
                peer.refuse(sent, ShardUnavailableError("down", details={"refused": True}))
        peer.advance(0.05)
    assert unsubscribed == [Unsubscribe(subscription.id, [])]
    assert subscription.ended


def test_without_a_broker_it_fails_like_a_call():
    peer = Peer(connected=False)
    subscription = peer.session.subscribe("q", 1, peer.now, auto_extend=True)
    peer.sent()
    peer.advance(5)
    peer.sent()
    with pytest.raises(RequestTimeoutError, match="no broker answers"):
        raise subscription.failure()


def test_a_confirmed_one_rides_through_everything(peer):
    subscription = subscribe(peer)
    for _ in range(100):
        peer.now = peer.session.next_deadline()
        for sent in peer.sent(Subscribe):
            peer.refuse(sent, ShardUnavailableError("down", details={"refused": True}))
    assert peer.now > 1040
    assert not subscription.ended


def test_it_comes_back_soon_after_a_refusal(peer):
    subscribe(peer)
    peer.refuse(beat(peer), ShardUnavailableError("down", details={"refused": True}))
    assert peer.session.heartbeat_at <= peer.now + 0.05


def test_after_a_reconnection_it_is_sent_at_once(peer):
    subscription = subscribe(peer)
    peer.push("q", 1, batch(7, 2))
    loose = peer.receive("other", batch(9))
    peer.session.disconnected(peer.now)
    told = {(sent.key, type(sent.command)) for sent in peer.welcome()}
    assert told == {("q", Subscribe), ("other", Heartbeat)}
    give_up(*subscription.ready, *loose)


# --- leaving ----------------------------------------------------------------------------------------------------------


def test_a_refused_greeting_ends_it_also_between_its_heartbeats(peer):
    subscription = subscribe(peer)
    waiting = subscription.want()
    peer.session.disconnected(peer.now)
    peer.refuse(peer.one(Hello), UnauthenticatedError("the key has ended"))
    peer.sent()
    assert waiting.done
    assert subscription.ended
    assert isinstance(subscription.failure(), UnauthenticatedError)


def test_leaving_gives_back_what_was_not_taken_after_unsubscribing(peer):
    subscription = subscribe(peer)
    peer.push("q", 1, batch(7, 3), batch(8, 2))
    held = take(subscription, 1)
    call = peer.session.unsubscribe(subscription, peer.now)
    unsubscribed, released = peer.sent()
    assert unsubscribed.command == Unsubscribe(1, [7, 8])
    assert released.command == Settle(Verb.RELEASE, [(7, [1, 2]), (8, [])])
    peer.reply(unsubscribed, Done())
    assert not call.done
    peer.reply(released, Settled())
    assert call.done
    assert subscription.want().done
    give_up(*held)


def test_leaving_twice_says_nothing_twice(peer):
    subscription = subscribe(peer)
    assert peer.session.unsubscribe(subscription, peer.now) is not None
    peer.sent()
    assert peer.session.unsubscribe(subscription, peer.now) is None
    assert peer.sent() == []


def test_what_the_caller_holds_stays_leased_and_is_renewed(peer):
    subscription = subscribe(peer)
    peer.push("q", 1, batch(7, 3))
    held = take(subscription, 2)
    peer.session.unsubscribe(subscription, peer.now)
    confirm_all(peer)
    peer.now = peer.session.heartbeat_at
    assert peer.now <= 1010
    heartbeat, extend = peer.sent()
    assert (heartbeat.key, heartbeat.command) == ("q", Heartbeat())
    assert extend.command == Extend([(7, [])], 30_000)
    peer.session.settle(held, ACK)
    assert peer.one(Settle).command.fences == [(7, [0, 1])]


def test_a_renewal_does_not_cut_an_extension_short(peer):
    subscription = subscribe(peer)
    peer.push("q", 1, batch(7, 1))
    (held,) = take(subscription, 1)
    peer.session.extend(held, 3_600_000, peer.now)
    peer.reply(peer.one(Extend), Extended(BORN_MS + 3_600_000))
    peer.session.unsubscribe(subscription, peer.now)
    peer.sent()
    peer.now = peer.session.heartbeat_at
    assert peer.one(Extend).command.duration_ms == 3_600_000
    give_up(held)


def test_without_auto_extend_what_the_caller_holds_runs_out(peer):
    subscription = subscribe(peer, auto_extend=False)
    peer.push("q", 1, batch(7, 1))
    held = take(subscription, 1)
    peer.session.unsubscribe(subscription, peer.now)
    peer.sent()
    peer.now = peer.session.heartbeat_at
    assert peer.sent(Extend) == []
    give_up(*held)


def test_what_crosses_the_leaving_goes_back(peer):
    subscription = subscribe(peer)
    peer.session.unsubscribe(subscription, peer.now)
    peer.sent()
    peer.push("q", 1, batch(7, 3))
    assert peer.one(Unsubscribe).command == Unsubscribe(1, [])  # so the broker takes back what it does not name
    assert not subscription.ready


def test_an_abandoned_iterator_leaves_with_the_next_flush(peer):
    subscription = subscribe(peer)
    peer.push("q", 1, batch(7, 1))
    peer.session.abandoned.append(subscription)
    assert [type(sent.command) for sent in peer.sent()] == [Unsubscribe, Settle]


def test_goodbye_is_said_to_each_root_once(peer):
    subscription = subscribe(peer, "a.dlq")
    wanted = subscription.want()
    deliveries = peer.receive("a", batch(7)) + peer.receive("b", batch(8))
    calls = peer.session.goodbye(peer.now, CLOSED)
    assert wanted.done
    frames = peer.sent()
    assert sorted((sent.key, type(sent.command)) for sent in frames) == [("a", Goodbye), ("b", Goodbye)]
    for sent in frames:
        peer.reply(sent, Done())
    assert all(call.done for call in calls)
    give_up(*deliveries)


@pytest.mark.parametrize(("timeout_s", "patience_s"), [(5.0, 1.0), (0.3, 0.3)])
def test_goodbye_waits_a_second_at_most_and_no_longer_than_any_call(timeout_s, patience_s):
    peer = Peer(timeout_s)
    subscribe(peer)
    (call,) = peer.session.goodbye(peer.now, CLOSED)
    peer.sent()
    peer.advance(patience_s)
    peer.sent()
    assert call.done


def test_leaving_a_subscription_waits_no_longer_than_any_call():
    peer = Peer(0.3)
    call = peer.session.unsubscribe(subscribe(peer), peer.now)
    peer.sent()
    peer.advance(0.3)
    peer.sent()
    assert call.done


def test_after_a_goodbye_nothing_is_asked_for_that_could_not_go_back(peer):
    deliveries = peer.receive("q", batch(7))
    peer.session.goodbye(peer.now, CLOSED)
    assert [type(sent.command) for sent in peer.sent()] == [Goodbye]
    subscription = peer.session.subscribe("q", 10, peer.now, auto_extend=True)
    pending = [peer.session.receive({"q": 1}, 1000, peer.now), peer.enqueue("q"), peer.session.settle(deliveries, ACK)]
    assert peer.sent() == []
    assert (subscription.ended, subscription.error.message) == (True, "closed")
    assert [each.done for each in pending] == [True] * 3
    with pytest.raises(FilaError, match="closed"):
        pending[0].outcome()


def test_a_receive_from_several_queues_does_not_ask_again_after_a_goodbye(peer):
    receiving = peer.session.receive({"a": 1, "b": 1}, 60_000, peer.now)
    asked = peer.sent()
    peer.session.goodbye(peer.now, CLOSED)
    for sent in asked:
        peer.reply(sent, Delivered(0, []))
    assert [type(sent.command) for sent in peer.sent()] == [Goodbye] * 2
    with pytest.raises(FilaError, match="closed"):
        receiving.outcome()


def test_an_answer_that_crosses_the_goodbye_is_handed_to_nobody_because_its_messages_go_back(peer):
    receiving = peer.session.receive({"a": 1, "b": 1}, 0, peer.now)
    first, second = peer.sent()
    peer.reply(first, Delivered(0, [batch(7)]))
    peer.session.goodbye(peer.now, CLOSED)
    peer.reply(second, Delivered(0, [batch(8)]))
    with pytest.raises(FilaError, match="closed"):
        receiving.outcome()


def test_what_a_receive_got_at_most_once_is_handed_over_after_the_goodbye_because_it_is_gone(peer):
    receiving = peer.session.receive({"a": 1, "b": 1}, 0, peer.now)
    first, second = peer.sent()
    peer.session.goodbye(peer.now, CLOSED)
    peer.reply(first, Delivered(0, [batch(7)]))
    peer.reply(second, Delivered(0, [batch(NO_LEASE)]))
    assert [delivery._lease.id for delivery in receiving.outcome()] == [NO_LEASE]


def test_a_producer_needs_no_goodbye(peer):
    peer.enqueue("q")
    peer.sent()
    assert peer.session.goodbye(peer.now, CLOSED) == []


def test_waiting_can_be_given_up(peer):
    subscription = subscribe(peer)
    for _ in range(3):
        subscription.unwant(subscription.want())
    assert subscription.waiting == []
