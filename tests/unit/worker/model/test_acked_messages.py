"""Acked messages that still lie on disk: invisible, remembered over a crash, and gone after a purge."""

import pytest

from fila_proto_zmq.commands import DeleteQueue, Verb
from fila_worker.core.settings import Limits, ShardSettings
from tests.support.shard.shard import ShardHarness


def on_disk(shard: ShardHarness) -> int:
    return len(list(shard.store.scan(b"", b"\xff" * 32, shard.store.families.messages)))


def created(limits: Limits) -> ShardHarness:
    harness = ShardHarness(settings=ShardSettings(limits=limits))
    harness.create()
    return harness


def acked(shard: ShardHarness, count: int, key: str = "default") -> None:
    """A batch that came, went out and was acked as a whole."""
    shard.enqueue(*[b""] * count, key=key)
    shard.ack(shard.receive(count))


@pytest.fixture
def shard() -> ShardHarness:
    return created(Limits(acked_messages_max=20, range_messages_min=4))


def test_an_acked_batch_is_gone_for_everybody_while_it_lies_on_disk(shard: ShardHarness) -> None:
    acked(shard, 10)
    assert on_disk(shard) == 10
    assert shard.counts() == (0, 0, 0)
    assert [key.in_flight for key in shard.stats().keys] == [0]
    assert shard.receive(10) == []


def test_enough_of_them_are_purged(shard: ShardHarness) -> None:
    acked(shard, 10)
    acked(shard, 10)
    assert on_disk(shard) == 0
    assert shard.shard.acked.messages == 0


def test_those_of_many_lanes_are_purged_sooner() -> None:
    shard = created(Limits(acked_lanes_max=3))
    for key in ("a", "b", "a", "b"):
        acked(shard, 2, key)
    assert on_disk(shard) == 8
    acked(shard, 2, "c")
    assert on_disk(shard) == 0
    acked(shard, 2, "a")
    assert on_disk(shard) == 2, "they are counted anew"


def test_a_crash_brings_nothing_back(shard: ShardHarness) -> None:
    acked(shard, 10)
    shard.enqueue(b"alive")
    shard.restart()
    assert shard.counts() == (1, 0, 0)
    assert [got.payload for got in shard.receive(10)] == [b"alive"]
    assert on_disk(shard) == 1


def test_a_run_is_purged_around_what_still_lives(shard: ShardHarness) -> None:
    shard.enqueue(*[b"%d" % number for number in range(30)])
    first, held, last = shard.receive(10), shard.receive(5), shard.receive(10)
    shard.ack(first)
    shard.ack(last)
    assert on_disk(shard) == 10
    shard.settle(Verb.NACK, held)
    assert [got.payload for got in shard.receive(10)] == [b"%d" % number for number in [*range(10, 15), *range(25, 30)]]


def test_a_queue_is_deleted_with_its_dead(shard: ShardHarness) -> None:
    acked(shard, 10)
    shard.ask(DeleteQueue())
    assert on_disk(shard) == 0
    shard.restart()
    shard.create()
    assert shard.counts() == (0, 0, 0)


def test_a_repeated_ack_of_a_buried_batch_is_answered_as_the_first(shard: ShardHarness) -> None:
    shard.enqueue(b"", b"")
    got = shard.receive(2)
    shard.ack(got)
    assert shard.settle(Verb.ACK, got).faults == []
    shard.restart()
    assert shard.settle(Verb.ACK, got).faults == []


def test_acks_stay_acked_however_many_leases_a_turn_ends() -> None:
    """A forgotten lease must not take the mark of messages along that still lie on disk."""
    shard = created(Limits(finished_leases_max=4, acked_leases_max=2))
    shard.enqueue(*[b""] * 19)
    got = [shard.receive(1)[0] for _ in range(19)]
    shard.ack(got)
    shard.restart()
    assert shard.counts() == (0, 0, 0)
    assert on_disk(shard) == 0


@pytest.mark.parametrize("verb", [Verb.ACK, Verb.NACK, Verb.RELEASE])
def test_a_mark_outlives_any_number_of_leases_that_finish_after_it(verb: Verb) -> None:
    """Leases that end without a mark are remembered too, and must not push a mark out whose messages still lie on disk."""
    shard = created(Limits(finished_leases_max=3))
    shard.enqueue(b"precious", b"precious")
    precious = shard.receive(2)
    shard.ack(precious)
    for _ in range(5):
        shard.enqueue(b"", b"")
        first, second = shard.receive(2)
        shard.settle(verb, [first])
        shard.ack([second])
        shard.ack(shard.receive(2))
    assert shard.settle(Verb.ACK, precious).faults == []
    shard.restart()
    assert shard.counts() == (0, 0, 0)


def test_what_a_restart_remembers_of_finished_leases_is_bounded() -> None:
    shard = created(Limits(finished_leases_max=3))
    shard.enqueue(*[b""] * 9)
    for _ in range(9):
        shard.ack(shard.receive(1))
    shard.restart()
    assert len(shard.shard.leases.finished) == 3
    shard.restart()
    assert len(shard.shard.leases.finished) == 3


def test_a_count_below_zero_never_becomes_durable(shard: ShardHarness) -> None:
    shard.enqueue(b"")
    queue = shard.shard.queues["q"]
    with pytest.raises(AssertionError, match="queue 'q' holds"):
        queue.shrink(queue.size_bytes + 1)
    assert queue.size_bytes > 0


def test_an_old_lease_acked_before_a_crash_stays_acked() -> None:
    shard = created(Limits(finished_leases_max=3, acked_leases_max=3))
    shard.enqueue(*[b""] * 9)
    old, *others = [shard.receive(1) for _ in range(9)]
    for got in others[:3]:
        shard.ack(got)
    shard.ack(old)
    for _ in range(2):
        shard.restart()
        shard.ack(others.pop())
    shard.restart()
    assert shard.counts() == (0, len(others) - 3, 0)


def test_large_payloads_do_not_lie_for_long(shard: ShardHarness) -> None:
    shard.limit(acked_bytes_max=1000)
    shard.enqueue(bytes(2000))
    shard.ack(shard.receive(1))
    assert on_disk(shard) == 0
