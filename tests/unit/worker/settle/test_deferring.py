"""Deferring: given back unharmed, delivered again later; until then the message's throttle keys deliver nothing, anywhere."""

import pytest

from fila_proto_zmq.commands import Park, Verb
from fila_proto_zmq.errors import InvalidArgumentError
from fila_proto_zmq.limits import DELAY_MS_MAX
from fila_worker.core.keys import FIRST, LAST
from tests.support.shard.shard import Got, ShardHarness

AFTER_MS = 5_000


def payloads(got: list[Got]) -> list[bytes]:
    return [each.payload for each in got]


def defer(shard: ShardHarness, got: list[Got], after_ms: int = AFTER_MS, queue: str = "q") -> None:
    assert not shard.settle(Verb.DEFER, got, queue, after_ms=after_ms).faults


def defer_one(shard: ShardHarness, *throttle_keys: str, after_ms: int = AFTER_MS) -> None:
    """A message with these throttle keys is deferred, for a 429 from a provider."""
    shard.enqueue(b"deferred", throttle_keys=[list(throttle_keys)])  # type: ignore[arg-type]
    defer(shard, shard.receive(), after_ms)


def parks_on_disk(shard: ShardHarness) -> list[bytes]:
    return [key for key, _ in shard.store.scan(FIRST, LAST, shard.store.families.state) if key.startswith(b"park:")]


# --- the message ------------------------------------------------------------------------------------------------------


def test_it_is_delivered_again_after_its_time_and_not_before(shard: ShardHarness) -> None:
    shard.enqueue(b"x")
    defer(shard, shard.receive())
    assert shard.counts() == (0, 0, 1)
    shard.pass_time(AFTER_MS - 1)
    assert shard.receive() == []
    shard.pass_time(1)
    assert payloads(shard.receive()) == [b"x"]


def test_nothing_is_counted_against_it() -> None:
    shard = ShardHarness()
    shard.create(max_attempts=1)
    (message_id,) = shard.enqueue(b"x")
    for _ in range(5):
        (got,) = shard.receive()
        assert (got.id, got.attempts, got.error) == (message_id, 0, "")
        shard.settle(Verb.DEFER, [got], after_ms=AFTER_MS, error="not kept", metadata=b"not kept")
        shard.pass_time(AFTER_MS)
    (got,) = shard.receive()
    assert (got.error, got.record.extension.metadata, shard.stats().nacked) == ("", b"", 0)


def test_it_takes_its_old_place_in_line(shard: ShardHarness) -> None:
    shard.enqueue(b"0", b"1", b"2")
    defer(shard, shard.receive(2))
    shard.pass_time(AFTER_MS)
    assert payloads(shard.receive(9)) == [b"0", b"1", b"2"]


def test_for_no_time_it_is_pending_at_once(shard: ShardHarness) -> None:
    defer_one(shard, "t", after_ms=0)
    shard.pass_time(0)
    assert payloads(shard.receive()) == [b"deferred"]
    assert shard.shard.parks() == {}


def test_it_waits_over_a_restart(shard: ShardHarness) -> None:
    shard.enqueue(b"x")
    defer(shard, shard.receive())
    shard.restart()
    assert (shard.receive(), shard.counts()) == ([], (0, 0, 1))
    shard.pass_time(AFTER_MS)
    assert [(each.payload, each.attempts) for each in shard.receive()] == [(b"x", 0)]


def test_some_of_a_lease_may_be_deferred_and_the_first_answer_stands(shard: ShardHarness) -> None:
    shard.enqueue(b"0", b"1", b"2")
    got = shard.receive(3)
    defer(shard, got[1:2])
    defer(shard, got[1:2], after_ms=60_000)
    shard.ack([got[0], got[2]])
    shard.pass_time(AFTER_MS)
    assert payloads(shard.receive(9)) == [b"1"]


@pytest.mark.parametrize("after_ms", [-1, DELAY_MS_MAX + 1])
def test_a_time_that_can_not_be_is_refused_and_the_lease_stays(shard: ShardHarness, after_ms: int) -> None:
    shard.enqueue(b"x")
    with pytest.raises(InvalidArgumentError):
        defer(shard, shard.receive(), after_ms)
    assert (shard.counts(), shard.shard.parks()) == ((0, 1, 0), {})


# --- its throttle keys ------------------------------------------------------------------------------------------------


