"""Settlements: few frames, every result in its place."""

import pytest

from fila_cluster.client.calls.messages import failure_of
from fila_cluster.client.protocol.settling import ACK, NACKED_MAX, settlement
from fila_cluster.errors import (
    AlreadySettledError,
    FilaError,
    InvalidArgumentError,
    LeaseExpiredError,
    QueueNotFoundError,
    RequestTimeoutError,
    ShardUnavailableError,
)
from fila_proto_zmq.codec import to_fault
from fila_proto_zmq.commands import Goodbye, Settle, Settled, Verb
from fila_proto_zmq.limits import FENCES_MAX
from tests.unit.client.peer import Peer, batch, give_up

EXPIRED = to_fault(LeaseExpiredError("expired"))


@pytest.fixture
def peer():
    return Peer()


def errors_of(settling):
    return {position: type(error) for position, error in settling.errors.items()}


def test_a_whole_lease_travels_as_its_number(peer):
    deliveries = peer.receive("q", batch(7, 3), batch(8, 2))
    settling = peer.session.settle(deliveries, ACK)
    sent = peer.one(Settle)
    assert sent.command == Settle(Verb.ACK, [(7, []), (8, [])])
    peer.reply(sent, Settled())
    assert settling.done
    assert settling.errors == {}


def test_parts_of_a_lease_travel_as_indexes(peer):
    deliveries = peer.receive("q", batch(7, 4))
    peer.session.settle([deliveries[2], deliveries[0]], ACK)
    assert peer.one(Settle).command.fences == [(7, [2, 0])]
    give_up(*deliveries)


def test_single_settlements_coalesce_by_queue_and_manner(peer):
    first, second = peer.receive("a", batch(7, 3)), peer.receive("b", batch(7, 2))
    for delivery in first[:2] + second:
        peer.session.settle((delivery,), ACK)
    peer.session.settle((first[2],), settlement(Verb.NACK, "why", b"m"))
    assert {(sent.key, tuple(sent.command.fences[0][1]), sent.command.verb) for sent in peer.sent()} == {
        ("a", (0, 1), Verb.ACK),
        ("b", (), Verb.ACK),
        ("a", (2,), Verb.NACK),
    }


def test_what_does_not_fit_a_frame_travels_in_several(peer):
    small = peer.receive("q", *(batch(number, 1) for number in range(1, FENCES_MAX + 2)))
    settling = peer.session.settle(small, ACK)
    frames = peer.sent()
    assert [len(sent.command.fences) for sent in frames] == [FENCES_MAX, 1]
    peer.reply(frames[1], Settled([(FENCES_MAX + 1, -1, EXPIRED)]))
    assert not settling.done
    peer.reply(frames[0], Settled())
    assert errors_of(settling) == {FENCES_MAX: LeaseExpiredError}


def test_a_frame_names_no_more_deliveries_than_it_may(peer):
    large = peer.receive("q", *(batch(number, 500) for number in range(1, 22)))
    settling = peer.session.settle(large[1:], ACK)
    frames = peer.sent()
    assert [sum(len(indexes) or 500 for _, indexes in sent.command.fences) for sent in frames] == [9999, 500]
    for sent in frames:
        peer.reply(sent, Settled())
    assert settling.done
    give_up(large[0])


def test_nacks_travel_in_small_frames_that_have_their_time_from_the_one_before(peer):
    deliveries = peer.receive("q", batch(7, 250))
    settling = peer.session.settle(deliveries, settlement(Verb.NACK))
    frames = peer.sent()
    assert [len(indexes) for sent in frames for _, indexes in sent.command.fences] == [NACKED_MAX, NACKED_MAX, 50]
    for sent in frames[:2]:
        peer.advance(4)
        peer.reply(sent, Settled())
    peer.advance(5)
    assert peer.sent(Settle) == []
    assert errors_of(settling) == dict.fromkeys(range(200, 250), RequestTimeoutError)
    assert settling.done
    give_up(*deliveries)


