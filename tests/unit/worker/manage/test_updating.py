"""Updating a queue: only the options given change, for what happens next; None is back to the default."""

import pytest

from fila_proto_zmq.commands import QueueOptions, UpdateQueue, Verb
from fila_proto_zmq.errors import InvalidArgumentError
from tests.support.hooked import TENANT, hooked, keys, send, update
from tests.support.shard import ShardHarness

DEFAULT_LEASE_MS = 30_000


def lease_ms(shard: ShardHarness) -> int:
    """How long the next delivery is leased."""
    shard.enqueue(b"x")
    (got,) = shard.receive()
    shard.ack([got])
    return got.expires_ms - shard.now_ms


def options(shard: ShardHarness) -> QueueOptions:
    return shard.shard.queues["q"].options


def test_a_timeout_goes_back_to_the_brokers_default() -> None:
    shard = hooked(visibility_timeout_ms=5_000)
    assert lease_ms(shard) == 5_000
    update(shard, visibility_timeout_ms=None)
    assert lease_ms(shard) == DEFAULT_LEASE_MS


def test_without_its_limit_of_attempts_a_message_is_retried_for_ever() -> None:
    shard = hooked(max_attempts=1)
    shard.enqueue(b"x")
    update(shard, max_attempts=None)
    for _ in range(10):
        shard.nack(shard.receive())
    assert shard.counts() == (1, 0, 0)


def test_dead_letters_go_where_the_queue_says_when_they_die() -> None:
    shard = hooked(dead_letter="discard")
    shard.enqueue(b"0", b"1", b"2")
    for dead_letter in ("discard", None, "discard"):
        update(shard, dead_letter=dead_letter)
        shard.settle(Verb.FAIL, shard.receive())
    assert [each.payload for each in shard.receive(9, "q.dlq")] == [b"1"]


def test_what_is_queued_stays_as_it_was_enqueued() -> None:
    shard = hooked(on_enqueue=TENANT, default_ttl_ms=60_000)
    send(shard, {"tenant": "a"})
    update(shard, on_enqueue=None, default_ttl_ms=1_000)
    shard.pass_time(5_000)
    assert keys(shard) == ["a"]


def test_several_options_change_together() -> None:
    shard = hooked(max_attempts=3)
    update(shard, max_attempts=None, visibility_timeout_ms=1_000, max_in_flight_per_key=2)
    assert options(shard) == QueueOptions(visibility_timeout_ms=1_000, max_in_flight_per_key=2)


def test_or_not_at_all() -> None:
    shard = hooked(visibility_timeout_ms=5_000)
    with pytest.raises(InvalidArgumentError, match="max_attempts of 0"):
        update(shard, visibility_timeout_ms=9_000, max_attempts=0)
    assert lease_ms(shard) == 5_000


def test_nothing_given_changes_nothing(shard: ShardHarness) -> None:
    shard.ask(UpdateQueue(QueueOptions(max_attempts=3), []))
    assert options(shard) == QueueOptions()


def test_the_name_of_its_dlq_is_refused_and_the_queue_stays_as_it_is(shard: ShardHarness) -> None:
    with pytest.raises(InvalidArgumentError, match="update that one"):
        shard.ask(UpdateQueue(QueueOptions(max_attempts=3), ["max_attempts"]), "q.dlq")
    assert options(shard) == shard.shard.queues["q.dlq"].options == QueueOptions()


def test_subscriptions_and_messages_notice_nothing(shard: ShardHarness) -> None:
    shard.subscribe(2)
    shard.enqueue(b"0", b"1", b"2")
    got = shard.take_pushed()
    update(shard, max_attempts=9)
    assert (len(got), shard.take_pushed(), shard.counts()) == (2, [], (1, 2, 0))
    shard.ack(got)
    assert [each.payload for each in shard.take_pushed()] == [b"2"]
