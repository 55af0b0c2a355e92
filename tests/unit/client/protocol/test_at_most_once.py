"""Pushed deliveries that are never made again: acked when they are handed over, for their holder."""

import asyncio
import gc
import warnings

import pytest

from fila_cluster import AsyncClient, Client
from fila_cluster.client.protocol import settling
from fila_cluster.client.protocol.settling import ACK, settlement
from fila_cluster.errors import AlreadySettledError, BatchError, FilaError, LeaseExpiredError, ShardUnavailableError
from fila_proto_zmq.codec import to_fault
from fila_proto_zmq.commands import Done, Goodbye, Settle, Settled, Subscribe, Unsubscribe, Verb
from tests.support.cluster.cluster import eventually
from tests.unit.client.peer import Peer, batch, broker


@pytest.fixture
def peer():
    return Peer()


def pushed(peer, count=3, lease=7):
    """A subscription with a batch of deliveries that are made once."""
    subscription = peer.session.subscribe("q", 10, peer.now, auto_extend=True)
    peer.reply(peer.one(Subscribe), Done())
    peer.push("q", 1, batch(lease, count, at_most_once=True))
    return subscription


def take(peer, subscription):
    """What a consumer does with each."""
    delivery = subscription.ready.popleft()
    peer.session.hand_over(delivery)
    return delivery


def test_what_is_handed_over_is_acked_and_the_rest_is_not(peer):
    subscription = pushed(peer)
    take(peer, subscription)
    assert peer.one(Settle).command == Settle(Verb.ACK, [(7, [0])])
    peer.session.unsubscribe(subscription, peer.now)
    assert [sent.command for sent in peer.sent()] == [Unsubscribe(1, [7]), Settle(Verb.RELEASE, [(7, [1, 2])])]


def test_acks_coalesce_with_those_of_others(peer):
    subscription = pushed(peer)
    peer.push("q", 1, batch(8, 1))
    for _ in range(3):
        take(peer, subscription)
    peer.session.settle([subscription.ready.popleft()], ACK)
    assert peer.one(Settle).command == Settle(Verb.ACK, [(7, []), (8, [])])


def test_its_holder_has_nothing_to_settle(peer):
    subscription = pushed(peer)
    delivery = take(peer, subscription)
    peer.sent()
    assert peer.session.settle([delivery], ACK).errors == {}
    for verb in (Verb.NACK, Verb.RETRY, Verb.FAIL, Verb.DEFER):
        (error,) = peer.session.settle([delivery], settlement(verb)).errors.values()
        assert isinstance(error, AlreadySettledError)
        assert "at most once" in str(error)
    with pytest.raises(AlreadySettledError, match="at most once"):
        delivery.extend(5)
    assert peer.sent() == []


def test_forgetting_one_is_no_mistake(peer):
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        subscription = pushed(peer)
        take(peer, subscription)
        subscription.ready.clear()
        gc.collect()
    assert peer.owner.forgotten_leases == []


def test_an_ack_that_comes_too_late_ends_the_lease_all_the_same(peer):
    """It will not be made again whatever happens: there is nothing to keep alive."""
    subscription = pushed(peer, 1)
    take(peer, subscription)
    peer.refuse(peer.one(Settle), LeaseExpiredError("too late"))
    assert subscription.leases == {}
    assert peer.sent(Settle) == []


def test_an_ack_is_repeated_until_it_is_confirmed_and_its_lease_is_named_as_long(peer):
    subscription = pushed(peer, 1)
    take(peer, subscription)
    while peer.now < 1012:
        for sent in peer.sent():
            if isinstance(sent.command, Settle):
                assert sent.command == Settle(Verb.ACK, [(7, [])])
                peer.refuse(sent, ShardUnavailableError("down"))
            elif isinstance(sent.command, Subscribe):
                assert sent.command.renew == [7]
                peer.refuse(sent, ShardUnavailableError("down"))
        peer.now = peer.session.next_deadline()
    peer.advance(1)
    peer.reply(peer.one(Settle), Settled())
    assert subscription.leases == {}
    peer.advance(6)
    assert peer.sent(Settle) == []


def test_a_goodbye_names_what_the_application_has_had_and_the_broker_has_not_confirmed(peer):
    subscription = pushed(peer)
    take(peer, subscription)
    take(peer, subscription)
    peer.sent()
    peer.session.goodbye(peer.now, FilaError("closed"))
    assert peer.one(Goodbye).command == Goodbye([(7, [0]), (7, [1])])


