"""Consuming a queue with several partitions: who is asked for how many, and that no message is lost or held beyond the prefetch."""

import gc
from collections import defaultdict
from random import Random

import pytest

from fila_cluster.client.protocol.partitions.feed import ANSWER_S, FIRST_LOOK_S, PAUSE_S, WATCH_S
from fila_cluster.client.protocol.settling import ACK
from fila_cluster.errors import (
    FilaError,
    InternalError,
    PermissionDeniedError,
    QueueNotFoundError,
    RequestTimeoutError,
    ShardUnavailableError,
)
from fila_proto_zmq.codec import to_fault
from fila_proto_zmq.commands import (
    CancelReceive,
    Delivered,
    Done,
    Extend,
    Goodbye,
    Heartbeat,
    Receive,
    Settle,
    Settled,
    Subscribe,
    Subscribed,
    Unsubscribe,
    Verb,
)
from fila_proto_zmq.errors import LeaseExpiredError, PartitionedError
from fila_proto_zmq.limits import DELIVERY_MESSAGES_MAX
from tests.unit.client.peer import Peer, batch, give_up

DOWN = ShardUnavailableError("down", details={"refused": True})
LOST = ShardUnavailableError("its worker died")
GONE = QueueNotFoundError("no queue")


def has(partitions, spread="key"):
    """The broker's refusal of a command on the whole queue."""
    return PartitionedError("partitions", details={"partitions": partitions, "spread": spread})


def number(sent):
    return int(sent.key.partition("@")[2])


OPENED = []


@pytest.fixture(autouse=True)
def _all_is_given_up():
    """Deliveries that a test leaves are no warning."""
    yield
    for feeding in OPENED:
        give_up(*feeding.taken, *feeding.subscription.ready)
    OPENED.clear()


class Feeding:
    """A client that consumes ``q``, and the broker's side of it. Heartbeats are answered at once."""

    def __init__(self, partitions=3, prefetch=10, *, auto_extend=True, known=True):
        self.peer = Peer()
        self.leases = 0
        self.taken = []
        OPENED.append(self)
        self.beats = []
        self.beat = Done()
        if known:
            self.peer.session.plans.learn("q", has(partitions))
        self.subscription = self.peer.session.subscribe("q", prefetch, self.peer.now, auto_extend=auto_extend)

    def sent(self):
        """What the client sends, without heartbeats."""
        others = []
        for sent in self.peer.sent():
            if isinstance(sent.command, Subscribe):
                self.beats.append(sent)
                if isinstance(self.beat, FilaError):
                    self.peer.refuse(sent, self.beat)
                else:
                    self.peer.reply(sent, self.beat if isinstance(self.beat, Subscribed) else Subscribed(1, 0))
            else:
                others.append(sent)
        return others

    def asked(self):
        """The receives that ask for messages, and for nothing: both by partition."""
        asks, looks = {}, {}
        for sent in self.sent():
            assert isinstance(sent.command, Receive), sent
            kind = asks if sent.command.count else looks
            assert number(sent) not in kind
            kind[number(sent)] = sent
        return asks, looks

    def begin(self, *weights):
        """Answer the first looks with these weights, and return what is asked then."""
        asks, looks = self.asked()
        assert not asks
        assert all(sent.command.wait_ms == 0 for sent in looks.values())
        for partition, weight in enumerate(weights):
            self.weigh(looks[partition], weight)
        return self.asked()

    def weigh(self, sent, weight):
        self.peer.reply(sent, Delivered(0, [], weight=weight))

    def give(self, sent, count=None, weight=1, **options):
        """Answer an ask."""
        self.leases += 1
        some = [batch(self.leases, sent.command.count if count is None else count, **options)]
        self.peer.reply(sent, Delivered(0, some if count != 0 else [], weight=weight))

    def take(self, count=None):
        ready = self.subscription.ready
        taken = [ready.popleft() for _ in range(len(ready) if count is None else count)]
        self.taken += taken
        return taken

    def ack(self, deliveries):
        """Ack, and let the broker confirm; what is asked then."""
        self.peer.session.settle(deliveries, ACK)
        others = []
        for sent in self.sent():
            if isinstance(sent.command, Settle):
                self.peer.reply(sent, Settled())
            else:
                others.append(sent)
        assert not others
        return self.asked()

    def until(self, kind, seconds):
        """Let time go by, until the client sends something of a kind."""
        end = self.peer.now + seconds
        while True:
            some = [sent for sent in self.sent() if isinstance(sent.command, kind)]
            if some:
                return some
            if self.peer.now >= end:
                return []
            self.peer.now = min(end, max(self.peer.now + 0.001, self.peer.session.next_deadline()))


