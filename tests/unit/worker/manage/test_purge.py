"""Purging: what is not leased goes, in bounded steps, and all counts are right afterwards."""

import pytest

from fila_proto_zmq.commands import Purged, PurgeQueue, Verb
from fila_proto_zmq.errors import QueueNotFoundError
from fila_worker.core.settings import Limits, ShardSettings
from tests.support.shard.shard import ADMIN, ShardHarness, limited


def purge(shard: ShardHarness, key: str | None = None, queue: str = "q") -> Purged:
    reply = shard.ask(PurgeQueue(key), queue, ADMIN)
    assert isinstance(reply, Purged)
    return reply


def purge_all(shard: ShardHarness, key: str | None = None) -> int:
    """Repeat the command until nothing remains, as clients do."""
    total = 0
    while True:
        purged = purge(shard, key)
        total += purged.count
        if not purged.remaining:
            return total
        assert purged.count, "a step without progress"


@pytest.mark.parametrize("restarted", [False, True])
def test_pending_and_delayed_ones_go_and_leased_ones_stay(shard: ShardHarness, restarted: bool) -> None:
    shard.enqueue(b"0", b"1", b"2", b"3")
    shard.enqueue(b"later", delay_ms=5_000)
    got = shard.receive(2)
    if restarted:
        shard.restart()
    assert purge(shard) == Purged(3, 0)
    assert shard.counts() == (0, 2, 0)
    shard.restart()
    shard.pass_time(5_000)
    assert shard.counts() == (0, 2, 0)
    shard.ack(got[:1])
    shard.nack(got[1:])
    assert [each.payload for each in shard.receive(9)] == [b"1"]


def test_one_key_can_be_chosen(shard: ShardHarness) -> None:
    for key in "abc":
        shard.enqueue(b"%s0" % key.encode(), key=key)
        shard.enqueue(b"%s1" % key.encode(), key=key, throttle_keys=[["t"]])
        shard.enqueue(b"%s2" % key.encode(), key=key, delay_ms=1_000)
    assert purge(shard, "b") == Purged(3, 0)
    assert purge(shard, "nobody") == Purged(0, 0)
    shard.pass_time(1_000)
    assert sorted(each.payload for each in shard.receive(9)) == [b"a0", b"a1", b"a2", b"c0", b"c1", b"c2"]


def test_leased_ones_between_others_stay_where_they_are(shard: ShardHarness) -> None:
    shard.enqueue(*[b"%02d" % number for number in range(40)])
    got = shard.receive(40)
    held = [each for each in got if int(each.payload) % 4 == 0]
    shard.settle(Verb.RELEASE, [each for each in got if each not in held])
    assert purge(shard) == Purged(30, 0)
    shard.settle(Verb.RELEASE, held)
    assert [int(each.payload) for each in shard.receive(40)] == list(range(0, 40, 4))


def test_new_messages_are_served_as_usual(shard: ShardHarness) -> None:
    shard.subscribe(2)
    shard.enqueue(*[b"old"] * 10)
    assert len(shard.take_pushed()) == 2
    purge(shard)
    shard.subscribe(4)
    shard.enqueue(b"new")
    assert [each.payload for each in shard.take_pushed()] == [b"new"]


def test_an_empty_queue_has_nothing_to_purge(shard: ShardHarness) -> None:
    assert purge(shard) == Purged(0, 0)
    shard.enqueue(b"x")
    got = shard.receive()
    assert purge(shard) == Purged(0, 0)
    shard.ack(got)
    assert purge(shard) == Purged(0, 0)
    with pytest.raises(QueueNotFoundError):
        purge(shard, queue="nobody")


def test_a_dead_letter_queue_can_be_purged(shard: ShardHarness) -> None:
    shard.enqueue(b"0", b"1")
    shard.settle(Verb.FAIL, shard.receive(2))
    assert purge(shard, queue="q.dlq") == Purged(2, 0)
    assert shard.redrive().count == 0


def test_slots_of_a_capped_key_are_free_again() -> None:
    shard = ShardHarness()
    shard.create(max_in_flight_per_key=1)
    shard.enqueue(b"0", b"1")
    shard.settle(Verb.RETRY, shard.receive(), after_ms=60_000)
    assert purge(shard, "default") == Purged(2, 0)
    shard.enqueue(b"2")
    assert [each.payload for each in shard.receive()] == [b"2"]


def test_a_leased_message_of_a_capped_key_keeps_its_slot() -> None:
    shard = ShardHarness()
    shard.create(max_in_flight_per_key=1)
    shard.enqueue(b"0", b"1")
    got = shard.receive()
    purge(shard)
    shard.enqueue(b"2")
    assert shard.receive() == []
    shard.ack(got)
    assert [each.payload for each in shard.receive()] == [b"2"]


