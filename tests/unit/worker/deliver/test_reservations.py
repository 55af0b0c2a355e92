"""Reservations: messages leased to a name."""

from collections import Counter

import pytest

from fila_proto_zmq.commands import (
    Browse,
    Browsed,
    DeleteQueue,
    Delivered,
    EndReservation,
    Enqueue,
    FetchReserved,
    RenewReservation,
    ReservationEnded,
    Reserve,
    Reserved,
    Settle,
    Settled,
    Verb,
)
from fila_proto_zmq.errors import InvalidArgumentError, LeaseExpiredError, QueueNotFoundError
from fila_proto_zmq.limits import DELIVERY_MESSAGES_MAX
from fila_proto_zmq.record import seal_envelope
from fila_worker.core.deliver.delivery import ReservedCache
from tests.support.shard.shard import Got, ShardHarness, opened

TIMEOUT_MS = 60_000


@pytest.fixture
def harness() -> ShardHarness:
    harness = ShardHarness()
    harness.create()
    return harness


def reserve(harness: ShardHarness, name: str = "s/1", part: int = 0, count: int = 100, **options: object) -> Reserved:
    queue = str(options.pop("queue", "q"))
    command = Reserve(name, part, count, TIMEOUT_MS, **options)  # type: ignore[arg-type]
    reserved = harness.ask(command, queue, client=b"driver")
    assert isinstance(reserved, Reserved)
    return reserved


def fetch(harness: ShardHarness, name: str = "s/1", part: int = 0, queue: str = "q") -> list[Got]:
    delivered = harness.ask(FetchReserved(name, part), queue, client=b"executor")
    assert isinstance(delivered, Delivered)
    return opened(delivered)


def end(harness: ShardHarness, verb: int = Verb.ACK, name: str = "s/1") -> int:
    ended = harness.ask(EndReservation(name, verb), client=b"listener")
    assert isinstance(ended, ReservationEnded)
    return ended.count


def test_reserved_messages_are_leased_and_may_be_fetched_by_their_name_again_and_again(
    harness: ShardHarness,
) -> None:
    ids = harness.enqueue(b"a", b"b", b"c")
    assert reserve(harness, count=2) == Reserved([(0, 2)], harness.now_ms + TIMEOUT_MS)
    assert harness.counts() == (1, 2, 0)
    assert [got.id for got in fetch(harness)] == ids[:2]
    assert [(got.payload, got.attempts) for got in fetch(harness)] == [(b"a", 0), (b"b", 0)]
    assert [got.payload for got in harness.receive(10)] == [b"c"]


def test_a_part_is_taken_once(harness: ShardHarness) -> None:
    harness.enqueue(b"a", b"b", b"c")
    first = reserve(harness, count=1)
    assert reserve(harness, count=3) == first
    assert reserve(harness, part=1, count=3).parts == [(1, 2)]
    assert [got.payload for part in (0, 1) for got in fetch(harness, part=part)] == [b"a", b"b", b"c"]


def test_a_part_is_one_delivery_at_most(harness: ShardHarness) -> None:
    harness.enqueue(*[b"x"] * (DELIVERY_MESSAGES_MAX + 7))
    assert reserve(harness, count=10_000).parts == [(0, DELIVERY_MESSAGES_MAX)]
    assert reserve(harness, part=1, count=10_000).parts == [(1, 7)]


def test_nothing_ready_is_no_part(harness: ShardHarness) -> None:
    assert reserve(harness) == Reserved([], 0)


def test_a_reservation_may_wait(harness: ShardHarness) -> None:
    request = harness.send(Reserve("s/1", 0, 10, TIMEOUT_MS, 5_000), client=b"driver")
    assert request not in harness.late
    harness.enqueue(b"a")
    assert harness.late.pop(request) == Reserved([(0, 1)], harness.now_ms + TIMEOUT_MS)


def test_waiting_ends_in_time(harness: ShardHarness) -> None:
    request = harness.send(Reserve("s/1", 0, 10, TIMEOUT_MS, 5_000), client=b"driver")
    harness.pass_time(5_000)
    assert harness.late.pop(request) == Reserved([], 0)


def test_two_that_wait_for_the_same_part_get_the_same(harness: ShardHarness) -> None:
    first = harness.send(Reserve("s/1", 0, 1, TIMEOUT_MS, 5_000), client=b"driver")
    second = harness.send(Reserve("s/1", 0, 1, TIMEOUT_MS, 5_000), client=b"another driver")
    harness.enqueue(b"a", b"b")
    harness.pass_time(5_000)
    assert harness.late.pop(first) == harness.late.pop(second)
    assert harness.counts() == (1, 1, 0)


def test_acking_ends_it_for_good(harness: ShardHarness) -> None:
    harness.enqueue(b"a", b"b")
    reserve(harness, part=0, count=1)
    reserve(harness, part=1, count=1)
    assert end(harness) == 2
    assert end(harness) == 0
    assert harness.counts() == (0, 0, 0)
    assert harness.stats().acked == 2
    harness.restart()
    assert harness.counts() == (0, 0, 0)