def counts(asks):
    return {partition: sent.command.count for partition, sent in asks.items()}


# --- who is asked -----------------------------------------------------------------------------------------------------


def test_members_are_subscribed_for_nothing_and_all_partitions_are_looked_at():
    feeding = Feeding(3)
    asks, looks = feeding.asked()
    assert not asks
    assert looks.keys() == {0, 1, 2}
    assert {(sent.key, sent.command.prefetch) for sent in feeding.beats} == {("q@0", 0), ("q@1", 0), ("q@2", 0)}


def test_a_client_that_does_not_know_of_the_partitions_learns_it_from_the_refusal():
    feeding = Feeding(known=False)
    feeding.beat = has(2)
    assert feeding.sent() == []
    feeding.beat = Done()
    asks, looks = feeding.asked()
    assert (asks, looks.keys()) == ({}, {0, 1})
    assert not feeding.subscription.ended


def test_the_ready_ones_share_the_prefetch_by_weight_and_the_others_are_watched():
    feeding = Feeding(3, prefetch=40)
    asks, looks = feeding.begin(3, 0, 1)
    assert counts(asks) == {0: pytest.approx(30, abs=1), 2: pytest.approx(10, abs=1)}
    assert sum(counts(asks).values()) == 40
    assert {partition: sent.command.wait_ms for partition, sent in looks.items()} == {1: 1000 * WATCH_S}
    assert all(sent.command.leased for sent in asks.values())


def test_the_first_messages_wait_a_moment_for_a_partition_that_does_not_answer():
    feeding = Feeding(3)
    _, looks = feeding.asked()
    feeding.weigh(looks[0], 1)
    feeding.weigh(looks[1], 1)
    feeding.peer.advance(0.5)  # as a busy machine takes: else all would come from two partitions
    assert feeding.asked() == ({}, {})
    feeding.peer.advance(FIRST_LOOK_S - 0.5)
    asks, _ = feeding.asked()
    assert asks.keys() == {0, 1}


def test_what_is_watched_is_asked_as_soon_as_it_has_something():
    feeding = Feeding(2, prefetch=1)
    asks, looks = feeding.begin(0, 0)
    assert not asks
    feeding.weigh(looks[1], 5)
    asks, looks = feeding.asked()
    assert (counts(asks), looks) == ({1: 1}, {})


def test_a_watch_that_finds_nothing_begins_anew():
    feeding = Feeding(2)
    _, looks = feeding.begin(0, 0)
    for _ in range(3):
        feeding.peer.advance(WATCH_S)
        feeding.sent()
        feeding.weigh(looks[0], 0)
        asks, again = feeding.asked()
        assert not asks
        assert (again.keys(), again[0].command) == ({0}, Receive(0, round(1000 * WATCH_S), partitions=2))
        looks |= again


def test_a_lost_watch_begins_anew_after_a_pause_and_nothing_is_cancelled():
    feeding = Feeding(2)
    feeding.begin(0, 0)
    begun = feeding.peer.now
    again = feeding.until((Receive, CancelReceive), WATCH_S + ANSWER_S + 2 * PAUSE_S)
    assert {type(sent.command) for sent in again} == {Receive}
    assert feeding.peer.now - begun == pytest.approx(WATCH_S + ANSWER_S + PAUSE_S, abs=0.1)


def test_a_partition_that_is_empty_is_watched():
    feeding = Feeding(2, prefetch=4)
    asks, _ = feeding.begin(1, 0)
    feeding.give(asks[0], 2, weight=0)
    asks, looks = feeding.asked()
    assert (asks, looks.keys()) == ({}, {0})


def test_where_another_consumer_was_faster_it_is_looked_at_again_after_a_pause():
    feeding = Feeding(2, prefetch=4)
    asks, _ = feeding.begin(1, 0)
    feeding.give(asks[0], 0, weight=7)
    assert feeding.asked() == ({}, {})
    feeding.peer.advance(PAUSE_S)
    _, looks = feeding.asked()
    assert looks.keys() == {0}


