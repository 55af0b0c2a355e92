"""What is lost on its way to a subscription is noticed, and nothing is taken in that the broker takes back."""

import pytest

from fila_cluster.client.protocol.loose import HEARTBEAT_S_MAX
from fila_cluster.client.protocol.settling import ACK
from fila_cluster.errors import LeaseExpiredError
from fila_proto_zmq.codec import to_fault
from fila_proto_zmq.commands import Settle, Settled, Subscribe, Subscribed, Unsubscribe
from tests.unit.client.peer import Peer, batch, give_up

FIRST, SECOND = 100, 200
"""Two incarnations."""


@pytest.fixture
def peer():
    return Peer()


def subscribe(peer, incarnation=FIRST, **options):
    """A subscription that the broker has confirmed."""
    subscription = peer.session.subscribe("q", 10, peer.now, auto_extend=options.get("auto_extend", True))
    peer.reply(peer.one(Subscribe), Subscribed(incarnation))
    return subscription


def push(peer, lease, incarnation=FIRST, count=1, **options):
    peer.push("q", 1, batch(lease, count, **options), incarnation=incarnation)


def held(subscription):
    return [delivery._lease.id for delivery in subscription.ready]


def beat(peer):
    peer.now = peer.session.heartbeat_at
    return peer.one(Subscribe)


def reconnect(peer):
    """A new link; what is said of the only subscription there."""
    peer.session.disconnected(peer.now)
    (said,) = [sent for sent in peer.welcome() if isinstance(sent.command, Subscribe)]
    return said


def give_up_all(subscription):
    give_up(*subscription.ready)


def test_it_believes_in_what_the_broker_answers(peer):
    subscription = subscribe(peer)
    push(peer, 7)
    assert beat(peer).command == Subscribe(1, 10, [7], FIRST)
    give_up_all(subscription)


def test_pushes_before_the_answer_and_of_another_incarnation_are_ignored(peer):
    subscription = peer.session.subscribe("q", 10, peer.now, auto_extend=True)
    asked = peer.one(Subscribe)
    push(peer, 7, FIRST)
    peer.reply(asked, Subscribed(SECOND))
    push(peer, 8, FIRST)
    push(peer, 9, SECOND)
    assert held(subscription) == [9]
    give_up_all(subscription)


def test_on_a_new_link_it_names_what_it_holds_and_believes_in_none(peer):
    subscription = subscribe(peer)
    push(peer, 7)
    said = reconnect(peer)
    assert said.command == Subscribe(1, 10, [7], 0)
    push(peer, 8, FIRST)  # it crosses what was said, so the broker takes it back
    assert held(subscription) == [7]
    peer.reply(said, Subscribed(SECOND))
    push(peer, 8, SECOND)
    assert held(subscription) == [7, 8]
    assert beat(peer).command == Subscribe(1, 10, [7, 8], SECOND)
    give_up_all(subscription)


def test_what_is_settled_is_named_until_that_is_confirmed(peer):
    subscription = subscribe(peer)
    push(peer, 7)
    peer.session.settle(list(subscription.ready), ACK)
    settle = peer.one(Settle)
    assert reconnect(peer).command.renew == [7]
    peer.reply(settle, Settled())
    assert reconnect(peer).command.renew == []


def test_without_auto_extend_what_is_held_is_named_and_not_renewed(peer):
    subscription = subscribe(peer, auto_extend=False)
    push(peer, 7)
    assert reconnect(peer).command == Subscribe(1, 10, [], 0, [7])
    give_up_all(subscription)


def test_what_the_caller_dropped_is_named_until_its_lease_has_run_out(peer):
    """Else it would come back uncounted."""
    subscription = subscribe(peer)
    push(peer, 7, duration_ms=30_000)
    delivery = subscription.ready.popleft()
    peer.session.forgotten.append(delivery._lease)
    give_up(delivery)
    said = beat(peer)
    assert said.command == Subscribe(1, 10, [], FIRST, [7])
    peer.reply(said, Subscribed(FIRST, 1))
    peer.advance(31)
    assert peer.one(Subscribe).command == Subscribe(1, 10, [], FIRST)