def test_releasing_gives_back_in_the_old_order(harness: ShardHarness) -> None:
    harness.enqueue(b"a", b"b", b"c")
    reserve(harness, count=2)
    assert end(harness, Verb.RELEASE) == 2
    assert [(got.payload, got.attempts) for got in harness.receive(10)] == [(b"a", 0), (b"b", 0), (b"c", 0)]


def test_one_that_is_not_renewed_is_given_back_uncounted(harness: ShardHarness) -> None:
    harness.create("capped", max_attempts=1)
    harness.enqueue(b"a", queue="capped")
    reserve(harness, queue="capped")
    harness.pass_time(TIMEOUT_MS)
    assert harness.counts("capped") == (1, 0, 0)
    (got,) = harness.receive(queue="capped")
    assert (got.attempts, got.error) == (0, "")
    with pytest.raises(
        LeaseExpiredError, match=r"reservation 's/1' of queue 'capped' holds no part 0: .* it was not renewed"
    ):
        fetch(harness, queue="capped")


def test_renewing_renews_all_of_it(harness: ShardHarness) -> None:
    harness.enqueue(b"a", b"b")
    reserve(harness, part=0, count=1)
    harness.pass_time(30_000)
    reserve(harness, part=1, count=1)
    renewed = harness.ask(RenewReservation("s/1", TIMEOUT_MS), client=b"driver")
    assert renewed == Reserved([(0, 1), (1, 1)], harness.now_ms + TIMEOUT_MS)
    harness.restart()
    harness.pass_time(TIMEOUT_MS - 1)
    assert harness.counts() == (0, 2, 0)
    harness.pass_time(1)
    assert harness.counts() == (2, 0, 0)
    assert harness.ask(RenewReservation("s/1", TIMEOUT_MS), client=b"driver") == Reserved([], 0)


def test_it_may_be_renewed_for_less(harness: ShardHarness) -> None:
    harness.enqueue(b"a")
    reserve(harness)
    harness.ask(RenewReservation("s/1", 1_000), client=b"driver")
    harness.pass_time(1_000)
    assert harness.counts() == (1, 0, 0)


def test_it_outlives_its_client(harness: ShardHarness) -> None:
    harness.enqueue(b"a")
    reserve(harness)
    harness.goodbye(b"driver")
    harness.pass_time(harness.settings.consumer_timeout_ms + 1)
    assert [got.payload for got in fetch(harness)] == [b"a"]


def test_it_outlives_the_shard(harness: ShardHarness) -> None:
    harness.enqueue(b"a", b"b")
    reserve(harness, part=4, count=1)
    harness.restart()
    assert harness.counts() == (1, 1, 0)
    assert [got.payload for got in fetch(harness, part=4)] == [b"a"]
    assert reserve(harness, part=4, count=1).parts == [(4, 1)]
    harness.pass_time(harness.settings.consumer_timeout_ms + 1)
    assert end(harness) == 1


def test_a_client_that_leaves_waits_no_more(harness: ShardHarness) -> None:
    request = harness.send(Reserve("s/1", 0, 10, TIMEOUT_MS, 5_000), client=b"driver")
    harness.goodbye(b"driver")
    assert harness.late.pop(request) == Reserved([], 0)
    harness.enqueue(b"a")
    assert harness.counts() == (1, 0, 0)


def test_shares_are_fair(harness: ShardHarness) -> None:
    harness.ask(Enqueue([seal_envelope(b"")] * 400, ["heavy", "light"] * 200, [3, 1] * 200))
    reserve(harness, count=200)
    assert Counter(got.key for got in fetch(harness)) == {"heavy": 150, "light": 50}


def test_a_keys_cap_holds(harness: ShardHarness) -> None:
    harness.create("capped", max_in_flight_per_key=1)
    harness.enqueue(b"a", b"b", queue="capped")
    assert reserve(harness, queue="capped").parts == [(0, 1)]
    assert reserve(harness, part=1, queue="capped").parts == []
    harness.ask(EndReservation("s/1"), "capped")
    assert reserve(harness, "s/2", queue="capped").parts == [(0, 1)]


def test_on_each_queue_a_name_is_something_else(harness: ShardHarness) -> None:
    harness.create("other")
    harness.enqueue(b"a")
    harness.enqueue(b"b", queue="other")
    reserve(harness)
    reserve(harness, queue="other")
    assert end(harness) == 1
    assert [got.payload for got in fetch(harness, queue="other")] == [b"b"]


def test_a_part_has_its_keys_weights_and_throttle_keys(harness: ShardHarness) -> None:
    harness.ask(Enqueue([seal_envelope(b"1"), seal_envelope(b"2")], ["a", "b"], [2, 3], throttle_keys=[["api"], []]))
    reserve(harness)
    assert [(got.key, got.weight, got.throttle_keys) for got in fetch(harness)] == [("a", 2, ("api",)), ("b", 3, ())]


