"""Receives: what is ready now, or as soon as something is."""

import pytest

from fila_proto_zmq.commands import Delivered, Receive
from fila_proto_zmq.errors import InvalidArgumentError, QueueNotFoundError
from fila_proto_zmq.limits import PREFETCH_MAX, WAIT_MS_MAX
from fila_worker.core.effects import ClientCall
from tests.support.shard.shard import Got, ShardHarness, opened

TIMEOUT_MS = 15_000


def payloads(got: list[Got]) -> list[bytes]:
    return [each.payload for each in got]


def numbered(count: int) -> list[bytes]:
    return [b"%d" % number for number in range(count)]


def receive_later(shard: ShardHarness, count: int = 1, wait_ms: int = 5_000, client: bytes = b"c1") -> int:
    return shard.send(Receive(count, wait_ms), client=client)


def answered(shard: ShardHarness, request: int) -> list[bytes]:
    reply = shard.late.pop(request)
    assert isinstance(reply, Delivered)
    return payloads(opened(reply))


def test_a_receive_takes_what_is_ready_and_does_not_wait_for_more(shard: ShardHarness) -> None:
    shard.enqueue(b"0", b"1")
    assert answered(shard, receive_later(shard, count=10)) == [b"0", b"1"]


def test_a_receive_from_an_empty_queue_is_answered_with_nothing_at_once(shard: ShardHarness) -> None:
    assert answered(shard, receive_later(shard, wait_ms=0)) == []


def test_a_waiting_receive_is_answered_as_soon_as_something_comes(shard: ShardHarness) -> None:
    waiting = receive_later(shard)
    assert waiting not in shard.late
    shard.pass_time(3_000)
    shard.enqueue(b"0", b"1")
    assert answered(shard, waiting) == [b"0"]
    assert shard.counts() == (1, 1, 0)


def test_a_waiting_receive_is_answered_with_nothing_when_its_time_is_up(shard: ShardHarness) -> None:
    waiting = receive_later(shard, wait_ms=5_000)
    shard.pass_time(4_999)
    assert waiting not in shard.late
    assert shard.shard.next_due(shard.now_ms) == 1
    shard.pass_time(1)
    assert answered(shard, waiting) == []
    shard.enqueue(b"late")
    assert shard.counts() == (1, 0, 0)


def test_a_waiting_receive_sees_delayed_and_returned_messages(shard: ShardHarness) -> None:
    shard.enqueue(b"delayed", delay_ms=1_000)
    waiting = receive_later(shard)
    shard.pass_time(1_000)
    assert answered(shard, waiting) == [b"delayed"]


def test_waiting_receives_are_served_in_their_order(shard: ShardHarness) -> None:
    waiting = [receive_later(shard, client=b"c%d" % number) for number in range(3)]
    shard.enqueue(b"0", b"1")
    assert [answered(shard, request) for request in waiting[:2]] == [[b"0"], [b"1"]]
    assert waiting[2] not in shard.late


def test_one_client_may_wait_many_times(shard: ShardHarness) -> None:
    waiting = [receive_later(shard) for _ in range(3)]
    assert shard.stats().info.consumers == 1
    shard.enqueue(b"0", b"1", b"2")
    assert [answered(shard, request) for request in waiting] == [[b"0"], [b"1"], [b"2"]]


def test_a_repeated_receive_frame_is_one_receive(shard: ShardHarness) -> None:
    for _ in range(2):
        shard.shard.apply(ClientCall(b"c1", 70, "q", shard.now_ms), Receive(1, 5_000))
    shard.turn()
    shard.enqueue(b"0", b"1")
    assert answered(shard, 70) == [b"0"]
    assert shard.counts() == (1, 1, 0)


def test_a_client_that_waits_for_long_has_to_send_heartbeats(shard: ShardHarness) -> None:
    waiting = receive_later(shard, wait_ms=60_000)
    for _ in range(5):
        shard.pass_time(10_000)
        shard.heartbeat()
    shard.enqueue(b"0")
    assert answered(shard, waiting) == [b"0"]
    forsaken = receive_later(shard, wait_ms=60_000)
    shard.pass_time(TIMEOUT_MS)
    shard.enqueue(b"1")
    assert answered(shard, forsaken) == []
    assert shard.counts() == (2, 0, 0)


@pytest.mark.parametrize(
    ("command", "text"),
    [
        (Receive(-1, 0), "receive of -1"),
        (Receive(PREFETCH_MAX + 1, 0), "receive of 100001"),
        (Receive(1, -1), "wait of -1 ms"),
        (Receive(1, WAIT_MS_MAX + 1), "wait of 86400001 ms"),
    ],
)
def test_a_receive_out_of_bounds_is_refused(shard: ShardHarness, command: Receive, text: str) -> None:
    with pytest.raises(InvalidArgumentError, match=text):
        shard.ask(command)


def test_receiving_from_a_queue_that_does_not_exist_is_refused(shard: ShardHarness) -> None:
    with pytest.raises(QueueNotFoundError, match=r"'nowhere'.*queue create nowhere"):
        shard.receive(queue="nowhere")


# --- nothing piles up -------------------------------------------------------------------------------------------------


def test_receives_that_found_nothing_leave_nothing_behind(shard: ShardHarness) -> None:
    for _ in range(300):
        shard.receive()
    assert len(shard.shard.queues["q"].demands) < 10


def test_receives_that_found_nothing_do_not_slow_the_next_delivery_down(shard: ShardHarness) -> None:
    for _ in range(50):
        shard.receive()
    shard.subscribe(50)
    shard.enqueue(*numbered(50))
    got = shard.take_pushed()
    assert len(got) == 50
    assert len({each.lease for each in got}) == 1


def test_receives_that_were_answered_early_do_not_pile_up_until_their_deadline(shard: ShardHarness) -> None:
    shard.checked = False
    for _ in range(3000):
        waiting = receive_later(shard, wait_ms=WAIT_MS_MAX)
        shard.enqueue(b"")
        reply = shard.late.pop(waiting)
        assert isinstance(reply, Delivered)
        shard.ack(opened(reply))
    assert len(shard.shard.consumers.waiting) < 2000