def test_an_answer_to_a_later_frame_gives_an_earlier_one_no_time(peer):
    deliveries = peer.receive("q", batch(7, 150))
    settling = peer.session.settle(deliveries, settlement(Verb.NACK))
    first, second = peer.sent()
    peer.advance(4)
    peer.reply(second, Settled())
    assert not settling.done
    peer.advance(1)
    peer.sent()
    assert errors_of(settling) == dict.fromkeys(range(100), RequestTimeoutError)
    assert first.command.fences == [(7, [*range(100)])]
    give_up(*deliveries)


def test_one_batch_over_several_queues_is_done_when_all_are(peer):
    deliveries = peer.receive("a", batch(1)) + peer.receive("b", batch(2))
    settling = peer.session.settle(deliveries, ACK)
    first, second = peer.sent()
    peer.reply(first, Settled())
    assert not settling.done
    peer.reply(second, Settled([(2, 0, EXPIRED)]))
    assert settling.done
    assert errors_of(settling) == {1: LeaseExpiredError}


def test_verbs_carry_their_arguments(peer):
    (delivery,) = peer.receive("q", batch(7))
    peer.session.settle((delivery,), settlement(Verb.RETRY, "err", b"meta", 1500))
    assert peer.one(Settle).command == Settle(Verb.RETRY, [(7, [])], "err", b"meta", 1500)


def test_faults_find_their_deliveries_whichever_call_asked(peer):
    deliveries = peer.receive("q", batch(7, 4))
    mine = peer.session.settle(deliveries[:2], ACK)
    other = peer.session.settle(deliveries[2:], ACK)
    peer.reply(peer.one(Settle), Settled([(7, 1, EXPIRED), (7, 2, EXPIRED)]))
    assert errors_of(mine) == {1: LeaseExpiredError}
    assert errors_of(other) == {0: LeaseExpiredError}


def test_a_fault_of_index_minus_one_is_the_whole_lease_s(peer):
    deliveries = peer.receive("q", batch(7, 3), batch(8, 1))
    settling = peer.session.settle(deliveries, ACK)
    peer.reply(peer.one(Settle), Settled([(7, -1, EXPIRED)]))
    assert errors_of(settling) == dict.fromkeys(range(3), LeaseExpiredError)


def test_a_batch_error_has_a_place_for_each(peer):
    deliveries = peer.receive("q", batch(7, 3))
    settling = peer.session.settle(deliveries, ACK)
    peer.reply(peer.one(Settle), Settled([(7, 1, EXPIRED)]))
    failure = failure_of(settling)
    assert "1 of 3 deliveries" in str(failure)
    assert [result and type(result) for result in failure.results] == [None, LeaseExpiredError, None]


def test_settling_again_is_refused_here(peer):
    (delivery,) = peer.receive("q", batch(7))
    peer.session.settle((delivery,), ACK)
    again = peer.session.settle((delivery,), ACK)
    assert again.done
    assert errors_of(again) == {0: AlreadySettledError}
    assert len(peer.sent(Settle)) == 1


def test_twice_in_one_batch(peer):
    (delivery,) = peer.receive("q", batch(7))
    settling = peer.session.settle([delivery, delivery], ACK)
    sent = peer.one(Settle)
    peer.reply(sent, Settled([(7, 0, EXPIRED)]))
    assert errors_of(settling) == {0: LeaseExpiredError, 1: AlreadySettledError}


def test_after_a_retryable_error_it_may_be_settled_again(peer):
    deliveries = peer.receive("q", batch(7, 2))
    settling = peer.session.settle(deliveries, ACK)
    peer.sent()
    peer.advance(5)
    peer.sent()
    assert errors_of(settling) == dict.fromkeys(range(2), RequestTimeoutError)
    again = peer.session.settle(deliveries, ACK)
    peer.reply(peer.one(Settle), Settled())
    assert again.errors == {}