def test_a_large_prefetch_is_asked_for_in_frames_and_keeps_the_shares():
    feeding = Feeding(2, prefetch=8000)
    looks = {number(sent): sent for sent in feeding.sent()}
    feeding.weigh(looks[0], 3)
    feeding.weigh(looks[1], 1)
    asked = defaultdict(int)
    for sent in feeding.sent():
        assert sent.command.count <= DELIVERY_MESSAGES_MAX
        asked[number(sent)] += sent.command.count
    assert sum(asked.values()) == 8000
    assert asked[0] == pytest.approx(6000, rel=0.01)


# --- the prefetch -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("partitions", [1, 8])
def test_a_prefetch_of_one_leases_one_however_many_partitions_there_are(partitions):
    feeding = Feeding(partitions, prefetch=1)
    asks, _ = feeding.begin(*[1] * partitions)
    for _ in range(20):
        assert list(counts(asks).values()) == [1]
        (ask,) = asks.values()
        feeding.give(ask)
        assert feeding.asked() == ({}, {})
        deliveries = feeding.take()
        assert feeding.asked() == ({}, {})
        asks, _ = feeding.ack(deliveries)


def test_more_is_asked_for_when_half_is_settled():
    feeding = Feeding(1, prefetch=8)
    asks, _ = feeding.begin(1)
    feeding.give(asks[0])
    deliveries = feeding.take(5)
    assert feeding.ack(deliveries[:3]) == ({}, {})
    asks, _ = feeding.ack(deliveries[3:4])
    assert counts(asks) == {0: 4}
    assert feeding.ack(deliveries[4:5]) == ({}, {})


def test_one_that_took_all_gets_more_for_each_it_settles():
    """It may wait for the next ones, and never settle half before."""
    feeding = Feeding(1, prefetch=100)
    asks, _ = feeding.begin(1)
    feeding.give(asks[0])
    deliveries = feeding.take()
    asks, _ = feeding.ack(deliveries[:1])
    assert counts(asks) == {0: 1}


def test_a_caller_that_waits_gets_what_there_is_room_for():
    feeding = Feeding(1, prefetch=100)
    asks, _ = feeding.begin(1)
    feeding.give(asks[0])
    deliveries = feeding.take(10)
    assert feeding.ack(deliveries) == ({}, {})
    feeding.take()
    assert feeding.asked() == ({}, {})
    waiting = feeding.subscription.want()
    asks, _ = feeding.asked()
    assert counts(asks) == {0: 10}
    feeding.give(asks[0])
    assert waiting.done


def test_a_batch_that_lacks_a_few_asks_for_these():
    feeding = Feeding(2, prefetch=100)
    asks, _ = feeding.begin(1, 1)
    feeding.give(asks[0], 40, weight=0)
    gathering = feeding.peer.session.gather(feeding.subscription, 100, 60.0, feeding.peer.now)
    feeding.give(asks[1], 50, weight=1)
    asks, _ = feeding.asked()
    assert counts(asks) == {1: 10}
    feeding.give(asks[1])
    assert gathering.done


def test_another_prefetch_counts_at_once():
    feeding = Feeding(1, prefetch=2)
    asks, _ = feeding.begin(1)
    feeding.give(asks[0])
    feeding.peer.session.set_prefetch(feeding.subscription, 6, feeding.peer.now)
    asks, _ = feeding.asked()
    assert counts(asks) == {0: 4}
    feeding.give(asks[0])
    feeding.peer.session.set_prefetch(feeding.subscription, 4, feeding.peer.now)
    deliveries = feeding.take()
    assert feeding.ack(deliveries[:2]) == ({}, {})
    asks, _ = feeding.ack(deliveries[2:3])
    assert counts(asks) == {0: 1}


def test_a_lease_that_ended_at_the_broker_gives_its_room_back_once():
    feeding = Feeding(1, prefetch=4, auto_extend=False)
    asks, _ = feeding.begin(1)
    feeding.give(asks[0])
    held = feeding.take(1)
    feeding.beat = Subscribed(1, 0, [feeding.leases])
    asks = feeding.until(Receive, 3)
    assert [sent.command.count for sent in asks] == [4]
    assert not feeding.subscription.ready
    feeding.beat = Done()
    feeding.peer.session.settle(held, ACK)
    (settle,) = feeding.sent()
    fault = to_fault(LeaseExpiredError("expired"))
    feeding.peer.reply(settle, Settled([(settle.command.fences[0][0], -1, fault)]))
    assert feeding.asked() == ({}, {})


