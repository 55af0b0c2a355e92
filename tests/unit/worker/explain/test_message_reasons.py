"""Why a message is not in line: the first reason names each situation, with its numbers."""

import pytest

from fila_proto_zmq.commands import (
    QueueOptions,
    Reserve,
    UpdateQueue,
    Verb,
)
from fila_proto_zmq.errors import MessageNotFoundError
from fila_proto_zmq.ids import client_name
from fila_proto_zmq.names import shard_of
from tests.support.shard.explained import codes, first, these, why, why_now
from tests.support.shard.shard import SHARDS, ShardHarness

C1 = client_name(b"c1")


def test_delayed(shard: ShardHarness) -> None:
    (message,) = shard.enqueue(b"m", delay_ms=5000)
    shard.subscribe(10)
    shard.pass_time(2000)
    told = why(shard, message)
    assert these(first(told, "delayed"), ["due_ms", "remaining_ms"]) == [1_005_000, 3000]
    assert told.reasons[0].until_ms == told.estimated_ms == 1_005_000
    assert (told.state, told.position, codes(told)) == ("delayed", None, ["delayed"])
    assert told.reasons[0].text == "it is delayed for another 3.0 s"


def test_delayed_without_a_consumer_has_both_reasons_and_no_estimate(shard: ShardHarness) -> None:
    (message,) = shard.enqueue(b"m", delay_ms=5000)
    told = why(shard, message)
    assert codes(told) == ["delayed", "no_consumers"]
    assert told.estimated_ms == 0


def test_waiting_for_its_next_attempt(shard: ShardHarness) -> None:
    (message,) = shard.enqueue(b"m")
    shard.subscribe(10)
    shard.settle(Verb.RETRY, shard.take_pushed(), after_ms=4000, error="timeout at upstream")
    told = why(shard, message)
    assert these(first(told, "retry_wait"), ["attempts", "error", "due_ms"]) == [1, "timeout at upstream", 1_004_000]
    assert told.reasons[0].text == "1 attempt failed (timeout at upstream): the next one in 4.0 s"
    assert told.estimated_ms == 1_004_000


def test_deferred(shard: ShardHarness) -> None:
    deferred, other = shard.enqueue(b"1", b"2", throttle_keys=[["mail"]])
    shard.subscribe(1)
    shard.settle(Verb.DEFER, shard.take_pushed(), after_ms=2500)
    told = why(shard, deferred)
    assert first(told, "deferred")["remaining_ms"] == 2500
    told = why(shard, other)
    assert these(first(told, "parked"), ["throttle_key", "remaining_ms"]) == ["mail", 2500]
    assert told.reasons[0].until_ms == told.estimated_ms == 1_002_500
    assert (told.state, told.position) == ("pending", 0)


def test_deferred_after_a_failed_attempt(shard: ShardHarness) -> None:
    (message,) = shard.enqueue(b"m")
    shard.subscribe(1)
    shard.settle(Verb.RETRY, shard.take_pushed(), error="timeout at upstream")
    shard.settle(Verb.DEFER, shard.take_pushed(), after_ms=2500)
    told = why(shard, message)
    assert these(first(told, "deferred"), ["attempts", "error"]) == [1, "timeout at upstream"]
    assert told.reasons[0].text == "its consumer deferred it: it is delivered again in 2.5 s"
    shard.restart()
    assert first(why(shard, message), "deferred")["remaining_ms"] == 2500


def test_delayed_while_its_throttle_key_is_parked_for_longer(shard: ShardHarness) -> None:
    _, message = shard.enqueue(b"1", b"2", throttle_keys=[["mail"]], delay_ms=[0, 1000])
    shard.subscribe(1)
    shard.settle(Verb.DEFER, shard.take_pushed(), after_ms=2500)
    told = why(shard, message)
    assert codes(told) == ["delayed", "parked"]
    assert told.estimated_ms == told.reasons[1].until_ms == 1_002_500


def test_delayed_until_its_throttle_key_delivers_again(shard: ShardHarness) -> None:
    _, message = shard.enqueue(b"1", b"2", throttle_keys=[["mail"]], delay_ms=[0, 3000])
    shard.subscribe(1)
    shard.settle(Verb.DEFER, shard.take_pushed(), after_ms=2500)
    told = why(shard, message)
    assert codes(told) == ["delayed"]
    assert told.estimated_ms == 1_003_000


