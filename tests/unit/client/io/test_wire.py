"""The plain socket of a direct way: endpoints in order, doors that fail, banners, forks, and what is left behind."""

import os
import select
import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest

from fila_cluster import Client
from fila_cluster.client.io.wire import Wire
from fila_cluster.client.requests.routes import DirectWay, WayState
from fila_proto_zmq import codec
from fila_proto_zmq.commands import WORKER_BANNER, Done, DoorView, Hello, Welcome, WorkerBanner
from fila_proto_zmq.errors import FilaError, InvalidFrameError
from fila_proto_zmq.frames import pack_header
from fila_proto_zmq.stream import FrameReader, pack_lengths
from tests.support.cluster.cluster import eventually
from tests.unit.client.peer import WELCOME, answering, broker, read

DOOR = bytes(16)


def way_to(*endpoints: str) -> DirectWay:
    return DirectWay(DoorView("worker-0", DOOR, list(endpoints), [(shard, 1) for shard in range(4)]))


@contextmanager
def listening(path: Path | None = None) -> Iterator[tuple[str, socket.socket]]:
    if path is None:
        with socket.create_server(("127.0.0.1", 0)) as server:
            yield f"tcp://127.0.0.1:{server.getsockname()[1]}", server
    else:
        with socket.socket(socket.AF_UNIX) as server:
            server.bind(str(path))
            server.listen()
            yield f"ipc://{path}", server


def refused() -> str:
    with socket.create_server(("127.0.0.1", 0)) as server:
        return f"tcp://127.0.0.1:{server.getsockname()[1]}"


def settled(wire: Wire) -> bool:
    """Connect as the shell does: ask when the descriptor is ready."""
    if not wire.connect():
        return False
    while wire.connecting:
        with socket.socket(fileno=os.dup(wire.descriptor)) as same:
            eventually(lambda same=same: is_ready(same), "it is connected or refused")
        if not wire.connected():
            return False
    return True


def is_ready(sock: socket.socket) -> bool:
    return bool(select.select([], [sock], [], 0.01)[1])


# --- endpoints ----------------------------------------------------------------------------------------------------------


def test_the_first_endpoint_that_answers_is_taken(tmp_path: Path) -> None:
    with listening(tmp_path / "door") as (ipc, near), listening() as (tcp, far):
        wire = Wire(way_to(ipc, tcp), "127.0.0.1")
        assert settled(wire)
        near.settimeout(5)
        near.accept()[0].close()
        far.setblocking(False)
        with pytest.raises(BlockingIOError):
            far.accept()
        wire.close()


@pytest.mark.parametrize("bad", ["no such path", "stale path", "refused", "no host", "no port", "nonsense"])
def test_an_endpoint_that_fails_is_passed_over(tmp_path: Path, bad: str) -> None:
    if bad == "stale path":
        with listening(tmp_path / "stale"):
            pass
    first = {
        "no such path": "ipc:///no/such/door",
        "stale path": f"ipc://{tmp_path}/stale",
        "refused": refused(),
        "no host": "tcp://:x:1",
        "no port": "tcp://127.0.0.1:port",
        "nonsense": "nonsense",
    }[bad]
    with listening() as (tcp, server):
        wire = Wire(way_to(first, tcp), "127.0.0.1")
        assert settled(wire)
        server.settimeout(5)
        server.accept()[0].close()
        wire.close()
    assert not settled(Wire(way_to(first), "127.0.0.1"))


def test_without_an_endpoint_there_is_no_connection() -> None:
    wire = Wire(way_to(), "127.0.0.1")
    assert not wire.connect()
    assert wire.descriptor == -1


def test_any_address_is_that_of_the_router() -> None:
    with listening() as (tcp, server):
        wire = Wire(way_to(tcp.replace("127.0.0.1", "*")), "127.0.0.1")
        assert settled(wire)
        server.settimeout(5)
        server.accept()[0].close()
        wire.close()


def test_another_endpoint_comes_first_after_a_failure() -> None:
    way = way_to("tcp://a:1", "tcp://b:2", "tcp://c:3")
    firsts = []
    for failures in range(4):
        way.failures = failures
        firsts.append(Wire(way, "")._endpoints[0])
    assert firsts == ["tcp://a:1", "tcp://b:2", "tcp://c:3", "tcp://a:1"]


def test_a_connection_that_is_not_there_yet_is_not_taken_for_one() -> None:
    """The descriptor may be asked before it is ready."""
    wire = Wire(way_to(), "127.0.0.1")
    wire.socket = socket.socket()
    wire.connecting = True
    assert wire.connected()
    assert wire.connecting
    wire.close()


# --- a whole client -----------------------------------------------------------------------------------------------------


