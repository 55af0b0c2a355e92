"""The connections of a client beside the router's: what happens to them between two system calls."""

import socket
from collections.abc import Iterator
from contextlib import contextmanager
from random import Random
from typing import Any

import pytest

from fila_cluster.client.io.links import ClientLinks
from fila_cluster.client.protocol.session import ClientSession
from fila_cluster.client.requests.endpoints import EndpointRounds, parse_endpoints
from fila_cluster.client.requests.routes import WayState
from fila_proto_zmq.codec import encode_body, encode_reply
from fila_proto_zmq.commands import WORKER_BANNER, DoorView, Enqueue, Enqueued, GetQueueStats, Hello, Welcome, WorkerBanner
from fila_proto_zmq.frames import pack_header
from fila_proto_zmq.stream import FrameReader, FrameWriter

DOOR = bytes(range(16))


class Interrupted(BaseException):
    """Stands in for an interrupt."""


class Watched:
    """What the shell would look at."""

    def watch(self, descriptor: int, *, writable: bool) -> None:
        """Nothing sleeps here."""

    def unwatch(self, descriptor: int) -> None:
        """Nothing sleeps here."""


class Owner:
    closed = False


class Worker:
    """A worker's door with one client, on a real socket."""

    def __init__(self) -> None:
        self.listening = socket.create_server(("127.0.0.1", 0))
        self.reader = FrameReader(1 << 20)
        self.connection: socket.socket | None = None

    @property
    def view(self) -> DoorView:
        return DoorView("worker-0", DOOR, [f"tcp://127.0.0.1:{self.listening.getsockname()[1]}"], [(0, 3)])

    def say(self, frame: list[bytes]) -> None:
        assert self.connection is not None
        FrameWriter().send(self.connection, [frame])

    def read(self) -> tuple[bytes, bytes, bytes]:
        assert self.connection is not None
        while (frame := self.reader.take()) is None:
            data = self.connection.recv(65536)
            assert data, "the client has closed the connection"
            self.reader.feed(data)
        return frame

    def is_closed(self) -> bool:
        assert self.connection is not None
        self.connection.settimeout(10)
        while data := self.connection.recv(65536):
            self.reader.feed(data)
        return True


class Side:
    """A client's session with its links, greeted by a router that is not there."""

    def __init__(self, worker: Worker, endpoints: str = "tcp://127.0.0.1:1") -> None:
        self.session = ClientSession(
            endpoints,
            Owner(),
            lambda *_: None,
            timeout_s=5,
            client_version="test",
            random=Random(1),
            direct=True,  # type: ignore[arg-type, return-value]
        )
        self.links = ClientLinks(EndpointRounds(parse_endpoints(endpoints), Random(1)), (), Watched())
        self.now = 0.0
        self.links.connect(self.session, self.now)
        header = self.session.outgoing.popleft()[0]
        welcome = Welcome(1, "0", 1, 15_000, 1 << 20, bytes(32), [worker.view])
        self.session.arrived(encode_reply(Hello.opcode, int.from_bytes(header[10:], "big"), welcome), self.now)
        self.worker = worker
        self.call = self.session.call("q", GetQueueStats(), self.now)
        self.exchange()
        worker.connection, _ = worker.listening.accept()
        worker.say([pack_header(WORKER_BANNER), b"", encode_body(WorkerBanner(DOOR))])
        self.until(lambda: bool(self.way.greeting))
        hello, _, _ = worker.read()
        worker.say(encode_reply(Hello.opcode, int.from_bytes(hello[10:], "big"), Welcome(1, "0", 1, 15_000)))
        self.until(lambda: self.way.state == WayState.OPEN)

    @property
    def way(self) -> Any:
        return self.session.routes.doors[DOOR]

    def exchange(self) -> None:
        self.links.exchange(self.session, self.now, None)

    def until(self, condition: Any) -> None:
        for _ in range(10_000):
            if condition():
                return
            self.exchange()
        raise AssertionError("it never happened")


@pytest.fixture
def side() -> Iterator[Side]:
    worker = Worker()
    side = Side(worker)
    yield side
    side.links.close()
    worker.listening.close()
    if worker.connection is not None:
        worker.connection.close()


@pytest.fixture
def side_of_two() -> Iterator[Side]:
    """Of two routers, none of which is there any more."""
    worker = Worker()
    side = Side(worker, "tcp://127.0.0.1:1,tcp://127.0.0.1:2")
    yield side
    side.links.close()
    worker.listening.close()
    if worker.connection is not None:
        worker.connection.close()


@contextmanager
def interrupting(side: Side, monkeypatch: pytest.MonkeyPatch, name: str) -> Iterator[None]:
    """An interrupt right after a system call on the direct connection."""

    def call(self: Any, *arguments: Any) -> Any:
        getattr(super(Interrupting, self), name)(*arguments)
        raise Interrupted

    Interrupting = type("Interrupting", (socket.socket,), {name: call})  # noqa: N806
    mine = side.links._wires[side.way]
    assert mine.socket is not None
    mine.socket = Interrupting(fileno=mine.socket.detach())
    mine.socket.setblocking(False)
    with pytest.raises(Interrupted):
        yield


def test_a_call_goes_straight_to_the_worker_in_its_shards_epoch(side: Side) -> None:
    header, key, _ = side.worker.read()
    assert (header[3], key, int.from_bytes(header[6:10], "big")) == (GetQueueStats.opcode, b"q", 3)


@pytest.mark.parametrize("name", ["send", "recv"])
def test_after_an_interrupt_a_connection_is_not_trusted_any_more(
    side: Side, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    side.worker.read()
    with interrupting(side, monkeypatch, name):
        if name == "send":
            enqueue = side.session.call("q", Enqueue([b"1"]), side.now)
        else:
            enqueue = side.session.call("q", Enqueue([b"1"]), side.now)
            side.worker.say([b"x" * 18, b"", b""])
        side.now += 1.0
        side.exchange()
    side.exchange()
    assert side.worker.is_closed()
    assert enqueue.done == (name == "send"), "what may have left is reported, what has not left goes another way"


def test_a_direct_connection_stays_while_the_client_goes_from_router_to_router(side_of_two: Side) -> None:
    side = side_of_two
    side.worker.read()
    tried = set()

    def both_tried_again() -> bool:
        side.now += 0.01
        tried.add((side.links._rounds.current, side.links._rounds.attempt_s))
        return len({endpoint for endpoint, attempt_s in tried if attempt_s > 1}) == 2

    side.until(both_tried_again)
    assert side.way.state == WayState.OPEN
    call = side.session.call("q", Enqueue([b"1"]), side.now)
    side.exchange()
    header, key, _ = side.worker.read()
    assert key == b"q"
    side.worker.say(encode_reply(Enqueue.opcode, int.from_bytes(header[10:], "big"), Enqueued(1, 2, 1)))
    side.until(lambda: call.done)
    assert call.error is None