def test_what_a_goodbye_has_no_room_for_is_acked_before_it(peer, monkeypatch):
    subscription = pushed(peer)
    take(peer, subscription)
    take(peer, subscription)
    peer.sent()
    monkeypatch.setattr(settling, "FENCES_MAX", 1)
    peer.session.goodbye(peer.now, FilaError("closed"))
    assert [sent.command for sent in peer.sent()] == [Settle(Verb.ACK, [(7, [0])]), Goodbye([(7, [1])])]


def test_each_goodbye_names_what_was_had_of_all_queues(peer):
    """They may be on one shard, and the first goodbye there gives everything back."""
    subscription = pushed(peer, 1)
    take(peer, subscription)
    peer.session.subscribe("other", 1, peer.now, auto_extend=True)
    peer.sent()
    peer.session.goodbye(peer.now, FilaError("closed"))
    assert [sent.command for sent in peer.sent()] == [Goodbye([(7, [0])])] * 2


def test_a_goodbye_names_nothing_that_is_confirmed(peer):
    subscription = pushed(peer)
    take(peer, subscription)
    peer.reply(peer.one(Settle), Settled())
    peer.session.goodbye(peer.now, FilaError("closed"))
    assert peer.one(Goodbye).command == Goodbye()


def test_an_ack_that_is_refused_item_by_item_ends_the_lease_too(peer):
    subscription = pushed(peer, 2)
    for _ in range(2):
        take(peer, subscription)
    peer.reply(peer.one(Settle), Settled([(7, 0, to_fault(LeaseExpiredError("too late")))]))
    assert subscription.leases == {}


def test_what_waits_to_be_taken_is_kept_alive(peer):
    subscription = pushed(peer)
    take(peer, subscription)
    peer.reply(peer.one(Settle), Settled())
    peer.now = peer.session.heartbeat_at
    assert peer.one(Subscribe).command == Subscribe(1, 10, [7], 0)


def test_the_ack_of_what_was_handed_over_goes_out_before_the_goodbye_that_would_give_it_back(peer):
    subscription = pushed(peer)
    take(peer, subscription)
    peer.session.goodbye(peer.now, FilaError("closed"))
    assert [type(sent.command) for sent in peer.sent()] == [Settle, Goodbye]


def test_what_the_goodbye_gave_back_is_not_handed_over(peer):
    subscription = pushed(peer)
    delivery = subscription.ready.popleft()
    peer.session.goodbye(peer.now, FilaError("closed"))
    with pytest.raises(FilaError, match="closed"):
        peer.session.hand_over(delivery)
    assert [type(sent.command) for sent in peer.sent()] == [Goodbye]


# --- through the clients ----------------------------------------------------------------------------------------------


def test_a_blocking_consumer_acks_at_once():
    with broker() as peer, Client(peer.endpoint) as client, client.consume("q") as consumer:
        eventually(lambda: peer.seen_of(Subscribe), "a subscription")
        peer.push("q", 1, batch(7, 3, at_most_once=True))
        first = next(consumer)
        eventually(lambda: [sent.command for sent in peer.seen_of(Settle)] == [Settle(Verb.ACK, [(7, [0])])], "the ack")
        first.ack()
        with pytest.raises(AlreadySettledError):
            first.nack()
        with pytest.raises(BatchError):
            client.nack([first])
        client.ack([first])
        next(consumer)
        eventually(lambda: len(peer.seen_of(Settle)) == 2, "the second ack")
    eventually(lambda: Settle(Verb.RELEASE, [(7, [2])]) in [sent.command for sent in peer.seen_of(Settle)], "the release")


def test_an_asyncio_consumer_acks_within_the_tick():
    async def main(peer):
        async with AsyncClient(peer.endpoint) as client, client.consume("q") as consumer:
            while not peer.seen_of(Subscribe):
                await asyncio.sleep(0.01)
            peer.push("q", 1, batch(7, 3, at_most_once=True))
            first, second = await anext(consumer), await anext(consumer)
            await first.ack()
            with pytest.raises(AlreadySettledError):
                await second.defer(5)
            while not peer.seen_of(Settle):
                await asyncio.sleep(0.01)
        assert [sent.command for sent in peer.seen_of(Settle)] == [
            Settle(Verb.ACK, [(7, [0, 1])]),
            Settle(Verb.RELEASE, [(7, [2])]),
        ]

    with broker() as peer:
        asyncio.run(main(peer))