def test_a_forgotten_delivery_takes_its_room_until_its_lease_ends():
    feeding = Feeding(1, prefetch=1)
    asks, _ = feeding.begin(1)
    feeding.give(asks[0], duration_ms=30_000)
    (delivery,) = feeding.take()
    feeding.peer.session.forgotten.append(delivery._lease)
    give_up(delivery)
    begun = feeding.peer.now
    feeding.until(Receive, 60)
    assert feeding.peer.now - begun == pytest.approx(30, abs=2.1)


def test_settling_what_failed_for_now_gives_no_room():
    feeding = Feeding(1, prefetch=1)
    asks, _ = feeding.begin(1)
    feeding.give(asks[0])
    settling = feeding.peer.session.settle(feeding.take(), ACK)
    (sent,) = feeding.sent()
    feeding.peer.refuse(sent, InternalError("later"))
    assert settling.done
    feeding.until(Receive, 5)


@pytest.mark.parametrize("seed", range(25))
def test_never_is_more_held_and_asked_for_than_the_prefetch_and_nothing_is_lost(seed):
    """Answers come late, short, as errors, and not at all; consumers settle, forget, and take their time; in the end all comes."""
    random = Random(seed)
    partitions, prefetch = random.randint(1, 6), random.choice([1, 2, 7, 40])
    feeding = Feeding(partitions, prefetch)
    peer, backlog = feeding.peer, [random.randint(0, 60) for _ in range(partitions)]
    total = sum(backlog)
    asks, settles, held, got = {}, [], [], 0
    pending = []
    for turn in range(4000):
        calm = turn > 2500
        for sent in feeding.sent():
            if isinstance(sent.command, Receive) and sent.command.count:
                asks[sent.header.request] = sent
            elif isinstance(sent.command, Receive):
                pending.append(sent)
            elif isinstance(sent.command, CancelReceive):
                asks.pop(sent.command.request, None)
                peer.reply(sent, Done())
            elif isinstance(sent.command, Settle):
                settles.append(sent)
        leased = len(feeding.subscription.ready) + len(held)
        under_way = sum(sent.command.count for sent in asks.values())
        assert leased + under_way <= prefetch
        if pending and random.random() < 0.7:
            look = pending.pop(random.randrange(len(pending)))
            if backlog[number(look)] or look.command.wait_ms == 0 or random.random() < 0.1:
                if random.random() < 0.9 or calm:
                    feeding.weigh(look, int(backlog[number(look)] > 0))
                else:
                    peer.refuse(look, DOWN)
            else:
                pending.append(look)
        if asks and random.random() < 0.5:
            ask = asks.pop(random.choice(list(asks)))
            partition = number(ask)
            kind = "some" if calm else random.choice(["some", "some", "refused", "lost", "silent"])
            if kind == "some":
                count = min(backlog[partition], random.randint(0, ask.command.count))
                backlog[partition] -= count
                feeding.give(ask, count, weight=int(backlog[partition] > 0))
            elif kind == "silent":
                pass  # its time runs out, and the broker still has the messages
            else:
                peer.refuse(ask, DOWN if kind == "refused" else LOST)
        if feeding.subscription.ready and random.random() < 0.7:
            held += feeding.take(1)
            got += 1
        if held and random.random() < 0.5:
            peer.session.settle([held.pop(random.randrange(len(held)))], ACK)
        while settles and random.random() < 0.5:
            peer.reply(settles.pop(), Settled())
        peer.advance(random.choice([0, 0, 0.001, 0.05, 0.5]))
        if got == total:
            break
    assert got == total


# --- errors -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("error", [DOWN, LOST])
def test_a_partition_that_is_down_pauses_and_the_others_go_on(error):
    feeding = Feeding(2, prefetch=2)
    asks, _ = feeding.begin(1, 1)
    feeding.peer.refuse(asks[0], error)
    feeding.give(asks[1])
    sent = feeding.sent()
    cancels = [each for each in sent if isinstance(each.command, CancelReceive)]
    assert [each.command for each in cancels] == [
        CancelReceive(asks[0].header.request, release=True) for _ in range(error is LOST)
    ]
    (ask,) = [each for each in sent if isinstance(each.command, Receive)]
    assert (ask.key, ask.command.count) == ("q@1", 1)
    feeding.peer.advance(PAUSE_S)
    (look,) = [each for each in feeding.sent() if isinstance(each.command, Receive)]
    assert (look.key, look.command.count) == ("q@0", 0)


