"""Receiving from a queue with several partitions: who is asked, what errors mean, and that nothing is leased unseen."""

from random import Random

import pytest

from fila_cluster.client.protocol.partitions.receiving import LOOK_S, STRAYS_LOOK_MS, STRAYS_S
from fila_cluster.client.protocol.receiving import HURRY_S
from fila_cluster.errors import FilaError, QueueNotFoundError, RequestTimeoutError, ShardUnavailableError
from fila_proto_zmq.commands import CancelReceive, Delivered, Done, Receive, Settle, Verb
from fila_proto_zmq.errors import PartitionedError
from tests.unit.client.peer import Peer, batch, give_up

DOWN = ShardUnavailableError("down", details={"refused": True})
LOST = ShardUnavailableError("its worker died")
GONE = QueueNotFoundError("no queue")
NOTHING = Delivered(0, [])


def has(partitions):
    return PartitionedError("partitions", details={"partitions": partitions, "spread": "key"})


class Receiver:
    """A client that receives of ``q``, of which it knows the partitions."""

    def __init__(self, partitions=3):
        self.peer = Peer()
        self.leases = 0
        if partitions:
            self.peer.session.plans.learn("q", has(partitions))

    def receive(self, count=5, wait_ms=0, **queues):
        return self.peer.session.receive(queues or {"q": count}, wait_ms, self.peer.now)

    def asked(self):
        """The receives that are sent, by queue."""
        return {sent.key: sent for sent in self.peer.sent(Receive)}

    def give(self, sent, count, weight=0, lease=None):
        self.leases += 1
        some = [batch(self.leases if lease is None else lease, count)] if count else []
        self.peer.reply(sent, Delivered(0, some, weight=weight))

    def weigh_all(self, frames, **weights):
        for key, sent in frames.items():
            self.peer.reply(sent, Delivered(0, [], weight=weights.get(key.replace("@", ""), 0)))

    def watching(self, wait_ms=10_000, count=5):
        """A receiving that found nothing, and its watches."""
        receiving = self.receive(count, wait_ms)
        self.weigh_all(self.asked())
        return receiving, self.asked()

    def advance(self, seconds):
        """Let time go by, in the session's steps."""
        end = self.peer.now + seconds
        frames = []
        while self.peer.now < end:
            self.peer.now = min(end, max(self.peer.now + 0.001, self.peer.session.next_deadline()))
            frames += self.peer.sent()
        return frames


@pytest.fixture
def receiver():
    return Receiver()


def leases(deliveries):
    give_up(*deliveries)
    return [delivery._lease.id for delivery in deliveries]


def commands(frames):
    return {key: sent.command for key, sent in frames.items()}


# --- who is asked -----------------------------------------------------------------------------------------------------


def test_many_messages_are_looked_for_everywhere_and_asked_for_by_weight(receiver):
    receiving = receiver.receive(40)
    frames = receiver.asked()
    assert commands(frames) == {
        "q@0": Receive(0, partitions=3),
        "q@1": Receive(0, partitions=3),
        "q@2": Receive(0, partitions=3),
    }
    receiver.weigh_all(frames, q0=3, q2=1)
    frames = receiver.asked()
    assert {key: sent.command.count for key, sent in frames.items()} == {
        "q@0": pytest.approx(30, abs=1),
        "q@2": pytest.approx(10, abs=1),
    }
    for sent in frames.values():
        receiver.give(sent, sent.command.count, weight=1)
    assert len(leases(receiving.outcome())) == 40
    assert receiver.peer.sent() == []


def test_if_that_is_not_enough_those_that_have_more_are_asked_until_it_is(receiver):
    receiving = receiver.receive(10)
    receiver.weigh_all(receiver.asked(), q0=1, q1=1)
    frames = receiver.asked()
    receiver.give(frames["q@0"], 1, weight=0)
    assert receiver.asked() == {}
    receiver.give(frames["q@1"], frames["q@1"].command.count, weight=1)
    frames = receiver.asked()
    assert commands(frames) == {"q@1": Receive(4, partitions=3)}
    receiver.give(frames["q@1"], 2, weight=0)
    assert len(leases(receiving.outcome())) == 8
    assert receiver.peer.sent() == []


