"""At most once: a message is gone with its delivery; what is pushed is leased, so that only its holder can give it back."""

from collections.abc import Callable

import pytest

from fila_proto_zmq.commands import Delivered, QueueOptions, Receive, Subscribe, Unsubscribe, UpdateQueue, Verb
from fila_worker.core.deliver.delivery import deliver
from fila_worker.core.effects import ClientCall, Push
from tests.support.shard.shard import Got, ShardHarness, opened


@pytest.fixture
def shard() -> ShardHarness:
    harness = ShardHarness()
    harness.create(delivery="at_most_once")  # type: ignore[arg-type]
    return harness


def payloads(got: list[Got]) -> list[bytes]:
    return [each.payload for each in got]


def pushed(shard: ShardHarness, count: int = 1) -> list[Got]:
    """Messages that were pushed to a subscription and not settled."""
    shard.enqueue(*[b"%d" % number for number in range(count)])
    shard.subscribe(100)
    return shard.take_pushed()


def change(shard: ShardHarness, delivery: str) -> None:
    shard.ask(UpdateQueue(QueueOptions(delivery=delivery), ["delivery"]))


def is_gone(shard: ShardHarness) -> bool:
    """Whether there is no message any more, now and after a restart."""
    before = (shard.counts(), shard.counts("q.dlq"))
    shard.restart()
    return before == (shard.counts(), shard.counts("q.dlq")) == ((0, 0, 0), (0, 0, 0))


def test_what_was_pushed_to_a_client_that_is_ended_does_not_come_again(shard: ShardHarness) -> None:
    """It may have been handed over."""
    pushed(shard)
    shard.shard.end_client(b"c1", shard.now_ms)
    shard.turn()
    assert is_gone(shard)


# --- received ---------------------------------------------------------------------------------------------------------


def test_what_is_received_is_gone_and_has_no_lease(shard: ShardHarness) -> None:
    shard.enqueue(b"0", b"1")
    answer = shard.ask(Receive(9))
    assert isinstance(answer, Delivered)
    (batch,) = answer.batches
    assert (batch.lease, batch.expires_ms, batch.at_most_once) == (0, shard.now_ms, True)
    assert payloads(opened(answer)) == [b"0", b"1"]
    assert is_gone(shard)


def test_a_receive_takes_no_more_than_it_delivers(shard: ShardHarness) -> None:
    shard.enqueue(b"0", b"1", b"2")
    assert payloads(shard.receive(2)) == [b"0", b"1"]
    assert shard.counts() == (1, 0, 0)
    shard.restart()
    assert payloads(shard.receive(9)) == [b"2"]


def test_a_waiting_receive_is_no_different(shard: ShardHarness) -> None:
    request = shard.send(Receive(1, 60_000))
    shard.enqueue(b"x")
    answer = shard.late.pop(request)
    assert isinstance(answer, Delivered)
    assert [batch.lease for batch in answer.batches] == [0]
    assert is_gone(shard)


def test_a_delivery_counts_as_an_ack(shard: ShardHarness) -> None:
    shard.enqueue(b"0", b"1")
    shard.receive(9)
    stats = shard.stats()
    assert (stats.delivered, stats.acked) == (2, 2)


def test_its_key_has_no_slot_taken_by_what_was_received() -> None:
    shard = ShardHarness()
    shard.create(delivery="at_most_once", max_in_flight_per_key=1)  # type: ignore[arg-type]
    shard.enqueue(b"0", b"1")
    assert [payloads(shard.receive()), payloads(shard.receive())] == [[b"0"], [b"1"]]


# --- pushed -----------------------------------------------------------------------------------------------------------


def test_what_is_pushed_is_leased_and_says_so(shard: ShardHarness) -> None:
    shard.enqueue(b"0", b"1")
    shard.shard.apply(ClientCall(b"c1", 1, "q", shard.now_ms), Subscribe(1, 100))
    ((batch,),) = [each.delivered.batches for each in shard.shard.turn(shard.now_ms) if isinstance(each, Push)]
    assert (batch.at_most_once, batch.lease > 0, len(batch.records)) == (True, True, 2)
    assert shard.counts() == (0, 2, 0)


ENDINGS: dict[str, Callable[[ShardHarness, list[Got]], object]] = {
    "ack": lambda shard, got: shard.ack(got),
    "nack": lambda shard, got: shard.nack(got, "boom"),
    "retry": lambda shard, got: shard.settle(Verb.RETRY, got, after_ms=1_000),
    "fail": lambda shard, got: shard.settle(Verb.FAIL, got),
    "defer": lambda shard, got: shard.settle(Verb.DEFER, got, after_ms=1_000),
    "its consumer is lost": lambda shard, got: shard.pass_time(15_000),
    "its lease expires": lambda shard, got: expire(shard),
}


