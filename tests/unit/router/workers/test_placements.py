"""Where the shards are: which clients hear of it, when, and what of it changes with the workers."""

import pytest

from fila_proto_zmq.codec import decode_body
from fila_proto_zmq.commands import PLACEMENT, DoorView, GetPlacement, Hello, Placement, Pulse, Register, Welcome
from fila_proto_zmq.frames import unpack_header
from fila_router.core import placements
from fila_router.core.worker_state import SILENCE_MS_MAX
from tests.unit.router.desk import CLIENT, PID, Desk

DOOR, ENDPOINTS = bytes(16), ["ipc:///here", "tcp://*:1234"]
OTHER = b"\0conn2"


def register(
    desk: Desk, worker: str = "worker-0", shards: tuple[int, ...] = (0,), epoch: int = 1, door: bytes = DOOR
) -> None:
    endpoints = ENDPOINTS if door else []
    desk.say(worker, Register(worker, PID, "9.9", [(shard, epoch) for shard in shards], door=door, endpoints=endpoints))


def greet(desk: Desk, connection: bytes = CLIENT, *, direct: bool = True) -> Welcome:
    desk.ask(Hello([1], direct=direct), b"", connection)
    (answer,) = desk.answers()
    assert isinstance(answer.content, Welcome)
    return answer.content


def pushed(desk: Desk, *, ticks: bool = True) -> list[tuple[bytes, Placement]]:
    """The placements that clients hear of with the next tick."""
    if ticks:
        desk.router.tick(desk.now_ms)
    frames, desk.router.outgoing.to_clients = desk.router.outgoing.to_clients, []
    found = []
    for client, header, key, body in frames:
        parsed = unpack_header(header)
        assert (parsed.opcode, parsed.flags, parsed.request, key) == (PLACEMENT, 0, 0, b"")
        found.append((client, decode_body(Placement, body)))
    return found


def view(worker: str = "worker-0", epoch: int = 1, door: bytes = DOOR, shards: tuple[int, ...] = (0,)) -> DoorView:
    return DoorView(worker, door, ENDPOINTS, [(shard, epoch) for shard in shards])


def test_a_client_hears_with_its_welcome_and_after_each_change() -> None:
    desk = Desk(2)
    assert greet(desk).doors == []
    register(desk)
    assert [placement.doors for _, placement in pushed(desk)] == [[view()]]
    assert pushed(desk) == []
    register(desk, "worker-1", (1,), door=b"\1" * 16)
    both = [view(), view("worker-1", door=b"\1" * 16, shards=(1,))]
    assert [placement.doors for _, placement in pushed(desk)] == [both]
    assert greet(desk).doors == both


def test_a_client_that_did_not_ask_for_it_hears_nothing() -> None:
    desk = Desk()
    greet(desk, direct=False)
    greet(desk, OTHER)
    register(desk)
    assert [client for client, _ in pushed(desk)] == [desk.client_on(OTHER)]
    assert greet(desk, direct=False).doors is None


def test_a_client_may_ask() -> None:
    desk = Desk()
    register(desk)
    greet(desk)
    desk.ask(GetPlacement(), b"")
    (answer,) = desk.answers()
    assert answer.content == Placement([view()])


def test_a_worker_without_a_door_is_reached_through_the_router() -> None:
    desk = Desk()
    register(desk, door=b"")
    assert greet(desk).doors == []


@pytest.mark.parametrize("goes", ["leaves", "unreachable", "silent"])
def test_a_worker_that_goes_is_named_no_more(goes: str) -> None:
    desk = Desk()
    register(desk)
    greet(desk)
    pushed(desk)
    if goes == "leaves":
        desk.leave()
    elif goes == "unreachable":
        desk.unreachable("worker-0")
    else:
        for _ in range(SILENCE_MS_MAX // 500 + 1):
            desk.now_ms += 500
            desk.router.tick(desk.now_ms)
    assert [placement.doors for _, placement in pushed(desk)] == [[]]


def test_a_lost_worker_that_comes_back_is_named_again() -> None:
    desk = Desk()
    register(desk)
    greet(desk)
    desk.unreachable("worker-0")
    pushed(desk)
    desk.say("worker-0", Pulse(1, 1))
    assert [placement.doors for _, placement in pushed(desk)] == [[view()]]


def test_a_new_epoch_and_a_new_door_are_changes() -> None:
    desk = Desk()
    register(desk)
    greet(desk)
    pushed(desk)
    register(desk, epoch=2)
    assert [placement.doors for _, placement in pushed(desk)] == [[view(epoch=2)]]
    register(desk, epoch=3, door=b"\1" * 16)
    assert [placement.doors for _, placement in pushed(desk)] == [[view(epoch=3, door=b"\1" * 16)]]


def test_a_change_that_is_undone_before_the_next_tick_is_none() -> None:
    desk = Desk()
    register(desk)
    greet(desk)
    pushed(desk)
    desk.unreachable("worker-0")
    desk.say("worker-0", Pulse(1, 1))
    assert pushed(desk) == []


def test_many_clients_hear_step_by_step_and_of_the_last_change_all(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(placements, "PUSHES_MAX", 3)
    desk = Desk()
    connections = [b"\0c%d" % number for number in range(8)]
    for connection in connections:
        greet(desk, connection)
    register(desk)
    assert len(pushed(desk)) == 3
    register(desk, epoch=2)
    heard = [pushed(desk) for _ in range(4)]
    assert [len(each) for each in heard] == [3, 3, 2, 0]
    assert {client for each in heard for client, _ in each} == {desk.client_on(connection) for connection in connections}
    assert all(placement.doors == [view(epoch=2)] for each in heard for _, placement in each)


def test_a_client_that_is_gone_by_then_gets_no_connection() -> None:
    desk = Desk()
    greet(desk)
    client = desk.client_on(CLIENT)
    register(desk)
    session = desk.router._sessions.by_client[client]
    frames = pushed(desk)
    assert [each for each, _ in frames] == [client]
    desk.router.ended(session.connection)
    assert desk.router.connection_of(client, 100, desk.now_ms) is None
    register(desk, epoch=2)
    assert pushed(desk) == []


def test_what_passes_the_doors_is_reported() -> None:
    desk = Desk()
    register(desk)
    desk.say("worker-0", Pulse(1, 2, 3, 4))
    worker = desk.router._table.workers[b"worker-0"]
    assert (worker.direct_clients, worker.direct_frames) == (3, 4)


def test_a_new_router_says_nothing_until_it_knows_all_workers() -> None:
    desk = Desk(2, started=False)
    assert greet(desk).doors is None
    register(desk)
    assert pushed(desk) == []
    assert greet(desk).doors is None, "the client keeps what it knows of the other worker"
    register(desk, "worker-1", (1,), door=b"\1" * 16)
    assert [len(placement.doors or []) for _, placement in pushed(desk)] == [2]


def test_a_new_router_does_not_wait_for_a_worker_that_stays_away() -> None:
    desk = Desk(2, started=False)
    greet(desk)
    register(desk)
    assert pushed(desk) == []
    desk.now_ms += placements.UNKNOWN_MS_MAX
    desk.pulse()
    assert [placement.doors for _, placement in pushed(desk)] == [[view()]]