def test_few_messages_are_looked_for_in_one_after_the_other(receiver):
    receiving = receiver.receive(1)
    for _ in range(2):
        ((_, sent),) = receiver.asked().items()
        assert sent.command == Receive(1, partitions=3)
        receiver.give(sent, 0)
    ((_, sent),) = receiver.asked().items()
    receiver.give(sent, 1, weight=1)
    assert len(leases(receiving.outcome())) == 1


@pytest.mark.parametrize("seed", range(10))
def test_never_are_there_more_than_were_wanted(receiver, seed):
    random = Random(seed)
    count = random.randint(1, 30)
    receiving = receiver.receive(count, random.choice([0, 10_000]))
    backlog = [random.randint(0, 12) for _ in range(3)]
    expected = min(count, sum(backlog))
    while not receiving.done and (frames := receiver.asked()):
        for key, sent in random.sample(list(frames.items()), len(frames)):
            partition = int(key[-1])
            got = min(sent.command.count, backlog[partition])
            backlog[partition] -= got
            receiver.give(sent, got, weight=int(backlog[partition] > 0))
    assert receiving.done == bool(expected) or not receiving.outcome()
    assert len(leases(receiving.value or [])) == expected


def test_without_a_wait_nothing_is_nothing(receiver):
    receiving = receiver.receive()
    receiver.weigh_all(receiver.asked())
    assert receiving.outcome() == []
    assert receiver.peer.sent() == []


def test_with_one_all_are_watched_and_the_first_that_has_something_is_asked(receiver):
    receiving, frames = receiver.watching()
    assert commands(frames) == dict.fromkeys(["q@0", "q@1", "q@2"], Receive(0, 10_000, partitions=3))
    receiver.peer.reply(frames["q@1"], Delivered(0, [], weight=2))
    sent = receiver.peer.sent()
    assert {each.key for each in sent if isinstance(each.command, CancelReceive)} == {"q@0", "q@2"}
    (ask,) = [each for each in sent if isinstance(each.command, Receive)]
    assert (ask.key, ask.command) == ("q@1", Receive(5, partitions=3))
    receiver.give(ask, 1)
    assert len(leases(receiving.outcome())) == 1


def test_where_another_one_was_faster_it_watches_on(receiver):
    receiving, frames = receiver.watching()
    receiver.peer.advance(4)
    receiver.peer.reply(frames["q@1"], Delivered(0, [], weight=2))
    receiver.give(receiver.asked()["q@1"], 0)
    frames = receiver.asked()
    assert commands(frames) == dict.fromkeys(["q@0", "q@1", "q@2"], Receive(0, 6_000, partitions=3))
    receiver.peer.advance(6)
    receiver.weigh_all(frames)
    assert receiving.outcome() == []


def test_one_that_does_not_know_of_the_partitions_learns_it():
    receiver = Receiver(partitions=0)
    receiving = receiver.receive(5, 10_000)
    receiver.peer.refuse(receiver.asked()["q"], has(2))
    frames = receiver.asked()
    assert frames.keys() == {"q@0", "q@1"}
    receiver.weigh_all(frames, q1=1)
    receiver.give(receiver.asked()["q@1"], 5)
    assert len(leases(receiving.outcome())) == 5


# --- messages on their way between partitions -------------------------------------------------------------------------


def say(receiver, frames, **strays):
    """Nothing is there, and some partitions say that messages are, or were, on their way."""
    for key, sent in frames.items():
        receiver.peer.reply(sent, Delivered(0, [], strays=strays.get(key.replace("@", ""), 0)))


def test_while_a_message_is_on_its_way_all_are_looked_at_until_it_is_there(receiver):
    receiving = receiver.receive()
    say(receiver, receiver.asked(), q1=3)
    for _ in range(2):
        frames = receiver.asked()
        assert commands(frames) == dict.fromkeys(["q@0", "q@1", "q@2"], Receive(0, STRAYS_LOOK_MS, partitions=3))
        receiver.peer.advance(STRAYS_LOOK_MS / 1000)
        say(receiver, frames, q1=3)
    receiver.weigh_all({"q@2": receiver.asked()["q@2"]}, q2=1)
    receiver.give(receiver.asked()["q@2"], 1)
    assert len(leases(receiving.outcome())) == 1