def test_an_ask_without_an_answer_is_cancelled_and_what_comes_late_goes_back():
    feeding = Feeding(2, prefetch=1)
    asks, _ = feeding.begin(1, 0)
    (ask,) = asks.values()
    feeding.peer.advance(ANSWER_S)
    cancels = [sent for sent in feeding.sent() if isinstance(sent.command, CancelReceive)]
    assert [sent.command for sent in cancels] == [CancelReceive(ask.header.request, release=True)]
    feeding.give(ask)
    assert not feeding.subscription.ready
    settles = [sent for sent in feeding.sent() if isinstance(sent.command, Settle)]
    assert [sent.command for sent in settles] == [Settle(Verb.RELEASE, [(feeding.leases, [])])]


def test_a_partition_that_was_down_is_not_behind_when_it_is_back():
    """What it was asked for and could not give does not count."""
    feeding = Feeding(2, prefetch=100)
    asks, _ = feeding.begin(1, 1)
    feeding.peer.refuse(asks[0], DOWN)
    feeding.give(asks[1])
    asks, _ = feeding.asked()
    feeding.give(asks[1])
    held = feeding.take()
    feeding.peer.advance(PAUSE_S)
    _, looks = feeding.asked()
    feeding.weigh(looks[0], 1)
    asks, _ = feeding.ack(held)
    assert counts(asks) == {0: pytest.approx(50, abs=1), 1: pytest.approx(50, abs=1)}


def test_what_can_not_be_read_counts_as_an_error_and_its_room_is_free_once():
    feeding = Feeding(2, prefetch=4)
    asks, _ = feeding.begin(1, 0)
    bad = batch(1, 2)
    bad.records = [b"?", b"?"]
    feeding.peer.reply(asks[0], Delivered(0, [bad], weight=1))
    assert [type(sent.command) for sent in feeding.sent()] == [CancelReceive]
    _, looks = {}, feeding.until(Receive, 1)
    feeding.weigh(looks[0], 1)
    asks, _ = feeding.asked()
    assert counts(asks) == {0: 4}


def test_over_a_lost_connection_it_asks_again():
    feeding = Feeding(2, prefetch=2)
    asks, _ = feeding.begin(1, 0)
    feeding.peer.session.disconnected(feeding.peer.now)
    feeding.peer.welcome()
    feeding.peer.advance(PAUSE_S)
    looks = [sent for sent in feeding.sent() if isinstance(sent.command, Receive)]
    assert {sent.key for sent in looks} == {"q@0", "q@1"}
    feeding.weigh(looks[0], 1)
    asks = [sent for sent in feeding.sent() if isinstance(sent.command, Receive)]
    assert [sent.command.count for sent in asks] == [2]


# --- another queue of that name ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("noticed", ["ask", "beat"])
def test_another_number_of_partitions_is_followed_and_callers_wait_on(noticed):
    feeding = Feeding(2, prefetch=4)
    asks, _ = feeding.begin(1, 0)
    feeding.give(asks[0], 2, weight=1)
    asks, _ = feeding.asked()
    feeding.take(1)
    waiting = feeding.peer.session.gather(feeding.subscription, 9, 60.0, feeding.peer.now, 60.0)
    feeding.beat = has(3)
    if noticed == "ask":
        feeding.peer.refuse(asks[0], has(3))
        sent = feeding.sent()
        feeding.beat = Done()
    else:
        feeding.peer.now = feeding.peer.session.heartbeat_at
        sent = feeding.sent()
        feeding.beat = Done()
    sent += feeding.sent()
    assert not waiting.done
    assert not feeding.subscription.ended
    looks = [each for each in sent if isinstance(each.command, Receive) and not each.command.count]
    assert [(each.key, each.command.wait_ms) for each in looks if each.key == "q@2"] == [("q@2", 0)]
    assert {each.command.partitions for each in sent if isinstance(each.command, (Receive, Subscribe))} == {3}
    assert not [each for each in sent if isinstance(each.command, Settle)]
    assert len(feeding.take()) == 1


