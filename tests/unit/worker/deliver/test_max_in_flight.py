"""``max_in_flight``: how many of a queue's messages may be leased."""

import pytest

from fila_proto_zmq.commands import QueueOptions, Receive, Reserve, Reserved, UpdateQueue, Verb
from tests.support.shard.shard import ShardHarness
from tests.unit.worker.deliver.test_in_flight_caps import ENDINGS, payloads


def limited(most: int, **options: object) -> ShardHarness:
    shard = ShardHarness()
    shard.create(max_in_flight=most, **options)  # type: ignore[arg-type]
    return shard


def change(shard: ShardHarness, most: int | None) -> None:
    shard.ask(UpdateQueue(QueueOptions(max_in_flight=most), ["max_in_flight"]))


def test_at_most_so_many_of_a_queue_are_leased_over_all_keys_and_consumers() -> None:
    shard = limited(3)
    for client in (b"c1", b"c2"):
        shard.subscribe(100, client=client)
    for key in "abc":
        shard.enqueue(*[b"x"] * 5, key=key)
    assert sum(len(shard.take_pushed(client)) for client in (b"c1", b"c2")) == 3
    assert shard.receive(9, client=b"c3") == []
    assert shard.counts() == (12, 3, 0)


def test_another_queue_does_not_wait() -> None:
    shard = limited(1)
    shard.create("other")
    shard.enqueue(b"0", b"1")
    shard.enqueue(b"2", queue="other")
    assert [payloads(shard.receive(9, queue)) for queue in ("q", "other")] == [[b"0"], [b"2"]]


@pytest.mark.parametrize("ending", ENDINGS)
def test_however_a_lease_ends_its_place_is_free(ending: str) -> None:
    shard = limited(2)
    shard.enqueue(*[b"x"] * 9)
    ENDINGS[ending](shard, shard.receive(9))
    assert len(shard.receive(9)) == 2


def test_a_freed_place_goes_to_a_consumer_that_waits() -> None:
    shard = limited(1)
    shard.enqueue(b"0", b"1")
    got = shard.receive()
    number = shard.begin(Receive(9, 10_000), client=b"c2")
    assert number not in shard.late
    shard.ack(got)
    assert number in shard.late


def test_a_message_that_waits_for_its_retry_has_no_place() -> None:
    shard = limited(1)
    shard.enqueue(b"0", b"1")
    shard.settle(Verb.RETRY, shard.receive(), after_ms=5_000)
    assert payloads(shard.receive(9)) == [b"1"]


def test_reserved_messages_have_places() -> None:
    shard = limited(2)
    shard.enqueue(*[b"x"] * 5)
    reply = shard.ask(Reserve("batch", 0, 9, 60_000, 0))
    assert isinstance(reply, Reserved)
    assert [size for _, size in reply.parts] == [2]
    assert shard.receive(9) == []


def test_what_is_delivered_at_most_once_has_no_place() -> None:
    shard = limited(2, delivery="at_most_once")
    shard.subscribe(100)
    shard.enqueue(*[b"x"] * 5)
    assert len(shard.take_pushed()) == 5


def test_a_raised_limit_holds_at_once() -> None:
    shard = limited(1)
    shard.subscribe(100)
    shard.enqueue(*[b"x"] * 9)
    seen = [len(shard.take_pushed())]
    for most in (4, None):
        change(shard, most)
        seen.append(len(shard.take_pushed()))
    assert seen == [1, 3, 5]


def test_a_lowered_limit_takes_back_no_lease() -> None:
    shard = limited(4)
    shard.subscribe(100)
    shard.enqueue(*[b"x"] * 9)
    got = shard.take_pushed()
    change(shard, 2)
    shard.ack(got[:2])
    assert (len(got), shard.take_pushed()) == (4, [])
    shard.ack(got[2:3])
    assert len(shard.take_pushed()) == 1


def test_places_are_counted_anew_after_a_restart() -> None:
    shard = limited(3)
    shard.enqueue(*[b"x"] * 9)
    got = shard.receive(2)
    shard.restart()
    assert len(shard.receive(9)) == 1
    shard.ack(got)
    assert len(shard.receive(9)) == 2


@pytest.mark.parametrize("most", [7, None])
def test_statistics_show_the_limit(most: int | None) -> None:
    shard = limited(1)
    change(shard, most)
    assert shard.stats().max_in_flight == most
