"""The table of requests that a worker owes an answer."""

import pytest

from fila_admission import in_flight
from fila_admission.in_flight import InFlight
from fila_proto_zmq.codec import encode_body
from fila_proto_zmq.commands import Browse, Enqueue, Receive, Reserve, Settle
from fila_proto_zmq.frames import REPLY, pack_header
from fila_proto_zmq.limits import WAIT_MS_MAX
from fila_router.core.limits import DEFAULTS, RouterLimits

C = b"\1c"


def opened(
    table: InFlight,
    request: int,
    opcode: int = Enqueue.opcode,
    *,
    shard: int = 0,
    size: int = 10,
    body: bytes = b"",
    now_ms: int = 0,
    client: bytes = C,
    connection: bytes = b"conn",
) -> bool:
    return table.open(client, pack_header(opcode, request), b"q", shard, body or bytes(size), connection, now_ms)


def closed(table: InFlight, request: int, opcode: int = Enqueue.opcode) -> bool:
    return table.close(C, pack_header(opcode, request, REPLY))


def test_each_request_is_closed_once():
    table = InFlight()
    opened(table, 1)
    assert closed(table, 1)
    assert not closed(table, 1)
    assert (len(table), table.size_bytes) == (0, 0)


def test_bytes_are_those_of_what_is_open():
    table = InFlight()
    opened(table, 1, size=1000)
    one = table.size_bytes
    opened(table, 2, Receive.opcode, size=1000)
    assert table.size_bytes == 2 * one > 2000
    closed(table, 1)
    assert table.size_bytes == one


def test_a_request_repeated_on_a_new_connection_weighs_twice_and_is_answered_once():
    table = InFlight()
    assert opened(table, 1)
    one = table.size_bytes
    assert opened(table, 1, connection=b"next")
    assert (len(table), table.size_bytes) == (1, 2 * one)
    assert closed(table, 1)
    assert (len(table), table.size_bytes) == (0, 0)


def test_an_open_request_is_not_forwarded_again_for_the_connection_that_it_came_on():
    """Else a client could have any number of pages made for the place of one."""
    table = InFlight()
    opened(table, 1, Browse.opcode)
    assert not opened(table, 1, Browse.opcode)
    assert (len(table), len(table.rooms[3].calls)) == (1, 1)
    assert closed(table, 1, Browse.opcode)
    assert opened(table, 1, Browse.opcode)


def test_even_on_ever_new_connections_an_open_request_is_forwarded_a_few_times():
    table = InFlight()
    forwarded = sum(opened(table, 1, connection=b"%d" % number) for number in range(100))
    assert forwarded == 1 + in_flight.REPEATS_MAX


def test_too_many_calls_are_refused_but_settling_goes_on():
    table = InFlight(RouterLimits(calls_max=6))
    for request in range(3):
        assert table.has_room(C, Enqueue.opcode)
        opened(table, request)
    assert not table.has_room(C, Enqueue.opcode)
    assert table.has_room(C, Settle.opcode)
    assert table.has_room(C, Receive.opcode)


def test_even_settling_has_an_end():
    table = InFlight(RouterLimits(relieving_calls_max=6))
    for request in range(3):
        opened(table, request, Settle.opcode)
    assert not table.has_room(C, Settle.opcode)


def test_what_waits_has_a_bound_of_its_own():
    table = InFlight(RouterLimits(client_waits_max=2))
    for request, opcode in enumerate((Receive.opcode, Reserve.opcode)):
        opened(table, request, opcode)
    assert not table.has_room(C, Receive.opcode)
    assert table.has_room(C, Enqueue.opcode)


def test_too_many_bytes_are_refused_but_one_large_frame_always_passes():
    table = InFlight()
    opened(table, 1, size=DEFAULTS.in_flight_bytes_max * 2)
    assert not table.has_room(C, Enqueue.opcode)
    assert table.has_room(C, Settle.opcode)
    closed(table, 1)
    assert table.has_room(C, Enqueue.opcode)


def test_pages_are_few_because_each_is_large():
    table = InFlight(RouterLimits(pages_max=6))
    request = 0
    while table.has_room(C, Browse.opcode):
        request += 1
        opened(table, request, Browse.opcode)
    assert request == 3
    assert table.has_room(b"\1d", Browse.opcode)
    assert table.has_room(C, Enqueue.opcode)


def test_one_client_cannot_take_all_the_room():
    table = InFlight(RouterLimits(calls_max=30))
    taken = dict.fromkeys((C, b"\x01d", b"\x01e"), 0)
    for client in taken:
        while table.has_room(client, Enqueue.opcode):
            taken[client] += 1
            opened(table, taken[client], client=client)
    assert list(taken.values()) == [15, 10, 5]
    assert not table.has_room(b"\1f", Enqueue.opcode)
    for request in range(1, 6):
        closed(table, request)
    assert table.has_room(b"\1f", Enqueue.opcode)
    assert not table.has_room(C, Enqueue.opcode)