def test_one_that_came_over_between_two_looks_is_found(receiver):
    receiving = receiver.receive()
    say(receiver, receiver.asked(), q1=4)
    frames = receiver.asked()
    assert commands(frames) == dict.fromkeys(["q@0", "q@1", "q@2"], Receive(0, 1, partitions=3))
    receiver.weigh_all(frames, q0=1)
    receiver.give(receiver.asked()["q@0"], 1)
    assert len(leases(receiving.outcome())) == 1


def test_what_was_there_before_costs_no_second_look(receiver):
    say_nothing = {"q1": 4}
    receiving = receiver.receive()
    say(receiver, receiver.asked(), **say_nothing)
    say(receiver, receiver.asked(), **say_nothing)
    assert receiving.outcome() == []
    receiving = receiver.receive()
    say(receiver, receiver.asked(), **say_nothing)
    assert receiving.outcome() == []
    assert receiver.peer.sent() == []


@pytest.mark.parametrize("wait_ms", [0, 3000])
def test_what_does_not_arrive_is_not_waited_for_for_ever(receiver, wait_ms):
    receiving, began = receiver.receive(wait_ms=wait_ms), receiver.peer.now
    while not receiving.done:
        frames = receiver.asked()
        (longest,) = {sent.command.wait_ms for sent in frames.values()}
        receiver.peer.advance(longest / 1000)
        say(receiver, frames, q1=3)
    assert receiving.outcome() == []
    assert wait_ms / 1000 + STRAYS_S <= receiver.peer.now - began <= wait_ms / 1000 + STRAYS_S + 2 * STRAYS_LOOK_MS / 1000


def test_after_another_was_faster_all_are_looked_at_once_more(receiver):
    receiving = receiver.receive(wait_ms=10)
    say(receiver, receiver.asked(), q1=2)
    frames = receiver.asked()
    receiver.peer.advance(0.02)
    receiver.weigh_all({"q@2": frames["q@2"]}, q2=1)
    receiver.give(receiver.asked()["q@2"], 0)
    say(receiver, receiver.asked(), q1=2)
    assert receiving.outcome() == []


# --- errors -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("error", [DOWN, LOST])
def test_a_partition_that_is_down_does_not_hold_up_what_others_have(receiver, error):
    receiving = receiver.receive(5, 10_000)
    frames = receiver.asked()
    receiver.peer.refuse(frames.pop("q@0"), error)
    receiver.weigh_all(frames, q1=1)
    receiver.give(receiver.asked()["q@1"], 2)
    assert len(leases(receiving.outcome())) == 2


def test_a_partition_that_goes_down_after_the_look_costs_its_own_messages_only(receiver):
    receiving = receiver.receive(6)
    receiver.weigh_all(receiver.asked(), q0=1, q1=1)
    frames = receiver.asked()
    receiver.peer.refuse(frames["q@0"], DOWN)
    receiver.give(frames["q@1"], 3, weight=1)
    frames = receiver.asked()
    assert commands(frames) == {"q@1": Receive(3, partitions=3)}
    receiver.give(frames["q@1"], 3, weight=1)
    assert len(leases(receiving.outcome())) == 6


def test_a_partition_that_hangs_is_waited_for_a_moment_only_while_others_have_messages(receiver):
    receiving = receiver.receive(5, 10_000)
    frames = receiver.asked()
    receiver.peer.reply(frames["q@1"], Delivered(0, [], weight=1))
    receiver.peer.reply(frames["q@2"], NOTHING)
    receiver.peer.sent()
    receiver.peer.advance(LOOK_S)
    asks = [sent for sent in receiver.peer.sent() if isinstance(sent.command, Receive)]
    assert [(sent.key, sent.command) for sent in asks] == [("q@1", Receive(5, partitions=3))]
    receiver.give(asks[0], 1)
    assert len(leases(receiving.outcome())) == 1