def test_a_restarted_broker_is_sent_at_once_what_is_held(peer):
    subscription = subscribe(peer)
    push(peer, 7)
    asked = beat(peer)
    push(peer, 8)  # by the worker that is gone now: it was under way
    peer.reply(asked, Subscribed(SECOND))
    assert peer.one(Subscribe).command == Subscribe(1, 10, [7, 8], SECOND)
    push(peer, 9, FIRST)
    push(peer, 10, SECOND)
    assert held(subscription) == [7, 8, 10]
    give_up_all(subscription)


def test_a_push_that_was_lost_without_a_lost_link_is_noticed_by_the_next_heartbeat(peer):
    subscription = subscribe(peer)
    push(peer, 7)
    peer.reply(beat(peer), Subscribed(FIRST, 2))
    assert peer.one(Subscribe).command == Subscribe(1, 10, [7], 0)
    push(peer, 9, FIRST)
    assert held(subscription) == [7]
    give_up_all(subscription)


def test_a_new_incarnation_of_which_pushes_were_missed_is_not_believed_in(peer):
    """The first answer that named it was lost."""
    subscribe(peer)
    peer.reply(beat(peer), Subscribed(SECOND, 3))
    assert peer.one(Subscribe).command == Subscribe(1, 10, [], 0)


def test_while_nothing_is_lost_nothing_more_is_said(peer):
    subscription = subscribe(peer)
    push(peer, 7)
    push(peer, 8)
    peer.reply(beat(peer), Subscribed(FIRST, 2))
    assert peer.sent(Subscribe) == []
    give_up_all(subscription)


def test_what_ended_meanwhile_is_not_handed_over(peer):
    """A client that was paused for longer than the broker's patience has lost its leases."""
    subscription = subscribe(peer)
    push(peer, 7, count=2)
    push(peer, 8)
    taken = subscription.ready.popleft()
    peer.reply(beat(peer), Subscribed(SECOND, 0, [7]))
    assert held(subscription) == [8]
    assert peer.one(Subscribe).command.renew == [8]
    settling = peer.session.settle([taken], ACK)
    peer.reply(peer.one(Settle), Settled([(7, -1, to_fault(LeaseExpiredError("over")))]))
    assert isinstance(settling.errors[0], LeaseExpiredError)
    give_up_all(subscription)


def test_what_is_made_once_is_handed_over_though_its_lease_ended(peer):
    """The broker has dropped it: it will come from nowhere else."""
    subscription = subscribe(peer)
    push(peer, 7, at_most_once=True)
    peer.reply(beat(peer), Subscribed(FIRST, 1, [7]))
    assert held(subscription) == [7]


def test_leaving_names_what_is_held_and_ignores_what_comes_then(peer):
    subscription = subscribe(peer)
    push(peer, 7, count=2)
    taken = subscription.ready.popleft()
    peer.session.unsubscribe(subscription, peer.now)
    assert peer.one(Unsubscribe).command == Unsubscribe(1, [7])
    push(peer, 9)
    assert peer.one(Unsubscribe).command == Unsubscribe(1, [7])
    give_up(taken)


def test_an_end_that_is_not_confirmed_is_said_again(peer):
    subscription = subscribe(peer)
    peer.session.unsubscribe(subscription, peer.now)
    peer.sent()
    peer.advance(1)
    peer.sent()
    peer.advance(HEARTBEAT_S_MAX)
    assert peer.one(Unsubscribe).command == Unsubscribe(1, [])


def test_heartbeats_do_not_pile_up_while_the_broker_is_silent():
    peer = Peer(timeout_s=3600)
    subscribe(peer)
    deliveries = peer.receive("other", batch(9))
    for _ in range(100):
        peer.now = peer.session.next_deadline()
        peer.sent()
    assert peer.session.kept_bytes < 3000
    give_up(*deliveries)