def test_its_members_are_not_settled_one_by_one(harness: ShardHarness) -> None:
    harness.enqueue(b"a")
    reserve(harness)
    (lease,) = harness.shard.leases.leases
    settled = harness.ask(Settle(Verb.ACK, [(lease, [0])]))
    assert isinstance(settled, Settled)
    assert [fault.code for _, _, fault in settled.faults] == ["LEASE_EXPIRED"]
    assert harness.counts() == (0, 1, 0)


def test_a_browse_shows_the_name(harness: ShardHarness) -> None:
    harness.enqueue(b"a")
    reserve(harness)
    browsed = harness.ask(Browse(10))
    assert isinstance(browsed, Browsed)
    assert [(view.state, view.consumer) for view in browsed.messages] == [("leased", "s/1")]


def test_it_goes_with_its_queue(harness: ShardHarness) -> None:
    harness.enqueue(b"a")
    reserve(harness)
    harness.ask(DeleteQueue(force=True))
    assert harness.shard.leases.reservations == {}
    with pytest.raises(QueueNotFoundError):
        fetch(harness)


def test_dead_letters_may_be_reserved(harness: ShardHarness) -> None:
    harness.enqueue(b"a")
    harness.settle(Verb.FAIL, harness.receive())
    assert reserve(harness, queue="q.dlq").parts == [(0, 1)]


def test_what_was_reserved_is_kept_in_memory_until_it_is_fetched_and_then_read(harness: ShardHarness) -> None:
    harness.enqueue(b"a", b"b")
    reserve(harness)
    assert len(harness.shard.part(ReservedCache)) == 1
    assert harness.shard.part(ReservedCache).size_bytes > 0
    first = fetch(harness)
    assert (len(harness.shard.part(ReservedCache)), harness.shard.part(ReservedCache).size_bytes) == (0, 0)
    assert fetch(harness) == first


# --- names and ids ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("client", [b"\0reserved\0\0\0\0\x01s", b"\0reserved\0\0\0\0\x01s\xff", b"\0reserved\0", b"\0"])
@pytest.mark.parametrize("restarted", [False, True])
def test_no_client_is_taken_for_a_reservation_whatever_its_id(harness: ShardHarness, client: bytes, restarted: bool) -> None:
    harness.enqueue(*[b"x"] * 4)
    for _ in range(2):
        harness.receive(1, client=client)
    harness.subscribe(1, client=client, number=7)
    reserve(harness, "s")
    if restarted:
        harness.restart()
    assert {len(view.consumer) for view in harness.ask(Browse(9)).messages} == {8, 1}  # type: ignore[attr-defined]
    harness.pass_time(30_000)
    assert harness.stats().expired == 3
    harness.goodbye(client)
    assert harness.shard.leases.reservations.keys() == {(harness.shard.queues["q"].id, "s")}
    harness.restart()


def test_a_client_cannot_settle_what_is_reserved(harness: ShardHarness) -> None:
    harness.enqueue(b"x")
    reserve(harness, "s")
    (lease,) = harness.shard.leases.leases
    assert [fault.code for _, _, fault in harness.ask(Settle(Verb.ACK, [(lease, [])])).faults] == ["LEASE_EXPIRED"]  # type: ignore[attr-defined]
    assert harness.counts() == (0, 1, 0)


def test_what_is_kept_is_bounded(harness: ShardHarness) -> None:
    harness.limit(reserved_bytes_max=100)
    harness.enqueue(*[b"x"] * 6)
    for part in range(6):
        reserve(harness, part=part, count=1)
    assert 0 < harness.shard.part(ReservedCache).size_bytes <= 100
    assert [got.payload for part in range(6) for got in fetch(harness, part=part)] == [b"x"] * 6


@pytest.mark.parametrize(
    ("command", "text"),
    [
        (Reserve("", 0, 1, TIMEOUT_MS), "reservation name of 0 bytes: use 1 to 200"),
        (Reserve("é" * 101, 0, 1, TIMEOUT_MS), "reservation name of 202 bytes"),
        (Reserve("s", -1, 1, TIMEOUT_MS), "part -1: use 0 to"),
        (Reserve("s", 2**31, 1, TIMEOUT_MS), "part 2147483648"),
        (Reserve("s", 0, 0, TIMEOUT_MS), "reservation of 0 messages"),
        (Reserve("s", 0, 1, 999), "reservation timeout of 999 ms: use 1000 to"),
        (Reserve("s", 0, 1, TIMEOUT_MS, -1), "wait of -1 ms"),
        (RenewReservation("s", 0), "reservation timeout of 0 ms"),
        (EndReservation("s", 2), r"verb 2: a reservation ends with 1 \(ack\) or 5 \(release\)"),
    ],
)
def test_what_will_not_do(harness: ShardHarness, command: Reserve, text: str) -> None:
    with pytest.raises(InvalidArgumentError, match=text):
        harness.ask(command)


def test_a_queue_that_delivers_at_most_once_cannot_be_read_twice(harness: ShardHarness) -> None:
    harness.create("once", delivery="at_most_once")  # type: ignore[arg-type]
    with pytest.raises(InvalidArgumentError, match=r"queue 'once' delivers at most once: .* at_least_once"):
        reserve(harness, queue="once")
