"""Browsing: what is in a queue, key by key and in line order, without touching it."""

import pytest

from fila_proto_zmq.commands import Browse, Browsed, Cancel, Extend, MessageView, PurgeQueue, Verb
from fila_proto_zmq.errors import InvalidArgumentError, MessageNotFoundError, QueueNotFoundError
from fila_proto_zmq.ids import client_name, format_id, parse_id
from fila_proto_zmq.limits import BROWSE_MESSAGES_MAX
from fila_proto_zmq.record import payload_of, record_id, unpack_record
from fila_worker.core.inspect.backlog import BrowseCursors
from fila_worker.core.settings import ShardSettings
from tests.support.shard.shard import ADMIN, ShardHarness


def browse(shard: ShardHarness, limit: int = 100, queue: str = "q", **options: object) -> Browsed:
    reply = shard.ask(Browse(limit, **options), queue, ADMIN)  # type: ignore[arg-type]
    assert isinstance(reply, Browsed)
    return reply


def identity(view: MessageView) -> str:
    return format_id(*record_id(view.record))


def seen(shard: ShardHarness, limit: int = 100, queue: str = "q", **options: object) -> list[bytes]:
    return [payload_of(view.record) for view in browse(shard, limit, queue, **options).messages]


def pages(shard: ShardHarness, limit: int, **options: object) -> list[list[bytes]]:
    """All pages to the end, each asked for by the last id of the one before."""
    found: list[list[bytes]] = []
    after: tuple[int, int] | None = None
    while True:
        page = browse(shard, limit, after=after, **options)
        if page.messages:
            found.append([payload_of(view.record) for view in page.messages])
        if not page.more:
            return found
        after = record_id(page.messages[-1].record)


def test_key_by_key_and_in_line_order(shard: ShardHarness) -> None:
    shard.enqueue(b"b0", b"b1", key="b")
    shard.enqueue(b"a0", key="a")
    shard.enqueue(b"a1", key="a", priority=-1)
    shard.enqueue(b"a2", key="a", delay_ms=1_000)
    shard.enqueue(b"a3", key="a")
    assert seen(shard) == [b"a1", b"a0", b"a2", b"a3", b"b0", b"b1"]
    assert not browse(shard).more
    assert shard.counts() == (5, 0, 1)


def test_a_view_says_where_a_message_is_and_who_has_it(shard: ShardHarness) -> None:
    shard.enqueue(b"leased", b"pending", key="acme", weight=3, throttle_keys=[["t2", "t1"]])
    shard.enqueue(b"delayed", key="acme", delay_ms=5_000)
    shard.pass_time(100)
    shard.receive(client=b"\x01\x02")
    leased, pending, delayed = browse(shard).messages
    assert [each.state for each in (leased, pending, delayed)] == ["leased", "pending", "delayed"]
    assert (leased.consumer, leased.leased_ms, leased.lease_expires_ms) == (
        client_name(b"\1\2"),
        shard.now_ms,
        shard.now_ms + 30_000,
    )
    assert (pending.consumer, pending.leased_ms, pending.lease_expires_ms, pending.due_ms) == ("", 0, 0, 0)
    assert (delayed.due_ms, leased.due_ms) == (shard.now_ms + 4_900, 0)
    assert {(each.fairness_key, each.weight) for each in (leased, pending, delayed)} == {("acme", 3)}
    assert (pending.throttle_keys, delayed.throttle_keys) == (["t1", "t2"], [])


def test_an_extended_lease_is_shown_as_it_is_now(shard: ShardHarness) -> None:
    shard.enqueue(b"0", b"1")
    got = shard.receive(2)
    shard.ask(Extend([(got[1].lease, [got[1].index])], 90_000))
    shard.restart()
    assert [view.lease_expires_ms - shard.now_ms for view in browse(shard).messages] == [30_000, 90_000]


@pytest.mark.parametrize("tiny", [False, True])
@pytest.mark.parametrize("limit", [1, 2, 3, 7, 100])
def test_pages_follow_each_other(tiny: bool, limit: int) -> None:
    shard = ShardHarness(settings=ShardSettings(buffer_bytes=300 if tiny else 2**20))
    shard.create()
    expected = []
    for key in "abc":
        shard.enqueue(*[b"%s%d" % (key.encode(), number) for number in range(7)], key=key)
        expected += [b"%s%d" % (key.encode(), number) for number in range(7)]
    shard.receive(8)
    found = pages(shard, limit)
    assert [payload for page in found for payload in page] == expected
    assert [len(page) for page in found[:-1]] == [limit] * (len(found) - 1)


@pytest.mark.parametrize("state", ["pending", "leased", "delayed"])
def test_a_state_can_be_chosen(shard: ShardHarness, state: str) -> None:
    for key in "ab":
        shard.enqueue(b"%s0" % key.encode(), b"%s1" % key.encode(), b"%s2" % key.encode(), key=key)
        shard.enqueue(b"%s3" % key.encode(), b"%s4" % key.encode(), key=key, delay_ms=9_000)
    shard.receive(2)
    found = [payload for page in pages(shard, 2, state=state) for payload in page]
    expected = {"pending": [b"a1", b"a2", b"b1", b"b2"], "leased": [b"a0", b"b0"], "delayed": [b"a3", b"a4", b"b3", b"b4"]}
    assert found == expected[state]


