"""Receiving from one queue or several: who is asked what, and that nothing is leased unseen."""

import pytest

from fila_cluster.client.protocol.receiving import HURRY_S
from fila_cluster.errors import FilaError, QueueNotFoundError, RequestTimeoutError, ShardUnavailableError
from fila_proto_zmq.commands import CancelReceive, Delivered, Done, Receive, Settle, Verb
from tests.unit.client.peer import WELCOME, Peer, batch, give_up


@pytest.fixture
def peer():
    return Peer()


def receive(peer, wait_ms=0, **queues):
    return peer.session.receive(queues or {"a": 5, "b": 5, "c": 5}, wait_ms, peer.now)


def asked(peer):
    """The receives that are sent, by queue."""
    return {sent.key: sent for sent in peer.sent(Receive)}


def messages(lease, count=1):
    return Delivered(0, [batch(lease, count)])


NOTHING = Delivered(0, [])
DOWN = ShardUnavailableError("down", details={"refused": True})


def answer_all(peer, frames, reply=NOTHING):
    for frame in frames.values():
        peer.reply(frame, reply)


def leases(deliveries):
    give_up(*deliveries)
    return [delivery._lease.id for delivery in deliveries]


def waiting(peer, wait_ms=10_000, **queues):
    """A receiving that found nothing, and now waits; the frames that wait."""
    receiving = receive(peer, wait_ms, **queues)
    answer_all(peer, asked(peer))
    assert not receiving.done
    return receiving, asked(peer)


# --- who is asked -----------------------------------------------------------------------------------------------------


def test_a_single_queue_is_asked_at_once_for_what_comes_first(peer):
    receiving = receive(peer, 10_000, q=7)
    sent = peer.one(Receive)
    assert (sent.key, sent.command) == ("q", Receive(7, 10_000))
    peer.reply(sent, messages(1, 2))
    assert leases(receiving.outcome()) == [1, 1]
    assert peer.sent() == []


def test_several_are_asked_for_what_is_ready_and_all_of_it_counts(peer):
    receiving = receive(peer, 10_000, a=1, b=2, c=3)
    frames = asked(peer)
    assert {key: sent.command for key, sent in frames.items()} == {"a": Receive(1), "b": Receive(2), "c": Receive(3)}
    peer.reply(frames["c"], messages(3, 3))
    peer.reply(frames["b"], NOTHING)
    assert not receiving.done
    peer.reply(frames["a"], messages(1))
    assert leases(receiving.outcome()) == [1, 3, 3, 3]
    assert peer.sent() == []


def test_without_a_wait_nothing_is_nothing(peer):
    receiving = receive(peer)
    answer_all(peer, asked(peer))
    assert receiving.outcome() == []
    assert peer.sent() == []


def test_with_one_all_are_asked_again_for_as_long_as_is_left(peer):
    receiving = receive(peer, 10_000)
    frames = asked(peer)
    peer.advance(0.25)
    answer_all(peer, frames)
    frames = asked(peer)
    assert {key: sent.command for key, sent in frames.items()} == dict.fromkeys("abc", Receive(5, 9750))
    peer.advance(9.75)
    answer_all(peer, frames)
    assert receiving.outcome() == []


def test_a_queue_with_more_than_a_frame_carries_is_asked_for_the_rest(peer):
    receiving = receive(peer, a=1000, b=1)
    frames = asked(peer)
    peer.reply(frames["b"], NOTHING)
    peer.reply(frames["a"], messages(1, 500))
    rest = peer.one(Receive)
    assert (rest.key, rest.command) == ("a", Receive(500))
    peer.reply(rest, messages(2, 100))
    assert leases(receiving.outcome()) == [1] * 500 + [2] * 100


@pytest.mark.parametrize("error", [QueueNotFoundError("deleted"), DOWN])
def test_an_error_of_the_rest_takes_nothing_away(peer, error):
    receiving = receive(peer, q=1000)
    peer.reply(peer.one(Receive), messages(1, 500))
    peer.refuse(peer.one(Receive), error)
    while not receiving.done:
        peer.now = peer.session.next_deadline()
        for sent in peer.sent(Receive):
            peer.refuse(sent, error)
    assert leases(receiving.outcome()) == [1] * 500


# --- hurrying ---------------------------------------------------------------------------------------------------------


def test_who_has_messages_ends_the_others_waiting_and_what_they_leased_counts(peer):
    receiving, frames = waiting(peer)
    peer.reply(frames["b"], messages(2))
    assert not receiving.done
    cancels = peer.sent(CancelReceive)
    assert [(sent.key, sent.command.request) for sent in cancels] == [
        ("a", frames["a"].header.request),
        ("c", frames["c"].header.request),
    ]
    peer.reply(frames["a"], messages(1))
    peer.reply(frames["c"], NOTHING)
    for sent in cancels:
        peer.reply(sent, Done())
    assert leases(receiving.outcome()) == [1, 2]
    assert peer.sent() == []