@pytest.mark.parametrize("error", [LeaseExpiredError("x"), QueueNotFoundError("x"), FilaError("x")])
def test_after_any_other_error_it_may_not(peer, error):
    (delivery,) = peer.receive("q", batch(7))
    peer.session.settle((delivery,), ACK)
    peer.refuse(peer.one(Settle), error)
    assert errors_of(peer.session.settle((delivery,), ACK)) == {0: AlreadySettledError}


def test_a_settlement_is_repeated_when_its_worker_dies(peer):
    (delivery,) = peer.receive("q", batch(7))
    settling = peer.session.settle((delivery,), ACK)
    sent = peer.one(Settle)
    peer.refuse(sent, ShardUnavailableError("died"))
    peer.advance(1)
    peer.reply(peer.one(Settle), Settled())
    assert settling.done
    assert settling.errors == {}


def test_at_most_once_has_nothing_to_ack_and_nothing_else_to_do(peer):
    (delivery,) = peer.receive("q", batch(0))
    acked = peer.session.settle((delivery,), ACK)
    assert acked.done
    assert acked.errors == {}
    nacked = peer.session.settle((delivery,), settlement(Verb.NACK))
    assert errors_of(nacked) == {0: AlreadySettledError}
    assert peer.sent() == []


def test_another_client_s_delivery_is_refused(peer):
    other = Peer()
    (delivery,) = other.receive("q", batch(7))
    settling = peer.session.settle((delivery,), ACK)
    assert errors_of(settling) == {0: InvalidArgumentError}
    assert not delivery._settled
    give_up(delivery)


def test_nothing_to_settle_is_done(peer):
    assert peer.session.settle([], ACK).done


def test_closing_fails_what_was_not_sent(peer):
    (delivery,) = peer.receive("q", batch(7))
    settling = peer.session.settle((delivery,), ACK)
    peer.session.fail_all(FilaError("closed"))
    assert errors_of(settling) == {0: FilaError}


# --- given up by its caller -------------------------------------------------------------------------------------------


def test_what_was_given_up_before_it_was_sent_is_not_sent(peer):
    (delivery,) = peer.receive("q", batch(7))
    settling = peer.session.settle([delivery], ACK)
    peer.session.abandon(settling, peer.now)
    assert peer.sent(Settle) == []
    again = peer.session.settle([delivery], ACK)
    peer.reply(peer.one(Settle), Settled())
    assert again.done
    assert not again.errors


def test_what_was_given_up_may_be_settled_again_and_counts_once(peer):
    first, second = peer.receive("q", batch(7, 2))
    settling = peer.session.settle([first], ACK)
    sent = peer.one(Settle)
    peer.session.abandon(settling, peer.now)
    again = peer.session.settle([first], ACK)
    peer.reply(sent, Settled())
    peer.reply(peer.one(Settle), Settled())
    assert again.done
    assert first._lease.unsettled == 1
    give_up(second)


def test_what_was_given_up_and_is_confirmed_later_is_settled(peer):
    (delivery,) = peer.receive("q", batch(7))
    settling = peer.session.settle([delivery], ACK)
    sent = peer.one(Settle)
    peer.session.abandon(settling, peer.now)
    peer.reply(sent, Settled())
    assert delivery._settled
    assert delivery._lease.unsettled == 0


def test_what_was_given_up_and_failed_may_be_settled_again(peer):
    (delivery,) = peer.receive("q", batch(7))
    settling = peer.session.settle([delivery], ACK)
    peer.session.abandon(settling, peer.now)
    settling = peer.session.settle([delivery], ACK)
    sent = peer.one(Settle)
    peer.session.abandon(settling, peer.now)
    peer.refuse(sent, RequestTimeoutError("late"))
    assert not delivery._settled
    give_up(delivery)