def test_leased(shard: ShardHarness) -> None:
    (message,) = shard.enqueue(b"m")
    shard.receive()
    shard.pass_time(4000)
    told = why(shard, message)
    details = first(told, "leased")
    assert these(details, ["consumer", "reservation", "leased_ms", "expires_ms", "attempts"]) == [
        C1, False, 1_000_000, 1_030_000, 0,
    ]  # fmt: skip
    assert told.reasons[0].text == f"leased by client {C1} for 4.0 s; the lease ends in 26.0 s, unless it is renewed"
    assert (told.state, told.reasons[0].until_ms, told.estimated_ms) == ("leased", 1_030_000, 0)


def test_leased_by_a_reservation(shard: ShardHarness) -> None:
    (message,) = shard.enqueue(b"m")
    shard.ask(Reserve("batch-7", 0, 10, 60_000))
    details = first(why(shard, message), "leased")
    assert these(details, ["consumer", "reservation", "expires_ms"]) == ["batch-7", True, 1_060_000]


def test_dead_lettered(shard: ShardHarness) -> None:
    (message,) = shard.enqueue(b"m")
    shard.settle(Verb.FAIL, shard.receive(), error="no such account")
    shard.pass_time(3000)
    told = why(shard, message)
    names = ["reason", "error", "source_queue", "dead_letter_queue", "dead_lettered_ms", "attempts"]
    assert these(first(told, "dead_lettered"), names) == ["failed", "no such account", "q", "q.dlq", 1_000_000, 1]
    assert told.reasons[0].text == (
        "it was dead-lettered into 'q.dlq' 3.0 s ago (failed after 1 attempt: no such account); "
        "`redrive q.dlq` sends it back to 'q'"
    )
    assert told.state == "dead_lettered"
    there = why(shard, message, queue="q.dlq")
    assert (there.state, codes(there), there.position) == ("dead_lettered", ["dead_lettered", "no_consumers"], 0)


def test_too_old_and_dead_lettered(shard: ShardHarness) -> None:
    (message,) = shard.enqueue(b"m", ttl_ms=1000)
    shard.pass_time(10_000)
    told = why(shard, message)
    assert these(first(told, "expired"), ["reason", "dead_letter_queue"]) == ["expired", "q.dlq"]
    assert "`redrive q.dlq`" in told.reasons[0].text
    assert told.state == "dead_lettered"


def test_too_old_and_not_swept_yet(shard: ShardHarness) -> None:
    (message,) = shard.enqueue(b"m", ttl_ms=1000)
    shard.now_ms += 1000
    told = why_now(shard, message)
    assert these(first(told, "expired"), ["expires_ms"]) == [1_001_000]
    assert (told.state, told.estimated_ms) == ("pending", 0)


def test_a_time_to_live_that_ends_first(shard: ShardHarness) -> None:
    shard.subscribe(10)
    (message,) = shard.enqueue(b"m", ttl_ms=1000, delay_ms=5000)
    told = why(shard, message)
    assert codes(told) == ["delayed", "expires"]
    assert told.reasons[1].text == "its time to live ends in 1.0 s, before it would be delivered"
    assert (told.reasons[1].until_ms, told.estimated_ms) == (1_001_000, 0)


@pytest.mark.parametrize("queue", ["q", "q.dlq"])
def test_a_message_that_is_gone(shard: ShardHarness, queue: str) -> None:
    (message,) = shard.enqueue(b"m")
    shard.ack(shard.receive())
    with pytest.raises(MessageNotFoundError, match="settled or removed, or never in it"):
        why(shard, message, queue=queue)


def test_dead_letters_of_another_shard_are_asked_for_there(shard: ShardHarness) -> None:
    (message,) = shard.enqueue(b"m")
    queue = shard.shard.queues["q"]
    queue.options.dead_letter = next(f"dead{number}" for number in range(99) if _elsewhere(f"dead{number}"))
    shard.ack(shard.receive())
    with pytest.raises(MessageNotFoundError, match=r"its dead letters go to queue 'dead.*: ask there") as refusal:
        why(shard, message)
    assert refusal.value.details["dead_letters"] == queue.options.dead_letter


def _elsewhere(name: str) -> bool:

    return shard_of(name, SHARDS) != 3


def test_dead_letters_that_are_discarded(shard: ShardHarness) -> None:
    shard.ask(UpdateQueue(QueueOptions(dead_letter="discard"), ["dead_letter"]))
    (message,) = shard.enqueue(b"m")
    shard.settle(Verb.FAIL, shard.receive())
    with pytest.raises(MessageNotFoundError, match="discards its dead letters"):
        why(shard, message)