def test_one_client_cannot_take_all_the_bytes():
    table = InFlight(RouterLimits(in_flight_bytes_max=1_000_000))
    request = 0
    while table.has_room(C, Enqueue.opcode):
        request += 1
        opened(table, request, size=100_000)
    assert table.size_bytes < 600_000
    assert table.has_room(b"\1d", Enqueue.opcode)


def test_a_refusal_says_when_there_will_be_room():
    table = InFlight(RouterLimits(calls_max=2000))
    table.measure(0)
    for request in range(1400):
        opened(table, request, client=b"\1%d" % (request % 7))
    for request in range(400):
        table.close(b"\1%d" % (request % 7), pack_header(Enqueue.opcode, request, REPLY))
    table.measure(250)
    pace = table.retry_ms(C, Enqueue.opcode)
    assert pace == 1000 * 500 // 800  # half of what is open, at 400 answers in 250 ms after a moment without any
    table.measure(500)
    assert table.retry_ms(C, Enqueue.opcode) == 2 * pace
    for quarter in range(40):
        table.measure(750 + 250 * quarter)
    assert table.retry_ms(C, Enqueue.opcode) == in_flight.RETRY_MS_MAX


def test_pages_come_as_fast_as_pages_are_answered():
    """A worker answers thousands of other requests meanwhile."""
    table = InFlight()
    table.measure(0)
    for quarter in range(1, 21):
        for request in range(1000):
            opened(table, request)
            closed(table, request)
        opened(table, 1000 + quarter, Browse.opcode)
        closed(table, 1000 + quarter, Browse.opcode)
        table.measure(250 * quarter)
    for request in range(8):
        opened(table, request, Browse.opcode)
    assert table.retry_ms(C, Browse.opcode) == 1000  # half of 8, at 4 a second
    assert table.retry_ms(C, Enqueue.opcode) == in_flight.RETRY_MS_MIN


def test_a_pace_is_not_forgotten_while_nothing_is_asked():
    table = InFlight()
    table.measure(0)
    for request in range(100):
        opened(table, request, Browse.opcode)
        closed(table, request, Browse.opcode)
    for quarter in range(1, 40):
        table.measure(250 * quarter)
    opened(table, 1, Browse.opcode)
    assert table.retry_ms(C, Browse.opcode) == in_flight.RETRY_MS_MIN


def test_open_pages_are_counted_for_each_client():
    table = InFlight()
    opened(table, 1, Browse.opcode)
    opened(table, 2, Browse.opcode)
    opened(table, 1, Browse.opcode, client=b"\1d")
    opened(table, 3)
    assert (table.pages, table.pages_of(C), table.pages_of(b"\1d"), table.pages_of(b"\1e")) == (3, 2, 1, 0)
    closed(table, 1, Browse.opcode)
    assert (table.pages, table.pages_of(C)) == (2, 1)


def test_a_lost_shard_s_requests_are_taken_out():
    table = InFlight()
    opened(table, 1, shard=0)
    opened(table, 2, shard=1)
    opened(table, 3, Receive.opcode, shard=1)
    taken = table.take(frozenset({1}))
    assert [int.from_bytes(call[1][10:]) for call in taken] == [2, 3]
    assert closed(table, 1)
    assert table.size_bytes == 0


@pytest.mark.parametrize("command", [Receive(1, 500), Reserve("r", 0, 1, 1000, 500)])
def test_one_that_waits_is_forgotten_when_its_wait_is_over_too(command: Receive | Reserve):
    table = InFlight()
    opened(table, 1, command.opcode, body=encode_body(command))
    table.forget_overdue(in_flight.CALL_MS_MAX + 499)
    assert len(table) == 1
    table.forget_overdue(in_flight.CALL_MS_MAX + 500)
    assert len(table) == 0


@pytest.mark.parametrize(
    ("body", "wait_ms"),
    [
        (encode_body(Receive(1, WAIT_MS_MAX + 1)), WAIT_MS_MAX),
        (encode_body(Receive(1, -1)), 0),
        (b"no body", 0),
        (encode_body(Receive(1, 500)).replace(b"\x92", b"\xdc\x10\x00") + bytes(4094), 0),
    ],
)
def test_no_body_holds_a_place_for_longer_than_a_day(body: bytes, wait_ms: int):
    table = InFlight()
    opened(table, 1, Receive.opcode, body=body)
    table.forget_overdue(in_flight.CALL_MS_MAX + wait_ms - 1)
    assert len(table) == 1
    table.forget_overdue(in_flight.CALL_MS_MAX + wait_ms)
    assert len(table) == 0


def test_requests_that_no_client_can_await_are_forgotten():
    table = InFlight()
    opened(table, 1, now_ms=0)
    opened(table, 2, Receive.opcode, now_ms=1)
    table.forget_overdue(in_flight.CALL_MS_MAX)
    assert not closed(table, 1)
    assert len(table) == 1
    table.forget_overdue(in_flight.CALL_MS_MAX + 1)
    assert (len(table), table.size_bytes) == (0, 0)
