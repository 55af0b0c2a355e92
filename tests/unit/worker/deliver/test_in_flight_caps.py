"""``max_in_flight_per_key``: how many of a key's messages may be leased or waiting for a retry; 1 is strict order."""

from collections.abc import Callable

import pytest

from fila_proto_zmq.commands import Cancel, PurgeQueue, QueueOptions, UpdateQueue, Verb
from fila_proto_zmq.ids import parse_id
from tests.support.shard.shard import Got, ShardHarness

PARK_MS = 5_000


def capped(cap: int, **options: object) -> ShardHarness:
    shard = ShardHarness()
    shard.create(max_in_flight_per_key=cap, **options)  # type: ignore[arg-type]
    return shard


def payloads(got: list[Got]) -> list[bytes]:
    return [each.payload for each in got]


def recap(shard: ShardHarness, cap: int | None) -> None:
    shard.ask(UpdateQueue(QueueOptions(max_in_flight_per_key=cap), ["max_in_flight_per_key"]))


def park(shard: ShardHarness) -> None:
    """Let the throttle key ``t`` deliver nothing for a while."""
    shard.shard.park({"t": shard.now_ms + PARK_MS}, shard.now_ms)
    shard.turn()


# --- what counts ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("cap", [1, 2, 5])
def test_at_most_so_many_of_a_key_are_leased(cap: int) -> None:
    shard = capped(cap)
    shard.enqueue(*[b"x"] * 9)
    assert [len(shard.receive(9)), len(shard.receive(9))] == [cap, 0]
    assert shard.counts() == (9 - cap, cap, 0)


def test_each_key_has_its_own_cap_so_no_other_key_waits() -> None:
    shard = capped(2)
    for key in "abc":
        shard.enqueue(*[b"x"] * 5, key=key)
    assert "".join(sorted(each.key for each in shard.receive(99))) == "aabbcc"


def test_it_holds_for_all_consumers_together() -> None:
    shard = capped(3)
    for client in (b"c1", b"c2"):
        shard.subscribe(100, client=client)
    shard.enqueue(*[b"x"] * 9)
    assert sum(len(shard.take_pushed(client)) for client in (b"c1", b"c2")) == 3


def test_a_subscription_gets_the_next_with_each_settlement() -> None:
    shard = capped(1)
    shard.subscribe(100)
    shard.enqueue(b"0", b"1", b"2")
    seen = []
    while got := shard.take_pushed():
        seen.append(payloads(got))
        shard.ack(got)
    assert seen == [[b"0"], [b"1"], [b"2"]]


ENDINGS: dict[str, Callable[[ShardHarness, list[Got]], object]] = {
    "ack": lambda shard, got: shard.ack(got),
    "nack": lambda shard, got: shard.nack(got),
    "fail": lambda shard, got: shard.settle(Verb.FAIL, got),
    "release": lambda shard, got: shard.settle(Verb.RELEASE, got),
    "retry": lambda shard, got: shard.settle(Verb.RETRY, got),
    "goodbye": lambda shard, got: shard.goodbye(),
    "expiry": lambda shard, got: shard.pass_time(15_000),
}


@pytest.mark.parametrize("ending", ENDINGS)
@pytest.mark.parametrize("cap", [1, 2])
def test_however_a_lease_ends_its_slot_is_free(ending: str, cap: int) -> None:
    shard = capped(cap)
    shard.enqueue(*[b"x"] * 9)
    ENDINGS[ending](shard, shard.receive(9))
    assert len(shard.receive(9)) == cap


@pytest.mark.parametrize("verb", [Verb.RETRY, Verb.DEFER])
def test_a_message_that_waits_for_its_next_attempt_keeps_its_slot(verb: Verb) -> None:
    shard = capped(2)
    shard.enqueue(b"0", b"1", b"2")
    shard.settle(verb, shard.receive(), after_ms=5_000)
    assert payloads(shard.receive(9)) == [b"1"]
    shard.pass_time(5_000)
    assert payloads(shard.receive(9)) == [b"0"]


def test_a_message_that_was_never_delivered_has_none_while_it_is_delayed() -> None:
    shard = capped(1)
    shard.enqueue(b"later", delay_ms=5_000)
    shard.enqueue(b"now")
    assert payloads(shard.receive(9)) == [b"now"]


def test_cancelling_a_message_that_waits_for_a_retry_frees_its_slot() -> None:
    shard = capped(1)
    first, _ = shard.enqueue(b"0", b"1")
    shard.settle(Verb.RETRY, shard.receive(), after_ms=60_000)
    shard.ask(Cancel(*parse_id(first)))
    assert payloads(shard.receive(9)) == [b"1"]


