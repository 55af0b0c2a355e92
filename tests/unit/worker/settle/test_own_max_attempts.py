"""A message's own number of deliveries wins over its queue's, however its attempts end."""

import pytest

from fila_proto_zmq.codec import from_fault
from fila_proto_zmq.commands import (
    Browse,
    Browsed,
    CreateQueue,
    Enqueue,
    Enqueued,
    Explain,
    Explained,
    QueueOptions,
    UpdateQueue,
    Verb,
)
from fila_proto_zmq.errors import InvalidArgumentError
from fila_proto_zmq.ids import parse_id
from fila_proto_zmq.limits import MAX_ATTEMPTS_MAX
from fila_proto_zmq.names import shard_of
from fila_proto_zmq.record import seal_envelope, unpack_record
from tests.support.shard.shard import ShardHarness

RETRIES = "function on_failure(msg) return { action = 'retry' } end"


def capped(shard: ShardHarness, cap: int | None, **options: object) -> None:
    """Give the queue a number, and other options."""
    options["max_attempts"] = cap
    shard.ask(UpdateQueue(QueueOptions(**options), list(options)))  # type: ignore[arg-type]


def deliveries(shard: ShardHarness) -> int:
    """How often a message is delivered until it is a dead letter."""
    count = 0
    while got := shard.receive():
        count += 1
        shard.nack(got)
    assert shard.counts("q.dlq") == (1, 0, 0)
    return count


@pytest.mark.parametrize(("queue_cap", "own", "expected"), [(None, 2, 2), (5, 2, 2), (1, 3, 3), (4, 0, 4)])
@pytest.mark.parametrize("restarted", [False, True])
def test_it_wins(shard: ShardHarness, queue_cap: int | None, own: int, expected: int, restarted: bool) -> None:
    capped(shard, queue_cap)
    shard.enqueue(b"x", max_attempts=own)
    if restarted:
        shard.restart()
    assert deliveries(shard) == expected


def test_each_message_of_a_batch_has_its_own(shard: ShardHarness) -> None:
    shard.enqueue(b"1", b"2", b"3", max_attempts=[1, 0, 2])  # type: ignore[arg-type]
    for expected in ([b"1", b"2", b"3"], [b"2", b"3"], [b"2"]):
        got = shard.receive(9)
        assert [each.payload for each in got] == expected
        shard.nack(got)


def test_expired_leases_and_lost_consumers_count(shard: ShardHarness) -> None:
    shard.enqueue(b"x", max_attempts=2, lease_ms=1000)
    shard.receive()
    shard.pass_time(2000)
    assert shard.counts() == (1, 0, 0)
    shard.receive(client=b"c2")
    shard.pass_time(16_000)
    assert (shard.counts(), shard.counts("q.dlq")) == ((0, 0, 0), (1, 0, 0))


def test_a_hook_can_not_ask_for_more(shard: ShardHarness) -> None:
    capped(shard, None, on_failure=RETRIES)
    shard.enqueue(b"x", max_attempts=3)
    assert deliveries(shard) == 3


def test_a_redriven_message_has_the_same_number_again(shard: ShardHarness) -> None:
    shard.enqueue(b"x", max_attempts=2)
    assert deliveries(shard) == 2
    shard.redrive()
    assert deliveries(shard) == 2


def test_in_a_dead_letter_queue_it_does_not_count() -> None:
    shard = ShardHarness(index=shard_of("parked", 8))
    shard.create("q")
    shard.create("parked", max_attempts=3)
    shard.ask(CreateQueue(QueueOptions(dead_letter="parked")), "source")
    shard.enqueue(b"x", queue="source", max_attempts=1)
    shard.settle(Verb.NACK, shard.receive(queue="source"), "source")
    for _ in range(2):
        shard.settle(Verb.NACK, shard.receive(queue="parked"), "parked")
    assert shard.counts("parked.dlq") == (1, 0, 0), "the queue's own three deliveries, with that of the source"
    shard.enqueue(b"y", max_attempts=1)
    shard.nack(shard.receive())
    for _ in range(3):
        got = shard.receive(queue="q.dlq")
        shard.settle(Verb.NACK, got, "q.dlq")
    assert shard.counts("q.dlq") == (1, 0, 0)


def test_an_uncounted_return_leaves_it_alone(shard: ShardHarness) -> None:
    shard.enqueue(b"x", max_attempts=1)
    for _ in range(3):
        shard.settle(Verb.RELEASE, shard.receive())
    assert deliveries(shard) == 1


def test_it_is_shown(shard: ShardHarness) -> None:
    [message_id] = shard.enqueue(b"x", max_attempts=4)
    page = shard.ask(Browse(1))
    assert isinstance(page, Browsed)
    assert unpack_record(page.messages[0].record).extension.max_attempts == 4
    shard.settle(Verb.RETRY, shard.receive(), after_ms=5000)
    told = shard.ask(Explain(parse_id(message_id)))
    assert isinstance(told, Explained)
    assert told.reasons[0].details["max_attempts"] == 4
    assert "1 attempt of the 4 that it may have failed" in told.reasons[0].text


@pytest.mark.parametrize("number", [-1, MAX_ATTEMPTS_MAX + 1])
def test_bad_numbers_are_refused(shard: ShardHarness, number: int) -> None:
    reply = shard.ask(Enqueue([seal_envelope(b"x")], max_attempts=number))
    assert isinstance(reply, Enqueued)
    error = from_fault(reply.faults[0][1])
    assert isinstance(error, InvalidArgumentError)
    assert str(number) in str(error)


def test_a_message_without_one_has_a_plain_record(shard: ShardHarness) -> None:
    shard.enqueue(b"x")
    [got] = shard.receive()
    assert got.record.extension.max_attempts is None
    assert shard.shard.queues["q"].size_bytes == 26 + len(seal_envelope(b"x"))