class Worker:
    """A door in a thread: it shows a banner, greets, and answers everything with Done. ``died``: it closes after so many requests."""

    def __init__(self, door: bytes = DOOR, requests_max: int = 1 << 30) -> None:
        self.door = door
        self.requests_max = requests_max
        self.requests = self.connections = 0
        self.server = socket.create_server(("127.0.0.1", 0))
        self.endpoint = f"tcp://127.0.0.1:{self.server.getsockname()[1]}"
        self.thread = threading.Thread(target=self._run)
        self.thread.start()

    def _run(self) -> None:
        while True:
            sock, _ = self.server.accept()
            self.connections += 1
            with sock, suppress(InvalidFrameError):  # a stranger may look for who had this port before
                if not self._serve(sock):
                    return

    def _serve(self, sock: socket.socket) -> bool:
        send = lambda parts: sock.sendall(pack_lengths(parts[1], parts[2]) + b"".join(parts))  # noqa: E731
        send([pack_header(WORKER_BANNER), b"", codec.encode_body(WorkerBanner(self.door))])
        reader = FrameReader(1 << 30)
        while data := sock.recv(1 << 16):
            if data == b"end":
                return False
            reader.feed(data)
            while (parts := reader.take()) is not None:
                sent = read(list(parts))
                if isinstance(sent.command, Hello):
                    send(codec.encode_reply(Hello.opcode, sent.header.request, Welcome(1, "0.0", 4, 15_000)))
                    continue
                self.requests += 1
                if self.requests >= self.requests_max:
                    return True
                send(codec.encode_reply(sent.header.opcode, sent.header.request, Done(), sent.key))
        return True

    def close(self) -> None:
        address = self.server.getsockname()
        with socket.create_connection(address) as last:
            last.sendall(b"end")
            self.thread.join(10)
        self.server.close()
        assert not self.thread.is_alive()


@pytest.fixture
def worker() -> Iterator[Worker]:
    worker = Worker()
    yield worker
    worker.close()


@contextmanager
def client_of(worker: Worker) -> Iterator[tuple[Client, list[object]]]:
    """A client of a broker that names this worker for all shards, and the requests that came through the router."""
    shards = [(shard, 1) for shard in range(4)]
    welcome = Welcome(
        1, "0.0", 4, 15_000, WELCOME.max_payload_bytes, bytes(32), [DoorView("w", DOOR, [worker.endpoint], shards)]
    )
    with broker(answering(Hello=welcome)) as peer, Client(peer.endpoint, timeout=5, direct=True) as client:
        yield client, peer.seen


def is_open(client: Client) -> bool:
    return [way.state for way in client._session.routes.doors.values()] == [WayState.OPEN]


def routed(seen: list[object]) -> list[str]:
    return [type(sent.command).__name__ for sent in seen]  # type: ignore[attr-defined]


@pytest.mark.usefixtures("nothing_is_left_behind")
def test_calls_go_straight_and_nothing_is_left_behind() -> None:
    worker = Worker()
    try:
        with client_of(worker) as (client, seen):
            for _ in range(3):
                client.pause("q")
            assert is_open(client)
            assert routed(seen) == ["Hello"]
        assert worker.requests >= 3
    finally:
        worker.close()


def test_a_door_with_another_plate_is_left_and_told_nothing() -> None:
    worker = Worker(b"another")
    try:
        with client_of(worker) as (client, seen):
            client.pause("q")
            assert not is_open(client)
            assert "Pause" in routed(seen)
        assert worker.requests == 0
    finally:
        worker.close()


def test_a_lost_connection_is_noticed_by_the_call_that_waits() -> None:
    worker = Worker(requests_max=2)
    try:
        with client_of(worker) as (client, seen):
            client.pause("q")
            with pytest.raises(FilaError, match="may or may not"):
                client.pause("q")
            client.pause("q")
            assert routed(seen).count("Pause") == 1
    finally:
        worker.close()


def test_a_child_of_a_fork_leaves_the_connection_to_its_parent(worker: Worker) -> None:
    with client_of(worker) as (client, _):
        client.pause("q")
        child = os.fork()
        if not child:
            try:
                client.pause("q")
            except FilaError:
                os._exit(0 if all(wire.socket is None for wire in client._io._links._wires.values()) else 2)
            os._exit(1)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
        client.pause("q")
        assert is_open(client)
        assert worker.connections == 1


def test_many_threads_share_a_direct_way(worker: Worker) -> None:
    with client_of(worker) as (client, seen):
        errors: list[Exception] = []

        def work() -> None:
            try:
                for _ in range(50):
                    client.pause("q")
            except Exception as error:
                errors.append(error)

        threads = [threading.Thread(target=work) for _ in range(8)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert errors == []
        assert worker.requests == 400
        assert worker.connections == 1
        assert routed(seen) == ["Hello"]
