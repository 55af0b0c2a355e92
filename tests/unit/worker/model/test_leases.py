"""Leases: when they end by themselves, and how they are renewed."""

import pytest

from fila_proto_zmq.commands import Extend, Extended, Fences, Subscribe, Verb
from fila_proto_zmq.errors import InvalidArgumentError
from fila_proto_zmq.limits import LEASE_MS_MAX
from fila_worker.core.settings import ShardSettings
from tests.support.shard.shard import Got, ShardHarness, fences


@pytest.fixture
def shard() -> ShardHarness:
    return patient()


def patient(**options: int) -> ShardHarness:
    """A shard that does not miss silent consumers, with a queue."""
    harness = ShardHarness(settings=ShardSettings(consumer_timeout_ms=10**9))
    harness.create(**options)
    return harness


def extend(shard: ShardHarness, named: Fences, duration_ms: int) -> Extended:
    reply = shard.ask(Extend(named, duration_ms))
    assert isinstance(reply, Extended)
    return reply


def wait_until_it_expires(shard: ShardHarness) -> int:
    """Milliseconds until a lease expires."""
    expired = shard.stats().expired
    for waited_ms in range(500, 200_000, 500):
        shard.pass_time(500)
        if shard.stats().expired > expired:
            return waited_ms
    raise AssertionError("no lease expired in 200 s")


def leased(shard: ShardHarness, count: int) -> list[Got]:
    shard.enqueue(*[b"%d" % number for number in range(count)])
    return shard.receive(count)


# --- expiry -----------------------------------------------------------------------------------------------------------


def test_a_lease_lasts_for_the_default_visibility_timeout(shard: ShardHarness) -> None:
    (got,) = leased(shard, 1)
    assert got.expires_ms == shard.now_ms + 30_000
    assert wait_until_it_expires(shard) == 30_000


def test_a_lease_lasts_for_the_queues_visibility_timeout() -> None:
    shard = patient(visibility_timeout_ms=4_000)
    leased(shard, 1)
    assert wait_until_it_expires(shard) == 4_000


def test_a_message_may_have_a_visibility_timeout_of_its_own(shard: ShardHarness) -> None:
    shard.enqueue(b"own", lease_ms=2_000)
    (got,) = shard.receive()
    assert got.expires_ms == shard.now_ms + 2_000
    assert wait_until_it_expires(shard) == 2_000


def test_an_own_visibility_timeout_outlives_attempts_and_restarts(shard: ShardHarness) -> None:
    shard.enqueue(b"own", lease_ms=2_000)
    shard.nack(shard.receive(), "boom")
    shard.restart()
    (got,) = shard.receive()
    assert (got.expires_ms - shard.now_ms, got.attempts, got.error) == (2_000, 1, "boom")


def test_a_delivery_of_mixed_timeouts_comes_in_order_in_several_leases(shard: ShardHarness) -> None:
    for payload, lease_ms in ((b"1", 0), (b"2", 0), (b"3", 5_000), (b"4", 5_000), (b"5", 0)):
        shard.enqueue(payload, lease_ms=lease_ms)
    got = shard.receive(5)
    assert [each.payload for each in got] == [b"1", b"2", b"3", b"4", b"5"]
    assert [each.expires_ms - shard.now_ms for each in got] == [30_000, 30_000, 5_000, 5_000, 30_000]
    assert len({each.lease for each in got}) == 3
    shard.pass_time(5_000)
    assert [each.payload for each in shard.receive(5)] == [b"3", b"4"]


def test_an_expired_message_keeps_its_place_and_says_why(shard: ShardHarness) -> None:
    leased(shard, 3)
    shard.enqueue(b"later")
    shard.pass_time(30_000)
    got = shard.receive(9)
    assert [(each.payload, each.attempts, each.error) for each in got] == [
        (b"0", 1, "lease expired"),
        (b"1", 1, "lease expired"),
        (b"2", 1, "lease expired"),
        (b"later", 0, ""),
    ]
    assert shard.stats().expired == 3


def test_the_shard_asks_to_be_woken_for_the_next_expiry(shard: ShardHarness) -> None:
    shard.enqueue(b"long", b"short", lease_ms=9_000)
    shard.receive(1)
    shard.pass_time(1_000)
    assert shard.shard.next_due(shard.now_ms) == 8_000