def test_a_key_can_be_chosen(shard: ShardHarness) -> None:
    for key in "abc":
        shard.enqueue(b"%s0" % key.encode(), b"%s1" % key.encode(), key=key)
    assert pages(shard, 1, fairness_key="b") == [[b"b0"], [b"b1"]]
    assert seen(shard, fairness_key="nobody") == []


def test_a_keys_lanes_are_merged_by_place(shard: ShardHarness) -> None:
    for number in range(9):
        throttle = [[["t"]], [["u"]], []][number % 3]
        shard.enqueue(b"%d" % number, throttle_keys=throttle, delay_ms=1_000 if number in {4, 5} else 0)
    assert [payload for page in pages(shard, 2) for payload in page] == [b"%d" % number for number in range(9)]


# --- between two pages ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("fate", ["acked", "cancelled", "purged", "dead", "delayed"])
def test_the_next_page_is_found_when_the_last_message_has_gone(shard: ShardHarness, fate: str) -> None:
    shard.enqueue(*[b"%d" % number for number in range(5)])
    page = browse(shard, 2)
    last = page.messages[-1]
    match fate:
        case "acked":
            shard.ack(shard.receive(2))
        case "cancelled":
            shard.ask(Cancel(*parse_id(identity(last))))
        case "dead":
            shard.settle(Verb.FAIL, shard.receive(2))
        case "delayed":
            shard.settle(Verb.RETRY, shard.receive(2), after_ms=5_000)
        case "purged":
            shard.ask(PurgeQueue())
            shard.enqueue(b"2", b"3", b"4")
    assert seen(shard, after=record_id(last.record)) == [b"2", b"3", b"4"]


def test_any_message_can_be_the_one_to_go_on_from(shard: ShardHarness) -> None:
    ids = shard.enqueue(*[b"%d" % number for number in range(5)])
    assert seen(shard, after=parse_id(ids[2])) == [b"3", b"4"]
    assert seen(shard, after=parse_id(ids[2]), state="leased") == []


def test_one_that_was_never_here_is_not(shard: ShardHarness) -> None:
    shard.enqueue(b"x")
    with pytest.raises(MessageNotFoundError):
        browse(shard, after=(1, 2))


def test_what_is_remembered_of_pages_is_bounded(shard: ShardHarness) -> None:
    shard.limit(browse_cursors_max=10)
    shard.enqueue(*[b"%d" % number for number in range(50)])
    browse(shard, 50)
    assert len(shard.shard.part(BrowseCursors)) == 10


# --- what is not shown ------------------------------------------------------------------------------------------------


def test_acked_messages_are_not_shown_though_they_still_lie_on_disk(shard: ShardHarness) -> None:
    shard.enqueue(b"0", b"1", b"2")
    shard.ack(shard.receive(2))
    assert seen(shard) == [b"2"]
    shard.restart()
    assert seen(shard) == [b"2"]


def test_nor_are_purged_ones(shard: ShardHarness) -> None:
    shard.enqueue(b"0", b"1", b"2")
    shard.receive()
    shard.ask(PurgeQueue())
    assert seen(shard) == [b"0"]


def test_nothing_is_leased_and_no_consumer_waits(shard: ShardHarness) -> None:
    shard.enqueue(b"0", b"1")
    browse(shard, 2)
    assert [each.payload for each in shard.receive(2, client=b"other")] == [b"0", b"1"]


def test_dead_letters_can_be_browsed(shard: ShardHarness) -> None:
    shard.enqueue(b"0", priority=7)
    shard.settle(Verb.FAIL, shard.receive(), error="boom")
    (view,) = browse(shard, queue="q.dlq").messages
    assert (unpack_record(view.record).extension.error, unpack_record(view.record).attempts) == ("boom", 1)


# --- limits -----------------------------------------------------------------------------------------------------------


def test_a_page_of_large_messages_is_shorter(shard: ShardHarness) -> None:
    shard.enqueue(*[bytes(300_000)] * 6)
    page = browse(shard)
    assert (1 < len(page.messages) < 6, page.more) == (True, True)
    assert sum(map(len, pages(shard, 100))) == 6


def test_one_message_is_always_shown_however_large(shard: ShardHarness) -> None:
    shard.enqueue(bytes(3_000_000), b"")
    assert [len(page) for page in pages(shard, 100)] == [1, 1]


@pytest.mark.parametrize("limit", [0, -1, BROWSE_MESSAGES_MAX + 1])
def test_a_limit_has_bounds(shard: ShardHarness, limit: int) -> None:
    with pytest.raises(InvalidArgumentError, match="use 1 to"):
        browse(shard, limit)


def test_an_unknown_state_is_refused(shard: ShardHarness) -> None:
    with pytest.raises(InvalidArgumentError, match="pending, delayed, leased"):
        browse(shard, state="dead")
    with pytest.raises(QueueNotFoundError):
        browse(shard, queue="nobody")
