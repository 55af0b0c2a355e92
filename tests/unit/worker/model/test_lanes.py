"""Lanes: a line of messages of which only the head is in memory."""

from collections import deque

import pytest
from hypothesis import given
from hypothesis import settings as hypothesis_settings
from hypothesis import strategies as st

from fila_proto_zmq.commands import QueueOptions, Verb
from fila_worker.core.keys import pack_place
from fila_worker.core.model.fairness_keys import FairnessKey
from fila_worker.core.model.lanes import NONE_RETURNED, SHORT, Lane
from fila_worker.core.model.queues import Queue
from fila_worker.core.settings import Limits, ShardSettings
from tests.support.shard.shard import ShardHarness, limited


@pytest.fixture
def lane() -> Lane:
    return Lane(7, FairnessKey("k", Queue(1, "q", QueueOptions())))


def place(lane: Lane, number: int) -> bytes:
    return lane.prefix + pack_place(0, number)


def add(lane: Lane, *numbers: int, record: bytes | None = b"r") -> list[bool]:
    return [lane.add(place(lane, number), record) for number in numbers]


def drained(lane: Lane) -> list[int]:
    numbers = []
    while (entry := lane.pop()) is not None:
        numbers.append(int.from_bytes(entry[0][12:], "big"))
    return numbers


# --- one lane ---------------------------------------------------------------------------------------------------------


def test_messages_leave_in_order_however_they_came(lane: Lane) -> None:
    add(lane, 5, 1, 9, 3, 7, 2)
    assert lane.peek() == (place(lane, 1), b"r")
    assert drained(lane) == [1, 2, 3, 5, 7, 9]
    assert lane.peek() is None


def test_a_line_leaves_in_order_as_a_list_and_as_a_deque(lane: Lane) -> None:
    add(lane, 1, 2, 3)
    assert lane.pop() == (place(lane, 1), b"r")
    line = lane.line
    assert isinstance(lane.lengthen(), deque)
    assert lane.line is not line
    add(lane, 4)
    assert drained(lane) == [2, 3, 4]


@pytest.mark.parametrize("weight", [1, 3, 50])
@pytest.mark.parametrize("capped", [False, True])
def test_what_is_read_within_a_turn_is_delivered_once(weight: int, *, capped: bool) -> None:
    shard, count = ShardHarness(), 5 * SHORT
    shard.create(max_in_flight_per_key=1000 if capped else None)
    shard.enqueue(*[b"%d" % number for number in range(count)], weight=weight)
    shard.restart()
    assert [got.payload for _ in range(count) for got in shard.receive(4)] == [b"%d" % number for number in range(count)]


def test_lanes_share_what_none_of_them_has(lane: Lane) -> None:
    add(lane, 1)
    other = Lane(8, lane.key)
    add(lane, 0)
    assert (other.line, other.returned, other.pop()) == ([], NONE_RETURNED, None)
    assert [key for key, _ in lane.clear()] == [place(lane, 1), place(lane, 0)]
    assert (lane.line, lane.returned) == ([], NONE_RETURNED)


def test_what_is_in_memory_is_listed_in_order(lane: Lane) -> None:
    add(lane, 5, 1, 9)
    assert [key for key, _ in lane.buffered()] == [place(lane, number) for number in (1, 5, 9)]


def test_where_there_is_no_room_the_tail_begins(lane: Lane) -> None:
    assert add(lane, 1, 2) == [True, True]
    assert add(lane, 3, record=None) == [False]
    assert lane.tail == place(lane, 3)
    assert add(lane, 4, 5) == [False, False]
    assert drained(lane) == [1, 2]


def test_what_belongs_before_the_tail_is_held_in_memory(lane: Lane) -> None:
    add(lane, 2)
    add(lane, 5, record=None)
    assert add(lane, 1, 3, record=None) == [True, True]
    assert drained(lane) == [1, 2, 3]