def test_leases_that_expire_at_once_may_take_several_turns_and_none_is_lost(shard: ShardHarness) -> None:
    shard.limit(turn_expiries_max=30)
    shard.enqueue(*[b""] * 200)
    for _ in range(200):
        shard.receive(1)
    shard.now_ms += 30_000
    shard.turn()
    assert shard.shard.next_due(shard.now_ms) == 0
    shard.pass_time(0)
    assert shard.counts() == (200, 0, 0)


def test_many_single_leases_expire_within_a_second_of_busy_turns(shard: ShardHarness) -> None:
    """A busy turn takes tens of milliseconds, and a client that receives one by one has a lease for each message."""
    shard.checked = False
    shard.enqueue(*[b""] * 2000)
    for _ in range(2000):
        shard.receive(1)
    shard.now_ms += 30_000
    turns = 0
    while shard.stats().expired < 2000:
        turns += 1
    assert turns <= 20


def test_settled_leases_do_not_pile_up_until_they_would_have_expired(shard: ShardHarness) -> None:
    """A visibility timeout of hours and single receives must not fill the memory with what is over."""
    shard.checked = False
    shard.create("slow", visibility_timeout_ms=LEASE_MS_MAX)
    for _ in range(40):
        shard.enqueue(*[b""] * 100, queue="slow")
        for _ in range(100):
            shard.ack(shard.receive(1, "slow"), "slow")
    assert len(shard.shard.leases.due) < 2_000


# --- extending --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("duration_ms", [1_000, 45_000, 120_000])
def test_an_extended_lease_ends_then_and_not_before(shard: ShardHarness, duration_ms: int) -> None:
    got = leased(shard, 1)
    reply = extend(shard, fences(got), duration_ms)
    assert reply == Extended(shard.now_ms + duration_ms, [])
    assert wait_until_it_expires(shard) == duration_ms


def test_an_extension_counts_from_now(shard: ShardHarness) -> None:
    got = leased(shard, 1)
    shard.pass_time(20_000)
    assert extend(shard, fences(got), 15_000).expires_ms == shard.now_ms + 15_000
    assert wait_until_it_expires(shard) == 15_000


def test_members_of_a_lease_may_be_extended_apart(shard: ShardHarness) -> None:
    got = leased(shard, 3)
    extend(shard, fences(got[:1]), 5_000)
    extend(shard, fences(got[1:2]), 60_000)
    assert wait_until_it_expires(shard) == 5_000
    assert [each.payload for each in shard.receive(9, client=b"c2")] == [b"0"]
    assert wait_until_it_expires(shard) == 25_000
    assert [each.payload for each in shard.receive(9, client=b"c2")] == [b"2"]
    assert shard.settle(Verb.ACK, got[1:2]).faults == []


def test_an_extension_can_be_taken_back(shard: ShardHarness) -> None:
    got = leased(shard, 1)
    extend(shard, fences(got), 120_000)
    extend(shard, fences(got), 3_000)
    assert wait_until_it_expires(shard) == 3_000


def test_an_extension_survives_a_restart(shard: ShardHarness) -> None:
    got = leased(shard, 2)
    extend(shard, fences(got[1:]), 60_000)
    shard.restart()
    assert wait_until_it_expires(shard) == 30_000
    assert shard.counts() == (1, 1, 0)
    shard.ack(got[1:])


def test_a_whole_lease_is_extended_without_indexes(shard: ShardHarness) -> None:
    got = leased(shard, 3)
    extend(shard, [(got[0].lease, [])], 60_000)
    assert wait_until_it_expires(shard) == 60_000
    assert shard.counts() == (3, 0, 0)


@pytest.mark.parametrize("duration_ms", [0, -1, LEASE_MS_MAX + 1])
def test_an_extension_out_of_bounds_is_refused(shard: ShardHarness, duration_ms: int) -> None:
    got = leased(shard, 1)
    with pytest.raises(InvalidArgumentError, match=f"{duration_ms} ms"):
        extend(shard, fences(got), duration_ms)


def test_a_late_extension_is_refused_and_the_new_holder_unaffected(shard: ShardHarness) -> None:
    got = leased(shard, 1)
    shard.pass_time(30_000)
    shard.receive(client=b"c2")
    (fault,) = extend(shard, fences(got), 600_000).faults
    assert (fault[0], fault[1], fault[2].code) == (got[0].lease, -1, "LEASE_EXPIRED")
    assert wait_until_it_expires(shard) == 30_000