# --- sizes ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("key", [None, "a"])
@pytest.mark.parametrize("tiny", [False, True])
def test_sizes_are_exact_however_unequal_the_messages(key: str | None, tiny: bool) -> None:
    """The harness compares them with what lies on disk, after every turn."""
    shard = ShardHarness(settings=ShardSettings(buffer_bytes=2_000 if tiny else 2**20))
    shard.create()
    for number in range(20):
        shard.enqueue(bytes(number * 40), key="a")
        shard.enqueue(bytes(1_000), key="b", delay_ms=9_000 if number % 2 else 0)
        shard.enqueue(bytes(3), key="a", delay_ms=9_000)
    shard.receive(5)
    purge_all(shard, key)
    shard.restart()
    purge_all(shard)
    for got in shard.shard.leases.leases.values():
        assert got.open
    shard.goodbye()
    assert purge_all(shard) == 5
    assert (shard.counts(), shard.shard.queues["q"].size_bytes) == ((0, 0, 0), 0)


def test_what_a_purge_of_one_key_leaves_can_be_acked_away(shard: ShardHarness) -> None:
    shard.enqueue(*[b""] * 50, key="small")
    shard.enqueue(bytes(100_000), key="large")
    purge(shard, "large")
    shard.ack(shard.receive(50))
    assert shard.shard.queues["q"].size_bytes == 0
    shard.restart()
    assert shard.shard.queues["q"].size_bytes == 0


# --- steps ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("tail", [False, True])
@pytest.mark.parametrize("leased", [0, 3])
@pytest.mark.parametrize("restarted", [False, True])
def test_one_long_key_is_purged_in_steps(tail: bool, leased: int, restarted: bool) -> None:
    limits = Limits(purge_messages_max=25, purge_look_messages=1, refill_messages_max=4)
    shard = ShardHarness(settings=ShardSettings(buffer_bytes=400 if tail else 2**20, limits=limits))
    shard.create()
    shard.enqueue(*[b"%d" % number for number in range(100)], key="a")
    shard.enqueue(*[b""] * 60, key="a", delay_ms=7_000)
    shard.enqueue(b"other", key="b")
    held = shard.receive(leased) if leased else []
    shard.ack([each for each in held if each.key == "b"])
    held = [each for each in held if each.key == "a"]
    if restarted:
        shard.restart()
    total = 0
    while (purged := purge(shard, "a")).remaining:
        total += purged.count
        assert purged.count > 0
        if restarted:
            shard.restart()
    assert total + purged.count == 160 - len(held)
    shard.goodbye()
    assert sorted(each.payload for each in shard.receive(9) if each.key == "a") == sorted(each.payload for each in held)


def test_messages_that_come_between_two_steps_are_served() -> None:
    shard = ShardHarness(settings=ShardSettings(buffer_bytes=400, limits=Limits(purge_messages_max=20)))
    shard.create()
    shard.enqueue(*[b"old"] * 50)
    assert purge(shard, "default").remaining > 0
    shard.enqueue(b"urgent", priority=-1)
    assert [each.payload for each in shard.receive()] == [b"urgent"]
    shard.restart()
    assert purge_all(shard, "default") > 0
    assert shard.counts() == (0, 1, 0)


def test_a_step_reads_a_bounded_number_of_bytes() -> None:
    shard = ShardHarness(settings=ShardSettings(buffer_bytes=100, limits=Limits(purge_bytes_max=3_000, turn_effort=1)))
    shard.create()
    shard.enqueue(*[bytes(1_000)] * 30)
    shard.begin(PurgeQueue("default"))
    assert 30 > shard.shard.queues["q"].pending >= 20
    shard.finish()
    assert shard.counts() == (0, 0, 0)


def test_a_queue_of_many_keys_is_purged_in_steps() -> None:
    shard = ShardHarness(settings=limited(purge_lanes_max=10, purge_messages_max=10))
    shard.create()
    for number in range(35):
        shard.enqueue(b"x", b"y", key=str(number))
    got = shard.receive(9)
    first = purge(shard)
    assert 0 < first.count < 61
    assert first.count + purge_all(shard) == 61
    assert shard.counts() == (0, 9, 0)
    shard.ack(got)
    assert shard.shard.queues["q"].size_bytes == 0


def test_out_of_order_messages_go_too() -> None:
    shard = ShardHarness(settings=ShardSettings(buffer_bytes=500, limits=Limits(lane_disorder_messages_max=4)))
    shard.create()
    for priority in range(30, 0, -1):
        shard.enqueue(b"x", priority=priority)
    shard.nack(shard.receive(12))
    assert purge_all(shard, "default") == 30
    assert shard.counts() == (0, 0, 0)