def test_who_does_not_answer_is_not_waited_for_and_its_late_messages_go_back(peer):
    receiving, frames = waiting(peer)
    peer.reply(frames["b"], messages(2))
    peer.reply(frames["c"], NOTHING)
    peer.sent()
    peer.advance(HURRY_S)
    peer.sent()
    assert leases(receiving.outcome()) == [2]
    peer.reply(frames["a"], messages(1))
    sent = peer.one(Settle)
    assert (sent.key, sent.command) == ("a", Settle(Verb.RELEASE, [(1, [])]))


def test_a_silent_queue_does_not_hold_up_what_others_have_ready(peer):
    receiving = receive(peer, 10_000)
    frames = asked(peer)
    peer.reply(frames["b"], messages(2))
    peer.reply(frames["c"], NOTHING)
    peer.advance(HURRY_S)
    assert [sent.command.release for sent in peer.sent(Receive, CancelReceive)] == [True]  # what comes later goes back
    assert leases(receiving.outcome()) == [2]


def test_a_queue_that_is_down_does_not_hold_up_what_others_have_ready(peer):
    receiving = receive(peer, 10_000)
    frames = asked(peer)
    peer.refuse(frames["a"], DOWN)
    peer.reply(frames["b"], messages(2))
    peer.reply(frames["c"], NOTHING)
    assert leases(receiving.outcome()) == [2]


@pytest.mark.parametrize("wait_ms", [0, 10_000])
def test_while_no_queue_has_messages_one_that_is_down_is_asked_until_it_is_back(peer, wait_ms):
    receiving = receive(peer, wait_ms)
    frames = asked(peer)
    peer.refuse(frames["a"], DOWN)
    peer.reply(frames["b"], NOTHING)
    peer.reply(frames["c"], NOTHING)
    for _ in range(3):
        peer.refuse(asked(peer)["a"], DOWN)
        assert not receiving.done
        peer.now = peer.session._calls.due_at
    frames = {"a": peer.one(Receive)}
    peer.reply(frames["a"], messages(1))
    assert not receiving.done
    peer.advance(HURRY_S)
    peer.sent()
    assert leases(receiving.outcome()) == [1]


def test_what_was_not_even_sent_when_others_have_messages_never_is(peer):
    receiving, frames = waiting(peer)
    peer.refuse(frames["a"], DOWN)
    peer.reply(frames["b"], messages(2))
    peer.reply(frames["c"], NOTHING)
    assert leases(receiving.outcome()) == [2]
    peer.advance(2)
    assert peer.sent(Receive) == []


# --- errors -----------------------------------------------------------------------------------------------------------


def test_a_queue_that_does_not_exist_is_an_error_and_what_others_gave_goes_back(peer):
    receiving = receive(peer)
    frames = asked(peer)
    peer.reply(frames["a"], messages(1, 2))
    peer.refuse(frames["b"], QueueNotFoundError("no queue 'b'"))
    peer.reply(frames["c"], NOTHING)
    with pytest.raises(QueueNotFoundError):
        receiving.outcome()
    sent = peer.one(Settle)
    assert (sent.key, sent.command) == ("a", Settle(Verb.RELEASE, [(1, [])]))


def test_what_cannot_go_back_is_handed_over_whatever_became_of_the_others(peer):
    receiving = receive(peer, a=1, b=1)
    frames = asked(peer)
    peer.reply(frames["a"], messages(0))
    peer.refuse(frames["b"], QueueNotFoundError("no queue 'b'"))
    assert leases(receiving.outcome()) == [0]


def test_an_error_while_waiting_ends_the_others_waiting(peer):
    receiving, frames = waiting(peer)
    peer.refuse(frames["b"], QueueNotFoundError("deleted"))
    assert [sent.key for sent in peer.sent(CancelReceive)] == ["a", "c"]
    peer.reply(frames["a"], NOTHING)
    peer.reply(frames["c"], NOTHING)
    with pytest.raises(QueueNotFoundError):
        receiving.outcome()


def test_over_a_lost_connection_it_asks_again_under_the_same_number_for_what_is_left_of_its_time(peer):
    receiving, frames = waiting(peer, 10_000)
    peer.advance(4)
    peer.session.disconnected(peer.now)
    again = [sent for sent in peer.welcome() if isinstance(sent.command, Receive)]
    assert [sent.header.request for sent in again] == [sent.header.request for sent in frames.values()]
    assert {sent.command.wait_ms for sent in again} == {6_000}
    peer.reply(again[0], messages(1))
    peer.advance(HURRY_S)
    peer.sent()
    assert leases(receiving.outcome()) == [1]