# --- one: strict order ------------------------------------------------------------------------------------------------


def test_a_key_with_one_slot_is_worked_on_in_order_whatever_happens_to_its_messages() -> None:
    shard = capped(1, max_attempts=2)
    shard.enqueue(b"0", b"1", b"2")
    seen = []
    for verb in (Verb.NACK, Verb.ACK, Verb.RETRY, Verb.FAIL, Verb.RELEASE, Verb.DEFER, Verb.NACK, Verb.NACK):
        got = shard.receive(9)
        seen += payloads(got)
        shard.settle(verb, got, after_ms=1_000)
        shard.pass_time(1_000)
    assert seen == [b"0", b"0", b"1", b"1", b"2", b"2", b"2", b"2"]
    assert payloads(shard.receive(9, "q.dlq")) == [b"1", b"2"]


def test_what_is_more_urgent_goes_first_but_not_before_a_slot_is_free() -> None:
    shard = capped(1)
    shard.enqueue(b"0", b"1")
    got = shard.receive()
    shard.enqueue(b"urgent", priority=-1)
    assert shard.receive() == []
    shard.ack(got)
    assert payloads(shard.receive()) == [b"urgent"]


def test_a_throttled_first_message_holds_those_behind_it_but_no_other_key() -> None:
    shard = capped(1)
    park(shard)
    shard.enqueue(b"0", throttle_keys=[["t"]])
    shard.enqueue(b"1")
    shard.enqueue(b"other", key="other")
    assert payloads(shard.receive(9)) == [b"other"]
    shard.pass_time(PARK_MS)
    seen = []
    while got := shard.receive(9):
        seen += payloads(got)
        shard.ack(got)
    assert seen == [b"0", b"1"]


def test_what_comes_before_a_throttled_message_passes_it() -> None:
    shard = capped(1)
    park(shard)
    shard.enqueue(b"0", throttle_keys=[["t"]])
    shard.enqueue(b"1")
    assert shard.receive() == []
    shard.enqueue(b"urgent", priority=-1)
    assert payloads(shard.receive()) == [b"urgent"]


def test_a_throttled_first_message_that_is_cancelled_holds_up_no_message() -> None:
    shard = capped(1)
    park(shard)
    (first,) = shard.enqueue(b"0", throttle_keys=[["t"]])
    shard.enqueue(b"1")
    assert shard.receive() == []
    shard.ask(Cancel(*parse_id(first)))
    assert payloads(shard.receive()) == [b"1"]


def test_with_more_slots_a_throttled_message_is_passed_by_those_behind_it() -> None:
    shard = capped(2)
    park(shard)
    shard.enqueue(b"0", throttle_keys=[["t"]])
    shard.enqueue(b"1", b"2", b"3")
    assert payloads(shard.receive(9)) == [b"1", b"2"]


# --- changed, and recovered -------------------------------------------------------------------------------------------


def test_a_higher_cap_lets_more_go_at_once() -> None:
    shard = capped(1)
    shard.subscribe(100)
    shard.enqueue(*[b"x"] * 5)
    assert len(shard.take_pushed()) == 1
    recap(shard, 3)
    assert len(shard.take_pushed()) == 2
    recap(shard, None)
    assert len(shard.take_pushed()) == 2


@pytest.mark.parametrize("before", [None, 4])
def test_a_lower_cap_waits_until_enough_are_settled(before: int | None) -> None:
    shard = ShardHarness()
    shard.create(max_in_flight_per_key=before)  # type: ignore[arg-type]
    shard.enqueue(*[b"x"] * 9)
    got = shard.receive(4)
    recap(shard, 2)
    shard.ack(got[:2])
    assert shard.receive(9) == []
    shard.ack(got[2:3])
    assert len(shard.receive(9)) == 1


@pytest.mark.parametrize("verb", [Verb.RETRY, Verb.DEFER])
def test_slots_are_taken_over_a_restart(verb: Verb) -> None:
    shard = capped(3)
    shard.enqueue(*[b"x"] * 9)
    leased, waiting = shard.receive(), shard.receive()
    shard.settle(verb, waiting, after_ms=60_000)
    shard.restart()
    assert len(shard.receive(9)) == 1
    shard.ack(leased)
    assert len(shard.receive(9)) == 1


def test_strict_order_holds_over_a_restart() -> None:
    shard = capped(1)
    shard.enqueue(b"0", b"1")
    got = shard.receive()
    shard.restart()
    assert shard.receive() == []
    shard.nack(got)
    assert payloads(shard.receive()) == [b"0"]


# --- who goes first ---------------------------------------------------------------------------------------------------