def test_a_queue_that_has_no_partitions_any_longer_is_consumed_as_such():
    feeding = Feeding(2, prefetch=4)
    asks, _ = feeding.begin(1, 0)
    feeding.beat = GONE
    feeding.peer.refuse(asks[0], GONE)
    feeding.sent()
    feeding.beat = Done()
    feeding.sent()
    beat = feeding.beats[-1]
    assert (beat.key, beat.command.prefetch) == ("q", 4)
    feeding.peer.push("q", feeding.subscription.id, batch(5), incarnation=1)
    assert [each.queue for each in feeding.take()] == ["q"]
    assert not feeding.subscription.ended


def test_a_queue_that_got_partitions_is_followed():
    feeding = Feeding(known=False, prefetch=4)
    feeding.sent()
    feeding.peer.push("q", feeding.subscription.id, batch(5), incarnation=1)
    feeding.peer.now = feeding.peer.session.heartbeat_at
    feeding.beat = has(2)
    feeding.sent()
    feeding.beat = Done()
    _, looks = feeding.asked()
    assert looks.keys() == {0, 1}
    assert len(feeding.take()) == 1


def test_a_queue_that_is_gone_ends_it():
    feeding = Feeding(2, prefetch=4)
    asks, _ = feeding.begin(1, 0)
    waiting = feeding.subscription.want()
    feeding.beat = GONE
    feeding.peer.refuse(asks[0], GONE)
    feeding.sent()
    feeding.sent()
    assert waiting.done
    assert feeding.subscription.ended
    with pytest.raises(QueueNotFoundError):
        raise feeding.subscription.failure()


def test_any_other_error_that_lasts_ends_it():
    feeding = Feeding(2)
    feeding.begin(0, 0)
    waiting = feeding.subscription.want()
    feeding.beat = PermissionDeniedError("not yours")
    feeding.until(Unsubscribe, 3)
    assert waiting.done
    with pytest.raises(PermissionDeniedError):
        raise feeding.subscription.failure()


# --- the end ----------------------------------------------------------------------------------------------------------


def test_the_end_gives_everything_back_but_what_its_caller_holds():
    feeding = Feeding(3, prefetch=4)
    asks, looks = feeding.begin(1, 1, 0)
    feeding.give(asks[0])
    feeding.take(1)
    feeding.peer.session.unsubscribe(feeding.subscription, feeding.peer.now)
    sent = feeding.sent()
    cancelled = {(each.key, each.command.request) for each in sent if isinstance(each.command, CancelReceive)}
    assert cancelled == {(each.key, each.header.request) for each in (asks[1], looks[2])}
    assert all(each.command.release for each in sent if isinstance(each.command, CancelReceive))
    ends = {each.key: each.command for each in sent if isinstance(each.command, Unsubscribe)}
    assert ends.keys() == {"q@0", "q@1", "q@2"}
    assert ends["q@0"].holds == [1]
    (released,) = [each for each in sent if isinstance(each.command, Settle)]
    assert (released.key, released.command.verb, released.command.fences) == ("q@0", Verb.RELEASE, [(1, [1])])
    assert feeding.subscription.ended
    feeding.give(asks[1])  # it was under way
    (late,) = feeding.sent()
    assert (late.key, late.command) == ("q@1", Settle(Verb.RELEASE, [(2, [])]))
    assert not feeding.subscription.ready


def test_what_its_caller_holds_is_renewed_after_the_end():
    feeding = Feeding(1, prefetch=1)
    asks, _ = feeding.begin(1)
    feeding.give(asks[0])
    feeding.take()
    feeding.peer.session.unsubscribe(feeding.subscription, feeding.peer.now)
    for sent in feeding.sent():
        feeding.peer.reply(sent, Done())
    feeding.peer.now = feeding.peer.session.heartbeat_at
    sent = feeding.peer.sent()
    assert {type(each.command) for each in sent} == {Extend, Heartbeat}
    assert {each.key for each in sent} == {"q@0"}


def test_an_iterator_that_was_dropped_ends_it():
    feeding = Feeding(2)
    feeding.begin(0, 0)
    feeding.peer.session.abandoned.append(feeding.subscription)
    assert {type(sent.command) for sent in feeding.sent()} == {CancelReceive, Unsubscribe}