def expire(shard: ShardHarness) -> None:
    for _ in range(3):
        shard.heartbeat()
        shard.pass_time(10_000)


@pytest.mark.parametrize("ending", ENDINGS)
@pytest.mark.parametrize("restarted", [False, True])
def test_however_its_lease_ends_it_is_gone(shard: ShardHarness, ending: str, restarted: bool) -> None:
    got = pushed(shard, 3)
    if restarted:
        shard.restart()
    ENDINGS[ending](shard, got)
    shard.pass_time(60_000)
    assert is_gone(shard)


@pytest.mark.parametrize("restarted", [False, True])
def test_only_its_holder_may_give_it_back(shard: ShardHarness, restarted: bool) -> None:
    got = pushed(shard, 3)
    if restarted:
        shard.restart()
    shard.ask(Unsubscribe(1))
    shard.ack(got[:1])
    shard.nack(got[1:2])
    shard.settle(Verb.RELEASE, got[2:])
    assert [(each.payload, each.attempts) for each in shard.receive(9, client=b"c2")] == [(b"2", 0)]
    assert is_gone(shard)


def test_a_client_that_leaves_gives_back_what_it_has_not_acked(shard: ShardHarness) -> None:
    shard.ack(pushed(shard, 3)[:1])
    shard.goodbye()
    assert payloads(shard.receive(9, client=b"c2")) == [b"1", b"2"]


def test_a_subscription_gets_more_as_it_acks(shard: ShardHarness) -> None:
    shard.subscribe(1)
    shard.enqueue(b"0", b"1")
    first = shard.take_pushed()
    shard.ack(first)
    assert payloads(first) + payloads(shard.take_pushed()) == [b"0", b"1"]


def test_a_slot_of_a_capped_key_is_free_however_a_lease_ends() -> None:
    for ending in ENDINGS.values():
        shard = ShardHarness()
        shard.create(delivery="at_most_once", max_in_flight_per_key=1)  # type: ignore[arg-type]
        ending(shard, pushed(shard, 2))
        assert shard.receive(9, client=b"c2") or shard.take_pushed()


# --- over a restart ---------------------------------------------------------------------------------------------------


def test_a_message_is_never_received_twice_over_restarts(shard: ShardHarness) -> None:
    shard.enqueue(*[b"%d" % number for number in range(20)])
    seen = []
    for _ in range(12):
        seen += payloads(shard.receive(2))
        shard.restart()
    assert seen == [b"%d" % number for number in range(20)]


def test_a_crash_before_the_answer_loses_nothing(shard: ShardHarness) -> None:
    shard.enqueue(b"x")
    shard.shard.apply(ClientCall(b"c1", 1, "q", shard.now_ms), Receive(1))
    deliver(shard.shard, shard.now_ms)  # not committed, so nothing was sent
    shard.restart()
    assert payloads(shard.receive()) == [b"x"]


# --- changed ----------------------------------------------------------------------------------------------------------


def test_a_changed_queue_delivers_anew_from_then_on(shard: ShardHarness) -> None:
    shard.enqueue(b"0", b"1", b"2")
    change(shard, "at_least_once")
    (got,) = shard.receive()
    assert got.lease > 0
    shard.nack([got])
    change(shard, "at_most_once")
    assert payloads(shard.receive(9)) == [b"0", b"1", b"2"]
    assert is_gone(shard)


@pytest.mark.parametrize("restarted", [False, True])
def test_what_was_pushed_before_the_change_stays_what_it_was(shard: ShardHarness, restarted: bool) -> None:
    once = pushed(shard)
    change(shard, "at_least_once")
    if restarted:
        shard.restart()
    shard.nack(once)
    assert is_gone(shard)


@pytest.mark.parametrize("verb", [Verb.NACK, Verb.RETRY, Verb.DEFER, Verb.FAIL])
@pytest.mark.parametrize("restarted", [False, True])
def test_what_was_leased_at_least_once_is_not_lost_by_a_change(verb: Verb, restarted: bool) -> None:
    shard = ShardHarness()
    shard.create()
    shard.enqueue(b"x")
    got = shard.receive()
    change(shard, "at_most_once")
    if restarted:
        shard.restart()
    shard.settle(verb, got)
    assert payloads(shard.receive(9) + shard.receive(9, "q.dlq")) == [b"x"]