def test_the_tail_begins_at_once_also_behind_a_returned_message(lane: Lane) -> None:
    add(lane, 2, 1)
    assert add(lane, 3, 4, record=None) == [False, False]
    assert drained(lane) == [1, 2]
    assert lane.tail == place(lane, 3)


def test_a_refill_skips_what_is_leased_and_moves_the_tail(lane: Lane) -> None:
    add(lane, 1, record=None)
    lane.leases().add(place(lane, 2))
    lane.refill([(place(lane, number), b"r") for number in (1, 2, 3)], exhausted=False)
    assert lane.tail is not None
    assert place(lane, 3) < lane.tail <= place(lane, 4)
    assert drained(lane) == [1, 3]
    lane.refill([], exhausted=True)
    assert lane.tail is None


def test_a_spill_keeps_the_first_and_returns_what_it_dropped(lane: Lane) -> None:
    add(lane, 9, 1, 8, 2, 7, 3)
    dropped = lane.spill(2)
    assert [key for key, _ in dropped] == [place(lane, number) for number in (3, 7, 8, 9)]
    assert lane.tail == place(lane, 3)
    assert drained(lane) == [1, 2]


def test_a_spill_moves_an_earlier_tail_forward(lane: Lane) -> None:
    add(lane, 9, 1, 8, 2, 7)
    add(lane, 10, record=None)
    lane.spill(2)
    assert lane.tail == place(lane, 7)


def test_a_cleared_lane_is_empty(lane: Lane) -> None:
    add(lane, 1, 2)
    add(lane, 3, record=None)
    assert len(lane.clear()) == 2
    assert (lane.pop(), lane.tail) == (None, None)


# --- memory -----------------------------------------------------------------------------------------------------------


def lane_of(shard: ShardHarness, key: str = "default") -> Lane:
    return shard.shard.queues["q"].keys[key].lanes[()]


def in_memory(shard: ShardHarness, key: str = "default") -> int:
    return len(lane_of(shard, key).buffered())


def numbered(count: int, size: int = 50) -> list[bytes]:
    return [number.to_bytes(size, "big") for number in range(count)]


def receive_all(shard: ShardHarness, count: int) -> list[bytes]:
    """The payloads of ``count`` messages, acked, in order of delivery."""
    payloads: list[bytes] = []
    while len(payloads) < count:
        got = shard.receive(7)
        assert got
        payloads += [each.payload for each in got]
        shard.ack(got)
    return payloads


@pytest.mark.parametrize("buffer_bytes", [1, 100, 1000, 10_000])
def test_a_backlog_beyond_memory_is_delivered_in_order(buffer_bytes: int) -> None:
    shard = ShardHarness(settings=ShardSettings(buffer_bytes=buffer_bytes))
    shard.create()
    for start in range(0, 300, 25):
        shard.enqueue(*numbered(300)[start : start + 25])
    assert receive_all(shard, 300) == numbered(300)
    assert shard.shard.buffers.used_bytes == 0


def test_memory_does_not_grow_with_the_backlog() -> None:
    shard = ShardHarness(settings=ShardSettings(buffer_bytes=2000), checked=False)
    shard.create()
    for _ in range(50):
        shard.enqueue(*numbered(20))
    assert shard.shard.buffers.used_bytes < 2000 + 20 * 100
    assert in_memory(shard) < 100


def test_memory_does_not_grow_behind_a_message_that_was_given_back() -> None:
    shard = ShardHarness(settings=ShardSettings(buffer_bytes=200), checked=False)
    shard.create()
    shard.enqueue(*numbered(3))
    shard.settle(Verb.RELEASE, shard.receive(2)[:1])
    for _ in range(50):
        shard.enqueue(*numbered(20))
    assert in_memory(shard) < 100


def test_small_messages_count_with_what_they_cost_in_memory() -> None:
    """Beside its bytes, a record in a line costs about 170 more: its key, a tuple, three object headers."""
    shard = ShardHarness(settings=ShardSettings(buffer_bytes=10_000), checked=False)
    shard.create()
    shard.enqueue(*[b""] * 1000)
    assert in_memory(shard) <= 100