@pytest.mark.parametrize("verb", list(Verb))
@pytest.mark.parametrize("settled", [slice(0, 1), slice(0, 2)], ids=["part of its lease", "all of its lease"])
def test_what_is_settled_cannot_be_extended(shard: ShardHarness, verb: Verb, settled: slice) -> None:
    got = leased(shard, 2)
    shard.settle(verb, got[settled])
    (fault,) = extend(shard, fences(got[:1]), 60_000).faults
    assert (fault[0], fault[2].code) == (got[0].lease, "LEASE_EXPIRED")
    assert fault[1] == (0 if len(got[settled]) < 2 else -1), "of the lease as a whole once it is over"


# --- renewing ---------------------------------------------------------------------------------------------------------


def subscribed(shard: ShardHarness, count: int = 2) -> list[Got]:
    shard.enqueue(*[b"%d" % number for number in range(count)])
    shard.subscribe(count)
    return shard.take_pushed()


def renew(shard: ShardHarness, *lease_ids: int) -> None:
    shard.ask(Subscribe(1, 2, list(lease_ids)))


def test_a_renewed_lease_starts_over(shard: ShardHarness) -> None:
    lease = subscribed(shard)[0].lease
    shard.pass_time(12_000)
    renew(shard, lease)
    assert wait_until_it_expires(shard) == 30_000


def test_leases_are_renewed_as_long_as_their_client_says_so(shard: ShardHarness) -> None:
    got = subscribed(shard)
    for _ in range(20):
        shard.pass_time(10_000)
        renew(shard, got[0].lease)
    assert shard.counts() == (0, 2, 0)
    shard.ack(got)


def test_a_heartbeat_renews_only_what_it_names(shard: ShardHarness) -> None:
    subscribed(shard)
    shard.pass_time(12_000)
    renew(shard)
    assert wait_until_it_expires(shard) == 18_000


def test_a_plain_heartbeat_renews_no_lease(shard: ShardHarness) -> None:
    leased(shard, 1)
    shard.pass_time(12_000)
    shard.heartbeat()
    assert wait_until_it_expires(shard) == 18_000


def test_a_lease_is_renewed_at_most_after_a_third_of_its_time(shard: ShardHarness) -> None:
    lease = subscribed(shard)[0].lease
    commits = shard.store.committed  # type: ignore[attr-defined]
    shard.pass_time(9_000)
    renew(shard, lease)
    assert shard.store.committed == commits  # type: ignore[attr-defined]
    shard.pass_time(2_000)
    renew(shard, lease)
    assert shard.store.committed > commits  # type: ignore[attr-defined]


def test_a_renewal_does_not_cut_an_extension_short(shard: ShardHarness) -> None:
    got = subscribed(shard)
    extend(shard, fences(got[:1]), 100_000)
    shard.pass_time(11_000)
    renew(shard, got[0].lease)
    assert wait_until_it_expires(shard) == 30_000
    assert [each.payload for each in shard.take_pushed()] == [b"1"]


def test_a_renewal_takes_along_what_was_extended_for_a_shorter_time(shard: ShardHarness) -> None:
    got = subscribed(shard)
    extend(shard, fences(got[:1]), 12_000)
    shard.pass_time(11_000)
    renew(shard, got[0].lease)
    assert wait_until_it_expires(shard) == 30_000


def test_a_renewal_survives_a_restart(shard: ShardHarness) -> None:
    lease = subscribed(shard)[0].lease
    shard.pass_time(12_000)
    renew(shard, lease)
    shard.restart()
    assert wait_until_it_expires(shard) == 30_000


def test_a_client_cannot_renew_anothers_leases(shard: ShardHarness) -> None:
    lease = subscribed(shard)[0].lease
    shard.pass_time(12_000)
    shard.ask(Subscribe(1, 2, [lease, 77]), client=b"c2")
    assert wait_until_it_expires(shard) == 18_000


def test_a_renewal_that_was_read_late_still_counts(shard: ShardHarness) -> None:
    lease = subscribed(shard)[0].lease
    shard.now_ms += 30_500
    renew(shard, lease)
    assert shard.stats().expired == 0
    assert wait_until_it_expires(shard) == 30_000
