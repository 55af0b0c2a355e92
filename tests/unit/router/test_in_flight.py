"""The table of requests that a worker owes an answer."""

from fila_proto_zmq.commands import Enqueue, Receive, Settle
from fila_proto_zmq.frames import REPLY, pack_header
from fila_proto_zmq.limits import WAIT_MS_MAX
from fila_router.core import in_flight
from fila_router.core.in_flight import InFlight

C = b"\1c"


def opened(table: InFlight, request: int, opcode: int = Enqueue.opcode, *, shard: int = 0, size: int = 10, now_ms: int = 0):
    table.open(C, pack_header(opcode, request), b"q", shard, size, now_ms)


def closed(table: InFlight, request: int, opcode: int = Enqueue.opcode) -> bool:
    return table.close(C, pack_header(opcode, request, REPLY))


def test_each_request_is_closed_once():
    table = InFlight()
    opened(table, 1)
    assert closed(table, 1)
    assert not closed(table, 1)
    assert (len(table), table.bytes) == (0, 0)


def test_bytes_are_those_of_what_is_open():
    table = InFlight()
    opened(table, 1, size=1000)
    one = table.bytes
    opened(table, 2, Receive.opcode, size=1000)
    assert table.bytes == 2 * one > 2000
    closed(table, 1)
    assert table.bytes == one


def test_a_repeated_request_weighs_twice_and_is_answered_once():
    table = InFlight()
    opened(table, 1)
    one = table.bytes
    opened(table, 1)
    assert (len(table), table.bytes) == (1, 2 * one)
    assert closed(table, 1)
    assert (len(table), table.bytes) == (0, 0)


def test_too_many_calls_are_refused_but_settling_goes_on(monkeypatch):
    monkeypatch.setattr(in_flight, "CALLS_MAX", 3)
    table = InFlight()
    for request in range(3):
        assert table.has_room(Enqueue.opcode)
        opened(table, request)
    assert not table.has_room(Enqueue.opcode)
    assert table.has_room(Settle.opcode)
    assert table.has_room(Receive.opcode)


def test_even_settling_has_an_end(monkeypatch):
    monkeypatch.setattr(in_flight, "RELIEF_MAX", 3)
    table = InFlight()
    for request in range(3):
        opened(table, request, Settle.opcode)
    assert not table.has_room(Settle.opcode)


def test_waiting_receives_have_a_bound_of_their_own(monkeypatch):
    monkeypatch.setattr(in_flight, "WAITS_MAX", 2)
    table = InFlight()
    for request in range(2):
        opened(table, request, Receive.opcode)
    assert not table.has_room(Receive.opcode)
    assert table.has_room(Enqueue.opcode)


def test_too_many_bytes_are_refused_but_one_large_frame_always_passes():
    table = InFlight()
    opened(table, 1, size=in_flight.BYTES_MAX * 2)
    assert not table.has_room(Enqueue.opcode)
    assert not table.has_room(Settle.opcode)
    closed(table, 1)
    assert table.has_room(Enqueue.opcode)


def test_a_lost_shard_s_requests_are_taken_out():
    table = InFlight()
    opened(table, 1, shard=0)
    opened(table, 2, shard=1)
    opened(table, 3, Receive.opcode, shard=1)
    taken = table.take(frozenset({1}))
    assert [int.from_bytes(call[1][10:]) for call in taken] == [2, 3]
    assert closed(table, 1)
    assert table.bytes == 0


def test_what_nobody_can_await_any_more_is_forgotten():
    table = InFlight()
    opened(table, 1, now_ms=0)
    opened(table, 2, Receive.opcode, now_ms=0)
    table.forget_overdue(in_flight.CALL_MS_MAX)
    assert not closed(table, 1)
    assert len(table) == 1
    table.forget_overdue(in_flight.CALL_MS_MAX + WAIT_MS_MAX)
    assert (len(table), table.bytes) == (0, 0)