def test_a_goodbye_ends_it_without_more():
    feeding = Feeding(2)
    asks, _ = feeding.begin(1, 1)
    feeding.peer.session.goodbye(feeding.peer.now, FilaError("closed"))
    assert {(sent.key, type(sent.command)) for sent in feeding.sent()} == {("q@0", Goodbye), ("q@1", Goodbye)}
    assert feeding.subscription.ended
    assert feeding.subscription.error is None
    feeding.give(asks[0])
    assert feeding.sent() == []


def test_a_client_that_has_left_opens_none():
    peer = Peer()
    peer.session.plans.learn("q", has(2))
    peer.session.goodbye(peer.now, FilaError("closed"))
    peer.sent()
    subscription = peer.session.subscribe("q", 10, peer.now, auto_extend=True)
    assert subscription.ended
    assert peer.sent() == []


def test_nothing_is_sent_when_it_is_over():
    feeding = Feeding(2)
    feeding.begin(0, 0)
    feeding.peer.session.unsubscribe(feeding.subscription, feeding.peer.now)
    for sent in feeding.sent():
        feeding.peer.reply(sent, Done())
    feeding.peer.advance(120)
    assert feeding.sent() == []
    feeding.peer.advance(120)
    assert feeding.sent() == []


# --- leases -----------------------------------------------------------------------------------------------------------


def test_each_members_heartbeat_renews_what_came_of_its_partition():
    feeding = Feeding(2, prefetch=2)
    asks, _ = feeding.begin(1, 1)
    for partition in (0, 1):
        feeding.give(asks[partition])
    feeding.beats.clear()
    feeding.until(Extend, 2.1)
    assert {(sent.key, *sent.command.renew) for sent in feeding.beats} == {("q@0", 1), ("q@1", 2)}
    assert {tuple(sent.command.holds) for sent in feeding.beats} == {()}


def test_a_short_lease_is_renewed_in_time():
    feeding = Feeding(1, prefetch=1)
    asks, _ = feeding.begin(1)
    feeding.give(asks[0], duration_ms=900)
    feeding.beats.clear()
    feeding.until(Extend, 0.35)
    assert [sent.command.renew for sent in feeding.beats] == [[1]]


def test_without_renewals_the_leases_are_only_named():
    feeding = Feeding(1, prefetch=1, auto_extend=False)
    asks, _ = feeding.begin(1)
    feeding.give(asks[0])
    feeding.beats.clear()
    feeding.until(Extend, 2.1)
    assert {(tuple(sent.command.renew), tuple(sent.command.holds)) for sent in feeding.beats} == {((), (1,))}


def test_what_is_delivered_at_most_once_is_acked_when_it_is_handed_over_and_has_room_until_then():
    feeding = Feeding(1, prefetch=2)
    asks, _ = feeding.begin(1)
    feeding.give(asks[0], at_most_once=True)
    assert feeding.asked() == ({}, {})
    delivery, _ = feeding.take()
    assert feeding.asked() == ({}, {})
    feeding.peer.session.hand_over(delivery)
    (settle,) = feeding.sent()
    assert settle.command == Settle(Verb.ACK, [(1, [0])])
    feeding.peer.reply(settle, Settled())
    asks, _ = feeding.asked()
    assert counts(asks) == {0: 1}


def test_what_was_removed_when_it_was_delivered_takes_no_room():
    feeding = Feeding(1, prefetch=2)
    asks, _ = feeding.begin(1)
    feeding.peer.reply(asks[0], Delivered(0, [batch(0, 2)], weight=1))
    asks, _ = feeding.asked()
    assert counts(asks) == {0: 2}


def test_a_feed_that_is_over_is_not_kept():
    feeding = Feeding(2)
    feeding.begin(0, 0)
    feeding.peer.session.unsubscribe(feeding.subscription, feeding.peer.now)
    for sent in feeding.sent():
        feeding.peer.reply(sent, Done())
    feeding.peer.advance(60)
    feeding.sent()
    gc.collect()
    assert feeding.peer.session._consumption._feeds._open == {}
    assert feeding.peer.session._consumption.subscriptions == {}


def test_a_refusal_of_the_client_ends_it_with_that_error():
    feeding = Feeding(2)
    feeding.begin(0, 0)
    waiting = feeding.subscription.want()
    feeding.peer.session._consumption.refused(RequestTimeoutError("not in"))
    assert waiting.done
    with pytest.raises(RequestTimeoutError):
        raise feeding.subscription.failure()