@pytest.mark.parametrize("wait_ms", [0, 10_000])
def test_while_others_have_nothing_one_that_is_down_is_asked_until_it_is_back(receiver, wait_ms):
    receiving = receiver.receive(5, wait_ms)
    frames = receiver.asked()
    receiver.peer.refuse(frames.pop("q@0"), DOWN)
    receiver.weigh_all(frames)
    for _ in range(3):
        frames = receiver.asked()
        receiver.peer.refuse(frames["q@0"], DOWN)
        assert not receiving.done
        receiver.peer.now = receiver.peer.session._calls.due_at
    receiver.peer.reply(receiver.asked()["q@0"], Delivered(0, [], weight=1))
    receiver.give(receiver.asked()["q@0"], 1)
    assert len(leases(receiving.outcome())) == 1


def test_a_partition_that_is_back_and_empty_leaves_no_error(receiver):
    receiving = receiver.receive(5, 10_000)
    frames = receiver.asked()
    receiver.peer.refuse(frames.pop("q@0"), DOWN)
    receiver.weigh_all(frames)
    receiver.weigh_all(receiver.asked())
    assert receiving.outcome() == []


def test_if_all_are_down_for_too_long_that_is_the_error(receiver):
    receiving = receiver.receive(5, 1000)
    begun = receiver.peer.now
    while not receiving.done:
        for sent in receiver.peer.sent(Receive):
            receiver.peer.refuse(sent, DOWN)
        receiver.peer.now = max(receiver.peer.now + 0.001, receiver.peer.session.next_deadline())
    with pytest.raises((ShardUnavailableError, RequestTimeoutError)):
        receiving.outcome()
    assert receiver.peer.now - begun <= 6.1


def test_a_worker_that_died_meanwhile_is_an_error_if_others_have_nothing(receiver):
    receiving = receiver.receive()
    frames = receiver.asked()
    receiver.peer.refuse(frames.pop("q@0"), LOST)
    receiver.weigh_all(frames)
    with pytest.raises(ShardUnavailableError, match="died"):
        receiving.outcome()


def test_one_that_is_down_gets_its_share_when_it_is_back(receiver):
    """Receives that it could not answer do not count."""
    for _ in range(50):
        receiving = receiver.receive(30)
        frames = receiver.asked()
        receiver.peer.refuse(frames.pop("q@0"), DOWN)
        receiver.weigh_all(frames, q1=1, q2=1)
        for sent in receiver.asked().values():
            receiver.give(sent, sent.command.count, weight=1)
        assert len(leases(receiving.outcome())) == 30
    receiver.receive(30)
    receiver.weigh_all(receiver.asked(), q0=1, q1=1, q2=1)
    assert {sent.command.count for sent in receiver.asked().values()} <= {9, 10, 11}


def test_an_error_that_lasts_ends_it_at_once_and_what_others_gave_goes_back(receiver):
    """The second time: the first one has it ask for the number of partitions anew."""
    receiving = receiver.receive(6, 10_000)
    receiver.weigh_all(receiver.asked(), q0=1, q1=1, q2=1)
    frames = receiver.asked()
    receiver.give(frames["q@0"], 2, weight=1)
    receiver.peer.refuse(frames["q@1"], GONE)
    sent = receiver.peer.sent()
    assert [(each.key, each.command) for each in sent if isinstance(each.command, Settle)] == [
        ("q@0", Settle(Verb.RELEASE, [(1, [])]))
    ]
    cancels = [each.command for each in sent if isinstance(each.command, CancelReceive)]
    assert cancels == [CancelReceive(frames["q@2"].header.request, release=True)]
    (whole,) = [each for each in sent if isinstance(each.command, Receive)]
    assert (whole.key, whole.command) == ("q", Receive(6, 10_000))
    receiver.give(frames["q@2"], 2)
    assert [each.command.verb for each in receiver.peer.sent(Settle)] == [Verb.RELEASE]
    receiver.peer.refuse(whole, GONE)
    with pytest.raises(QueueNotFoundError):
        receiving.outcome()