RETURNS: dict[str, Callable[[ShardHarness, list[Got]], object]] = {
    "nack": lambda shard, got: shard.nack(got),
    "retry at once": lambda shard, got: shard.settle(Verb.RETRY, got),
    "retry later": lambda shard, got: shard.settle(Verb.RETRY, got, after_ms=2_000),
    "defer": lambda shard, got: shard.settle(Verb.DEFER, got, after_ms=2_000),
    "release": lambda shard, got: shard.settle(Verb.RELEASE, got),
    "expiry": lambda shard, got: shard.pass_time(30_000),
    "goodbye": lambda shard, got: shard.goodbye(),
}


@pytest.mark.parametrize("returns", RETURNS)
@pytest.mark.parametrize("restarted", [False, True])
@pytest.mark.parametrize("throttle_keys", [[], [["t"]]], ids=["one lane", "two lanes"])
@pytest.mark.parametrize("ttl_ms", [0, 600_000])
def test_a_message_that_was_delivered_goes_before_more_urgent_ones(
    returns: str, restarted: bool, throttle_keys: list[list[str]], ttl_ms: int
) -> None:
    """Not acked yet, it is still the one before: the others wait for it, over a restart too."""
    shard = capped(1)
    (first,) = shard.enqueue(b"first", priority=5, throttle_keys=throttle_keys, ttl_ms=ttl_ms)  # type: ignore[arg-type]
    for round_ in range(2):
        got = shard.receive()
        assert payloads(got) == [b"first"]
        shard.enqueue(b"urgent %d" % round_, priority=-9)
        RETURNS[returns](shard, got)
        if restarted:
            shard.restart()
        if returns in {"retry later", "defer"}:
            assert shard.receive(9) == []
            shard.pass_time(2_000)
    (again,) = shard.receive(9)
    assert (again.payload, again.id, again.record.priority) == (b"first", first, 5)
    shard.ack([again])
    for expected in (b"urgent 0", b"urgent 1"):
        got = shard.receive(9)
        assert payloads(got) == [expected]
        shard.ack(got)
    assert shard.counts() == (0, 0, 0)


def test_one_that_waits_for_tokens_keeps_its_place_before_more_urgent_ones() -> None:
    shard = capped(1)
    shard.enqueue(b"first", priority=5, throttle_keys=[["t"]])  # type: ignore[arg-type]
    got = shard.receive()
    shard.enqueue(b"urgent", priority=-9)
    park(shard)
    shard.nack(got)
    assert shard.receive(9) == []
    shard.pass_time(PARK_MS)
    assert payloads(shard.receive(9)) == [b"first"]


@pytest.mark.parametrize("end", ["cancel", "purge", "expire"])
def test_one_that_is_removed_while_it_goes_first_holds_up_no_message(end: str) -> None:
    shard = capped(1)
    (first,) = shard.enqueue(b"first", priority=5, ttl_ms=60_000)
    shard.nack(shard.receive())
    shard.enqueue(b"urgent", priority=-9)
    match end:
        case "cancel":
            assert shard.ask(Cancel(*parse_id(first))).removed  # type: ignore[attr-defined]
        case "purge":
            shard.ask(PurgeQueue())
            shard.enqueue(b"urgent", priority=-9)
        case "expire":
            shard.pass_time(61_000)
            assert payloads(shard.receive(9, "q.dlq")) == [b"first"]
    assert payloads(shard.receive(9)) == [b"urgent"]


def test_a_dead_letter_lies_at_its_own_place_again() -> None:
    shard = capped(1)
    shard.enqueue(b"less urgent", priority=5)
    shard.nack(shard.receive())
    shard.settle(Verb.FAIL, shard.receive())
    shard.enqueue(b"more urgent", priority=-5)
    shard.settle(Verb.FAIL, shard.receive())
    assert payloads(shard.receive(9, "q.dlq")) == [b"more urgent", b"less urgent"]


@pytest.mark.parametrize("cap", [2, 3])
def test_with_more_in_flight_a_message_that_comes_back_keeps_its_place(cap: int) -> None:
    shard = capped(cap)
    shard.enqueue(*[b"old"] * cap)
    got = shard.receive(9)
    shard.enqueue(*[b"urgent"] * cap, priority=-9)
    shard.nack(got[1:])
    assert payloads(shard.receive(9)) == [b"urgent"] * (cap - 1)


def test_without_a_cap_the_most_urgent_goes_first() -> None:
    shard = ShardHarness()
    shard.create()
    shard.enqueue(b"first", priority=5)
    got = shard.receive()
    shard.enqueue(b"urgent", priority=-9)
    shard.nack(got)
    assert payloads(shard.receive(9)) == [b"urgent", b"first"]