def test_what_was_asked_for_without_waiting_and_is_lost_goes_back(peer):
    receiving = receive(peer)
    asked(peer)
    peer.session.disconnected(peer.now)
    with pytest.raises(ShardUnavailableError, match="lost"):
        receiving.outcome()
    cancelled = [sent.command for sent in peer.welcome() if isinstance(sent.command, CancelReceive)]
    assert [command.release for command in cancelled] == [True] * 3


def test_what_was_granted_and_is_not_taken_is_said_until_the_broker_confirms_it(peer):
    peer.session.receive({"q": 1}, 0, peer.now)
    request = peer.one(Receive).header.request
    peer.advance(5)
    for _ in range(3):
        sent = peer.one(CancelReceive)
        assert sent.command == CancelReceive(request, release=True)
        peer.refuse(sent, RequestTimeoutError("stalled"))
        peer.advance(5)
    peer.reply(peer.one(CancelReceive), Done())
    peer.advance(60)
    assert peer.sent() == []


def test_what_was_never_sent_needs_no_giving_back():
    peer = Peer(connected=False)
    receiving = peer.session.receive({"q": 1}, 0, peer.now)
    (hello,) = peer.sent()
    peer.advance(5)
    peer.sent()
    assert receiving.done
    peer.reply(hello, WELCOME)
    assert peer.sent() == []


def test_an_answer_that_comes_twice_is_not_given_back(peer):
    receiving = peer.session.receive({"q": 1}, 0, peer.now)
    sent = peer.one(Receive)
    peer.reply(sent, messages(7))
    peer.reply(sent, messages(7))
    assert peer.sent() == []
    give_up(*receiving.outcome())


def test_a_silent_broker_takes_the_timeout_and_the_wait_and_no_more(peer):
    receiving, _ = waiting(peer, 2_000)
    begun = peer.now
    while not receiving.done:
        peer.now = peer.session.next_deadline()
        peer.sent()
    with pytest.raises(RequestTimeoutError):
        receiving.outcome()
    assert peer.now - begun == pytest.approx(7, abs=0.01)


def test_where_no_broker_is_it_fails_as_other_calls_do():
    peer = Peer(connected=False)
    receiving = receive(peer)
    peer.sent()
    peer.advance(5)
    peer.sent()
    with pytest.raises(RequestTimeoutError, match="no broker answers"):
        receiving.outcome()


def test_the_end_of_the_client_is_its_end(peer):
    receiving, frames = waiting(peer)
    peer.reply(frames["a"], messages(1))
    peer.session.fail_all(FilaError("closed"))
    with pytest.raises(FilaError, match="closed"):
        receiving.outcome()


# --- giving up --------------------------------------------------------------------------------------------------------


def test_who_gives_up_leaves_nothing_leased(peer):
    receiving, frames = waiting(peer)
    peer.reply(frames["a"], messages(1))
    peer.sent()
    peer.session.give_up(receiving, peer.now)
    assert {(sent.key, type(sent.command)) for sent in peer.sent()} == {
        ("a", Settle),
        ("b", CancelReceive),
        ("c", CancelReceive),
    }
    peer.reply(frames["b"], messages(2))
    peer.reply(frames["c"], NOTHING)
    sent = peer.one(Settle)
    assert (sent.key, sent.command) == ("b", Settle(Verb.RELEASE, [(2, [])]))


def test_who_gives_up_what_was_there_already_gives_it_back(peer):
    receiving = receive(peer, q=1)
    peer.reply(peer.one(Receive), messages(1))
    peer.session.give_up(receiving, peer.now)
    assert peer.one(Settle).command == Settle(Verb.RELEASE, [(1, [])])


def test_who_gives_up_after_an_error_has_nothing_to_give_back(peer):
    receiving = receive(peer, q=1)
    peer.refuse(peer.one(Receive), QueueNotFoundError("no queue 'q'"))
    peer.session.give_up(receiving, peer.now)
    assert peer.sent() == []


def test_who_gives_up_before_anything_was_sent_sends_nothing():
    peer = Peer(connected=False)
    receiving = receive(peer, 10_000)
    peer.session.give_up(receiving, peer.now)
    assert peer.welcome() == []


def test_a_receive_that_waits_is_kept_alive_until_it_is_given_up(peer):
    receiving, _ = waiting(peer)
    assert peer.session.heartbeat_at < float("inf")
    peer.session.give_up(receiving, peer.now)
    for sent in peer.sent():
        peer.reply(sent, Done())
    peer.advance(60)
    assert peer.sent() == []