def test_what_shares_a_throttle_key_waits_too_and_nothing_else_does(shard: ShardHarness) -> None:
    defer_one(shard, "t", "u")
    for throttle_keys in (["t"], ["u", "v"], ["v"], []):
        shard.enqueue(" ".join(throttle_keys).encode(), throttle_keys=[throttle_keys])  # type: ignore[arg-type]
    assert payloads(shard.receive(9)) == [b"v", b""]
    shard.pass_time(AFTER_MS)
    assert payloads(shard.receive(9)) == [b"deferred", b"t", b"u v"]


def test_so_does_what_was_there_before_and_in_other_queues(shard: ShardHarness) -> None:
    shard.create("other")
    shard.enqueue(b"0", b"1", throttle_keys=[["t"]])  # type: ignore[arg-type]
    shard.enqueue(b"2", throttle_keys=[["t"]], queue="other")  # type: ignore[arg-type]
    defer(shard, shard.receive())
    assert shard.receive() + shard.receive(queue="other") == []
    shard.pass_time(AFTER_MS)
    assert payloads(shard.receive(9) + shard.receive(9, "other")) == [b"0", b"1", b"2"]


def test_all_other_shards_get_the_park(shard: ShardHarness) -> None:
    defer_one(shard, "t", "u")
    until_ms = shard.now_ms + AFTER_MS
    assert [post.command for post in shard.posted if isinstance(post.command, Park)] == [Park({"t": until_ms, "u": until_ms})]


def test_a_message_without_throttle_keys_parks_no_key(shard: ShardHarness) -> None:
    shard.enqueue(b"0", b"1")
    defer(shard, shard.receive())
    assert payloads(shard.receive(9)) == [b"1"]
    assert not [post for post in shard.posted if isinstance(post.command, Park)]


@pytest.mark.parametrize("times_ms", [(2_000, 6_000), (6_000, 2_000)])
def test_the_later_of_two_times_wins(shard: ShardHarness, times_ms: tuple[int, int]) -> None:
    shard.enqueue(b"0", b"1", b"2", throttle_keys=[["t"]])  # type: ignore[arg-type]
    for got, after_ms in zip(shard.receive(2), times_ms, strict=True):
        defer(shard, [got], after_ms)
    shard.pass_time(5_999)
    assert shard.receive(9) == []
    shard.pass_time(1)
    assert payloads(shard.receive(9)) == [b"0", b"1", b"2"]


def test_what_another_shard_heard_holds_here(shard: ShardHarness) -> None:
    shard.enqueue(b"x", throttle_keys=[["t"]])  # type: ignore[arg-type]
    shard.shard.park({"t": shard.now_ms + AFTER_MS}, shard.now_ms)
    assert shard.receive() == []
    shard.pass_time(AFTER_MS)
    assert payloads(shard.receive()) == [b"x"]


def test_when_it_ends_subscriptions_go_on_by_themselves(shard: ShardHarness) -> None:
    defer_one(shard, "t")
    shard.enqueue(b"x", throttle_keys=[["t"]])  # type: ignore[arg-type]
    shard.subscribe(100)
    for _ in range(5):
        assert shard.take_pushed() == []
        shard.pass_time(1_000)
    assert payloads(shard.take_pushed()) == [b"deferred", b"x"]
    assert (shard.shard.parks(), parks_on_disk(shard)) == ({}, [])


@pytest.mark.parametrize("down_ms", [0, 3_000, AFTER_MS, 60_000])
def test_keys_are_parked_over_a_restart_until_their_time(shard: ShardHarness, down_ms: int) -> None:
    defer_one(shard, "t")
    shard.enqueue(b"x", throttle_keys=[["t"]])  # type: ignore[arg-type]
    shard.now_ms += down_ms
    shard.restart()
    assert (shard.receive() == []) is (down_ms < AFTER_MS)
    shard.goodbye()
    shard.pass_time(max(0, AFTER_MS - down_ms))
    assert payloads(shard.receive(9)) == [b"deferred", b"x"]
    assert (shard.shard.parks(), parks_on_disk(shard)) == ({}, [])


# --- dead letters -----------------------------------------------------------------------------------------------------


def test_a_dead_letter_may_be_deferred_too(shard: ShardHarness) -> None:
    shard.enqueue(b"x", throttle_keys=[["t"]])  # type: ignore[arg-type]
    shard.settle(Verb.FAIL, shard.receive())
    defer(shard, shard.receive(queue="q.dlq"), queue="q.dlq")
    assert shard.receive(queue="q.dlq") == []
    shard.pass_time(AFTER_MS)
    assert payloads(shard.receive(queue="q.dlq")) == [b"x"]