def test_a_queue_that_vanishes_while_it_is_watched_ends_it_at_once(receiver):
    receiving, frames = receiver.watching()
    receiver.peer.refuse(frames["q@2"], GONE)
    sent = receiver.peer.sent()
    assert {each.key for each in sent if isinstance(each.command, CancelReceive)} == {"q@0", "q@1"}
    (whole,) = [each for each in sent if isinstance(each.command, Receive)]
    receiver.peer.refuse(whole, GONE)
    with pytest.raises(QueueNotFoundError):
        receiving.outcome()


def test_another_number_of_partitions_is_followed_while_it_is_watched(receiver):
    receiving, frames = receiver.watching()
    receiver.peer.refuse(frames["q@2"], has(2))
    frames = receiver.asked()
    assert frames.keys() == {"q@0", "q@1"}
    receiver.weigh_all(frames, q0=1)
    receiver.give(receiver.asked()["q@0"], 1)
    assert len(leases(receiving.outcome())) == 1


def test_what_cannot_go_back_is_handed_over_whatever_became_of_the_others(receiver):
    receiving = receiver.receive(6)
    receiver.weigh_all(receiver.asked(), q0=1, q1=1)
    frames = receiver.asked()
    receiver.give(frames["q@0"], 3, lease=0)
    receiver.peer.refuse(frames["q@1"], GONE)
    assert leases(receiving.outcome()) == [0] * 3


# --- together with other queues ---------------------------------------------------------------------------------------


def both(receiver, wait_ms=10_000):
    receiving = receiver.receive(wait_ms=wait_ms, q=5, plain=5)
    return receiving, receiver.asked()


def both_wait(receiver, frames):
    """The frames that wait, since there is nothing."""
    receiver.peer.reply(frames.pop("plain"), NOTHING)
    receiver.weigh_all(frames)
    looks = receiver.asked()
    waiting = {"plain": looks.pop("plain")}
    receiver.weigh_all(looks)
    return waiting | receiver.asked()


def test_a_plain_queue_and_one_with_partitions_are_asked_at_the_same_time(receiver):
    receiving, frames = both(receiver)
    assert frames.keys() == {"plain", "q@0", "q@1", "q@2"}
    receiver.give(frames.pop("plain"), 2)
    receiver.weigh_all(frames, q1=1)
    receiver.give(receiver.asked()["q@1"], 5)
    assert len(leases(receiving.outcome())) == 7


def test_the_partitions_are_hurried_when_the_plain_queue_has_messages(receiver):
    receiving, frames = both(receiver)
    frames = both_wait(receiver, frames)
    assert {key: (sent.command.count, sent.command.wait_ms) for key, sent in frames.items()} == {
        "plain": (5, 10_000),
        "q@0": (0, 10_000),
        "q@1": (0, 10_000),
        "q@2": (0, 10_000),
    }
    receiver.give(frames["plain"], 1)
    cancels = receiver.peer.sent(CancelReceive)
    assert {sent.key for sent in cancels} == {"q@0", "q@1", "q@2"}
    for key in ("q@0", "q@1", "q@2"):
        receiver.peer.reply(frames[key], NOTHING)
    assert len(leases(receiving.outcome())) == 1


def test_who_is_hurried_and_does_not_answer_is_not_waited_for(receiver):
    receiving, frames = both(receiver)
    receiver.give(frames.pop("plain"), 1)
    receiver.peer.reply(frames["q@0"], Delivered(0, [], weight=1))
    receiver.peer.reply(frames["q@1"], NOTHING)
    receiver.peer.sent()
    receiver.peer.advance(HURRY_S)
    assert receiver.asked() == {}
    assert len(leases(receiving.outcome())) == 1


def test_what_is_asked_after_the_hurry_is_hurried_too(receiver):
    receiving, frames = both(receiver)
    receiver.give(frames.pop("plain"), 1)
    receiver.weigh_all(frames, q0=1)
    assert commands(receiver.asked()) == {"q@0": Receive(5, partitions=3)}
    receiver.advance(HURRY_S)
    assert len(leases(receiving.outcome())) == 1