def test_acks_that_no_caller_waits_for_travel_together(peer):
    deliveries = peer.receive("q", batch(7, 3), batch(8, 2))
    for delivery in deliveries:
        assert peer.session.ack_soon([delivery]).done
    assert peer.one(Settle).command == Settle(Verb.ACK, [(7, []), (8, [])])


def test_an_ack_that_no_caller_waits_for_is_sent_until_it_is_confirmed(peer):
    first, second = peer.receive("q", batch(7, 2))
    peer.session.ack_soon([first, second])
    peer.refuse(peer.one(Settle), RequestTimeoutError("late"))
    again = peer.one(Settle)
    assert again.command == Settle(Verb.ACK, [(7, [])])
    peer.reply(again, Settled())
    assert peer.sent() == []


def test_an_ack_that_no_caller_waits_for_ends_with_its_lease(peer):
    (delivery,) = peer.receive("q", batch(7, 1))
    peer.session.ack_soon([delivery])
    peer.reply(peer.one(Settle), Settled([(7, -1, EXPIRED)]))
    assert peer.sent() == []
    assert delivery._lease.unsettled == 0


def test_what_was_settled_before_can_not_be_acked_soon_nor_anything_with_it(peer):
    deliveries = peer.receive("q", batch(7, 2))
    peer.session.ack_soon(deliveries[:1])
    assert errors_of(peer.session.ack_soon([deliveries[1], deliveries[0]])) == {1: AlreadySettledError}
    assert peer.one(Settle).command.fences == [(7, [0])]
    assert errors_of(peer.session.ack_soon([deliveries[1], deliveries[1]])) == {}
    assert peer.one(Settle).command.fences == [(7, [1])]


def test_a_goodbye_names_the_acks_that_are_not_confirmed(peer):
    (delivery,) = peer.receive("q", batch(7, 1))
    peer.session.ack_soon([delivery])
    peer.session.goodbye(peer.now, FilaError("closed"))
    assert [sent.command for sent in peer.sent()] == [Settle(Verb.ACK, [(7, [])]), Goodbye([(7, [0])])]
    with pytest.raises(FilaError, match="closed"):
        peer.session.ack_soon([delivery])


# --- actual costs -----------------------------------------------------------------------------------------------------


def test_actual_costs_travel_with_their_deliveries(peer):
    deliveries = peer.receive("q", batch(7, 3), batch(8, 1))
    deliveries[1].actual_cost = 2.5
    deliveries[3].actual_cost = 0
    peer.session.settle(deliveries, ACK)
    assert peer.one(Settle).command == Settle(Verb.ACK, [(7, []), (8, [])], costs=[(7, 1, 2500), (8, 0, 0)])


def test_different_costs_are_no_different_manners(peer):
    deliveries = peer.receive("q", batch(7, 2))
    for position, delivery in enumerate(deliveries):
        delivery.actual_cost = 1 + position
        peer.session.settle([delivery], ACK)
    assert peer.one(Settle).command == Settle(Verb.ACK, [(7, [])], costs=[(7, 0, 1000), (7, 1, 2000)])


def test_costs_go_to_the_frame_of_their_deliveries(peer):
    count = NACKED_MAX + 1
    deliveries = peer.receive("q", batch(7, count))
    for delivery in deliveries:
        delivery.actual_cost = 3
    peer.session.settle(deliveries, settlement(Verb.NACK))
    assert [len(sent.command.costs) for sent in peer.sent()] == [NACKED_MAX, 1]


def test_an_ack_that_no_caller_waits_for_keeps_its_cost(peer):
    (delivery,) = peer.receive("q", batch(7, 1))
    delivery.actual_cost = 4
    peer.session.ack_soon([delivery])
    sent = peer.one(Settle)
    peer.refuse(sent, RequestTimeoutError("late"))
    assert peer.one(Settle).command == sent.command == Settle(Verb.ACK, [(7, [])], costs=[(7, 0, 4000)])