def test_all_lanes_share_one_memory() -> None:
    shard = ShardHarness(settings=ShardSettings(buffer_bytes=2000))
    shard.create()
    for key in "abcdefgh":
        shard.enqueue(*numbered(20), key=key)
    assert shard.shard.buffers.used_bytes < 2000 + 20 * 100
    by_key: dict[str, list[bytes]] = {}
    while got := shard.receive(10):
        for each in got:
            by_key.setdefault(each.key, []).append(each.payload)
        shard.ack(got)
    assert by_key == {key: numbered(20) for key in "abcdefgh"}


def test_many_returned_messages_spill_to_disk() -> None:
    shard = ShardHarness(settings=limited(lane_disorder_messages_max=16))
    shard.create()
    shard.enqueue(*numbered(200))
    got = [each for _ in range(3) for each in shard.receive(50)]
    shard.nack(got[::-1])
    assert in_memory(shard) <= 2 * 16
    assert receive_all(shard, 200) == numbered(200)


def test_a_delivery_is_bounded_in_bytes_when_its_messages_are_in_memory() -> None:
    assert delivered_bytes(ShardSettings()) <= 1024 * 1024 + 300_000


def test_a_delivery_is_bounded_in_bytes_when_its_messages_are_on_disk() -> None:
    assert delivered_bytes(ShardSettings(buffer_bytes=1000)) <= 1024 * 1024 + 300_000


def test_a_turn_delivers_a_bounded_number_of_bytes() -> None:
    """What is delivered waits in memory for the turn's commit, whatever the consumers' credit."""
    shard = ShardHarness(checked=False)
    shard.create()
    for _ in range(30):
        shard.enqueue(*[bytes(1_000_000)] * 2)
    shard.subscribe(1000)
    assert 1 < len(shard.take_pushed()) < 40


def delivered_bytes(settings: ShardSettings) -> int:
    shard = ShardHarness(settings=settings)
    shard.create()
    shard.enqueue(*[bytes(300_000)] * 20)
    return sum(len(each.payload) for each in shard.receive(20))


@hypothesis_settings(deadline=None, max_examples=100)
@given(data=st.data(), buffer_bytes=st.sampled_from([1, 150, 1000, 1_000_000]), spill_at=st.sampled_from([2, 6, 4096]))
def test_whatever_happens_the_first_pending_message_is_next(data: st.DataObject, buffer_bytes: int, spill_at: int) -> None:
    limits = Limits(lane_disorder_messages_max=spill_at)
    shard = ShardHarness(settings=ShardSettings(buffer_bytes=buffer_bytes, limits=limits))
    shard.create()
    pending: list[tuple[int, int]] = []
    held: dict[tuple[int, int], object] = {}
    sequence = 0
    for _ in range(data.draw(st.integers(1, 25))):
        match data.draw(st.sampled_from(["enqueue", "receive", "release", "nack", "ack", "restart"])):
            case "enqueue":
                priority = data.draw(st.integers(-1, 1))
                count = data.draw(st.integers(1, 8))
                shard.enqueue(*[bytes(20)] * count, priority=priority)
                pending += [(priority, sequence + number) for number in range(1, count + 1)]
                sequence += count
            case "receive":
                got = shard.receive(data.draw(st.integers(1, 10)))
                places = [(each.record.priority, each.record.id_low & 0xFFFF) for each in got]
                pending.sort()
                assert places == pending[: len(got)]
                assert len(got) > 0 or not pending
                del pending[: len(got)]
                held.update(zip(places, got, strict=True))
            case "restart":
                shard.restart()
            case verb:
                chosen = data.draw(st.lists(st.sampled_from(sorted(held)), unique=True)) if held else []
                if chosen:
                    assert not shard.settle(Verb[verb.upper()], [held.pop(each) for each in chosen]).faults
                    pending += [] if verb == "ack" else chosen
    assert shard.counts()[:2] == (len(pending), len(held))