def test_the_plain_queue_is_hurried_when_a_partition_has_messages(receiver):
    receiving, frames = both(receiver)
    frames = both_wait(receiver, frames)
    receiver.peer.reply(frames["q@2"], Delivered(0, [], weight=1))
    receiver.give(receiver.asked()["q@2"], 1)
    assert {sent.key for sent in receiver.peer.sent(CancelReceive)} == {"plain"}
    receiver.peer.reply(frames["plain"], NOTHING)
    assert len(leases(receiving.outcome())) == 1


# --- giving up --------------------------------------------------------------------------------------------------------


def gone_up(receiver, receiving):
    """What is said when the caller is gone."""
    receiver.peer.session.give_up(receiving, receiver.peer.now)
    return receiver.peer.sent()


def test_who_gives_up_while_it_looks_asks_for_nothing_more(receiver):
    receiving = receiver.receive()
    frames = receiver.asked()
    receiver.peer.reply(frames["q@0"], Delivered(0, [], weight=1))
    assert {(sent.key, type(sent.command)) for sent in gone_up(receiver, receiving)} == {
        ("q@1", CancelReceive),
        ("q@2", CancelReceive),
    }
    receiver.peer.reply(frames["q@1"], Delivered(0, [], weight=1))
    assert receiver.peer.sent() == []


def test_who_gives_up_while_it_asks_gives_back_what_came_and_what_comes(receiver):
    receiving = receiver.receive(6)
    receiver.weigh_all(receiver.asked(), q0=1, q1=1)
    frames = receiver.asked()
    receiver.give(frames["q@0"], 3)
    assert {(sent.key, type(sent.command)) for sent in gone_up(receiver, receiving)} == {
        ("q@0", Settle),
        ("q@1", CancelReceive),
    }
    receiver.give(frames["q@1"], 2)
    (late,) = receiver.peer.sent()
    assert (late.key, late.command) == ("q@1", Settle(Verb.RELEASE, [(2, [])]))


def test_who_gives_up_while_it_watches_leaves_nothing(receiver):
    receiving, frames = receiver.watching()
    sent = gone_up(receiver, receiving)
    assert {(each.key, each.command.request) for each in sent} == {
        (key, frame.header.request) for key, frame in frames.items()
    }
    for each in sent:
        receiver.peer.reply(each, Done())
    receiver.peer.advance(60)
    assert receiver.peer.sent() == []


def test_who_gives_up_what_was_there_already_gives_it_back(receiver):
    receiving = receiver.receive(3)
    receiver.weigh_all(receiver.asked(), q0=1)
    receiver.give(receiver.asked()["q@0"], 3)
    assert receiving.done
    assert [type(sent.command) for sent in gone_up(receiver, receiving)] == [Settle]


def test_what_is_there_when_the_client_takes_leave_is_left_to_the_goodbye(receiver):
    receiving = receiver.receive(6)
    receiver.weigh_all(receiver.asked(), q0=1, q1=1)
    frames = receiver.asked()
    receiver.give(frames["q@0"], 3)
    receiver.peer.session.goodbye(receiver.peer.now, FilaError("closed"))
    receiver.give(frames["q@1"], 3)
    with pytest.raises(FilaError, match="closed"):
        receiving.outcome()


def test_what_is_there_for_good_when_the_client_takes_leave_is_handed_over(receiver):
    receiving = receiver.receive(6)
    receiver.weigh_all(receiver.asked(), q0=1, q1=1)
    frames = receiver.asked()
    receiver.give(frames["q@0"], 3, lease=0)
    receiver.peer.session.goodbye(receiver.peer.now, FilaError("closed"))
    receiver.peer.sent()
    receiver.peer.session.fail_all(FilaError("closed"))
    assert leases(receiving.outcome()) == [0] * 3


def test_the_end_of_the_client_is_its_end(receiver):
    receiving, _ = receiver.watching()
    receiver.peer.session.fail_all(FilaError("closed"))
    with pytest.raises(FilaError, match="closed"):
        receiving.outcome()


def test_where_no_broker_is_it_fails_as_other_calls_do():
    peer = Peer(connected=False)
    peer.session.plans.learn("q", has(3))
    receiving = peer.session.receive({"q": 5}, 0, peer.now)
    peer.sent()
    peer.advance(5)
    peer.sent()
    with pytest.raises(RequestTimeoutError):
        receiving.outcome()
