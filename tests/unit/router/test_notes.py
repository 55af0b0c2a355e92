"""What the router notes for its operator."""

import pytest

from fila_proto_zmq.commands import Hello
from fila_proto_zmq.errors import InvalidArgumentError
from fila_proto_zmq.events import ClientConnected, ClientRefused, Event, WorkerJoined, WorkerLeft, WorkerLost, WorkerReturned
from fila_proto_zmq.ids import client_name
from fila_router.core.sessions import LOG_AGAIN_MS
from tests.unit.router.desk import CLIENT, PID, Desk


def refused(desk: Desk) -> list[Event]:
    return desk.notes(ClientRefused)


def test_a_worker_comes_is_lost_returns_and_leaves():
    desk = Desk(shards=3)
    desk.register("worker-0", shards=(0, 2))
    desk.unreachable("worker-0")
    desk.unreachable("worker-0")  # said once
    desk.pulse()
    desk.leave()
    who = "worker-0", PID
    assert desk.notes() == [
        WorkerJoined(*who, "9.9", [0, 2]),
        WorkerLost(*who, [0, 2], "its connection is gone"),
        WorkerReturned(*who, [0, 2]),
        WorkerLeft(*who, [0, 2]),
    ]


def test_a_client_that_says_hello_is_noted():
    desk = Desk()
    desk.ask(Hello([1], "test"))
    assert desk.notes() == [ClientConnected(client_name(desk.client_on()))]


def test_a_client_of_another_version_is_a_refusal_and_no_connection():
    desk = Desk()
    desk.ask(Hello([99], "test"))
    desk.router.tick(0)
    assert desk.notes() == [ClientRefused(client_name(desk.client_on()), "UNSUPPORTED_VERSION", 1)]


def test_a_flood_of_nonsense_is_a_line_now_and_then_with_its_number():
    desk = Desk()
    for _ in range(1000):
        desk.router.malformed(b"\1a", b"", desk.now_ms)
    desk.router.tick(0)
    for _ in range(500):
        desk.router.malformed(b"\1b", b"", desk.now_ms)
    desk.pass_ms(LOG_AGAIN_MS - 250)
    assert refused(desk) == [ClientRefused(client_name(desk.client_on(b"\1a")), "INVALID_FRAME", 1000)]
    desk.pass_ms(250)
    assert refused(desk)[1:] == [ClientRefused(client_name(desk.client_on(b"\1b")), "INVALID_FRAME", 500)]
    desk.pass_ms(2 * LOG_AGAIN_MS)
    assert len(refused(desk)) == 2


def test_each_kind_of_refusal_is_noted_for_itself():
    desk = Desk()
    desk.router.malformed(CLIENT, b"", desk.now_ms)
    desk.ask(Hello([99], "test"))
    desk.router.tick(0)
    assert {note.error for note in refused(desk)} == {"INVALID_FRAME", "UNSUPPORTED_VERSION"}


@pytest.mark.parametrize("started", [True, False])
def test_what_is_everyday_is_not_noted(started: bool):
    """Requests for a queue without a worker, or for none that could be: metrics count those."""
    desk = Desk(started=started)
    desk.enqueue()
    desk.enqueue(b"no such name!")
    desk.pass_ms(1000)
    assert desk.notes() == []


def test_a_lost_worker_s_next_life_joins_and_does_not_return():
    desk = Desk()
    desk.register()
    desk.unreachable("worker-0")
    desk.register(epoch=2, pid=43)
    assert [type(note) for note in desk.notes()] == [WorkerJoined, WorkerLost, WorkerJoined]


def test_a_process_whose_place_is_taken_before_the_router_misses_it_is_lost_first():
    desk = Desk()
    desk.register()
    desk.enqueue()
    desk.register(epoch=2, pid=43)
    joined, lost, again = desk.notes()
    assert lost == WorkerLost("worker-0", PID, [0], "another process has taken its place")
    assert (joined, again) == (WorkerJoined("worker-0", PID, "9.9", [0]), WorkerJoined("worker-0", 43, "9.9", [0]))


def test_a_process_that_may_not_take_a_place_loses_nobody_s():
    desk = Desk()
    desk.register(epoch=2)
    assert isinstance(desk.register(epoch=1, pid=43), InvalidArgumentError)
    assert desk.notes(WorkerLost) == []
