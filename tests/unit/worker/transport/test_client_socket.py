"""A worker's door over real sockets: pieces, garbage, clients that do not read, many connections, fairness, retirement."""

import socket
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import pytest

from fila_admission.limits import TRUST_MS
from fila_process.files import SOCKET_PATH_BYTES_MAX
from fila_proto_zmq.commands import (
    WORKER_BANNER,
    Command,
    Delivered,
    Enqueued,
    GetQueueStats,
    Heartbeat,
    Hello,
    Reply,
    Subscribe,
    Welcome,
    WorkerBanner,
)
from fila_proto_zmq.errors import FilaError
from fila_proto_zmq.events import DoorNotOpened
from fila_proto_zmq.frames import pack_header
from fila_proto_zmq.limits import ENVELOPE_OVERHEAD_BYTES, FRAME_BYTES_MAX
from fila_proto_zmq.stream import FrameReader, pack_lengths
from fila_worker.transport.client_socket import FRAMES_MAX, SLICE_FRAMES, ClientSocket, open_client_socket
from fila_worker.transport.direct_clients import ClientSocketLimits
from tests.support.cluster.cluster import eventually
from tests.support.descriptors import all_closed_again
from tests.unit.worker.transport.socket_peers import DOOR, QUEUE, Got, SocketPeers, enqueue, read

PAYLOAD_BYTES_MAX = 1 << 20
PATIENCE_S = 20.0


class Visitor:
    """A client's socket at the door."""

    def __init__(self, building: "Building", *, greets: bool = True, number: int = 0) -> None:
        self.building = building
        self.socket = building.connect()
        self.reader = FrameReader(1 << 32)
        if greets:
            self.say(Hello([1], "test", number.to_bytes(32, "big")))
            assert [type(got.content) for got in self.hear(2)] == [WorkerBanner, Welcome]

    def say(self, command: Command, queue: str = "", **header: int) -> None:
        self.write(packed(self.building.peers.frame(command, queue, **header)))

    def write(self, data: bytes) -> None:
        """Send all of it, while the door reads."""
        self.socket.setblocking(False)
        rest = memoryview(data)
        while rest:
            try:
                rest = rest[self.socket.send(rest) :]
            except BlockingIOError:
                self.building.turn()

    def hear(self, count: int) -> list[Got]:
        """Read so many frames, while the door works."""
        frames: list[Got] = []
        give_up_at = time.monotonic() + PATIENCE_S
        while len(frames) < count:
            parts = self.reader.take()
            if parts is not None:
                frames.append(read(list(parts)))
                continue
            assert time.monotonic() < give_up_at, frames
            self.building.turn()
            self.socket.settimeout(0.01)
            try:
                data = self.socket.recv(1 << 16)
            except TimeoutError:
                continue
            assert data, f"the door has closed the connection after {frames}"
            self.reader.feed(data)
        return frames

    def ask(self, command: Command, queue: str = QUEUE) -> Reply | FilaError | WorkerBanner:
        self.say(command, queue)
        (got,) = self.hear(1)
        return got.content

    def is_closed(self) -> bool:
        """Whether the door has closed the connection; what came before is dropped."""
        self.building.turn()
        self.socket.settimeout(0.01)
        try:
            return not self.socket.recv(1 << 20)
        except ConnectionError:
            return True
        except TimeoutError:
            return False


class Building:
    """A door of one kind, its host, and a turn as the worker's loop does it."""

    def __init__(self, kind: str, directory: Path, limits: ClientSocketLimits | None = None) -> None:
        self.peers = SocketPeers(limits)
        self.peers.create()
        self.away_ms = 0
        self.door = ClientSocket(self.peers.clients, self.peers.host, PAYLOAD_BYTES_MAX, self.clock)
        self.door.listen(f"ipc://{directory}/door.ipc" if kind == "ipc" else "tcp://127.0.0.1:0")
        self.sockets: list[socket.socket] = []

    def clock(self) -> int:
        """The worker's clock, which goes on by ``away_ms`` when it is next read."""
        self.peers.now_ms += self.away_ms
        self.away_ms = 0
        return self.peers.now_ms

    def connect(self) -> socket.socket:
        (endpoint,) = self.door.endpoints
        if endpoint.startswith("ipc"):
            sock, address = socket.socket(socket.AF_UNIX), endpoint.removeprefix("ipc://")
            self.sockets.append(sock)
            sock.connect(address)
            return sock
        host, _, port = endpoint.removeprefix("tcp://").rpartition(":")
        sock = socket.create_connection((host, int(port)))
        self.sockets.append(sock)
        return sock

    def turn(self) -> None:
        self.door.wait(0)
        self.door.receive(self.peers.now_ms)
        self.door.check()
        for effect in self.peers.host.turn(self.peers.now_ms):
            self.door.send(effect)
        self.door.flush()
        self.door.check()

    def close(self) -> None:
        self.door.close()
        for sock in self.sockets:
            sock.close()


Build = Callable[..., Building]


@pytest.fixture(params=["ipc", "tcp"])
def build(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Build]:
    buildings: list[Building] = []

    def make(**limits: int) -> Building:
        buildings.append(Building(request.param, tmp_path, ClientSocketLimits(**limits)))
        return buildings[-1]

    yield make
    for building in buildings:
        building.close()


def packed(parts: Sequence[bytes]) -> bytes:
    header, key, body = parts
    return pack_lengths(key, body) + header + key + body


def test_a_client_greets_and_asks(build: Build) -> None:
    visitor = Visitor(build())
    assert isinstance(visitor.ask(enqueue(3)), Enqueued)
    assert not isinstance(visitor.ask(GetQueueStats()), FilaError)


def test_the_plate_comes_before_the_client_says_anything(build: Build) -> None:
    visitor = Visitor(build(), greets=False)
    assert visitor.hear(1) == [Got(WORKER_BANNER, 0, WorkerBanner(DOOR))]


def test_frames_that_come_byte_by_byte_are_taken_in(build: Build) -> None:
    building = build()
    visitor = Visitor(building)
    for byte in packed(building.peers.frame(enqueue(), QUEUE)):
        visitor.write(bytes([byte]))
        building.turn()
    assert [type(got.content) for got in visitor.hear(1)] == [Enqueued]
    assert building.door._kept_bytes == 0


def test_a_large_frame_and_the_small_one_behind_it_are_taken_in(build: Build) -> None:
    building = build()
    visitor = Visitor(building)
    large = enqueue()
    large.envelopes[0] += bytes(3 * 256 * 1024)
    visitor.write(packed(building.peers.frame(large, QUEUE)) + packed(building.peers.frame(Heartbeat(), QUEUE)))
    assert [got.opcode for got in visitor.hear(2)] == [large.opcode, Heartbeat.opcode]


def test_the_largest_body_that_clients_send_is_read_and_a_larger_one_costs_the_connection(build: Build) -> None:
    building = build()
    body_bytes_max = PAYLOAD_BYTES_MAX + FRAME_BYTES_MAX + ENVELOPE_OVERHEAD_BYTES
    for name in (QUEUE, "q" * 200 + ".dlq"):
        visitor = Visitor(building)
        visitor.write(packed([pack_header(20, 7), name.encode(), bytes(body_bytes_max)]))
        assert [got.request for got in visitor.hear(1)] == [7]
        visitor.write(pack_lengths(b"", bytes(body_bytes_max + 300)))
        eventually(visitor.is_closed, "its end")


@pytest.mark.parametrize(
    "data",
    [
        b"GET / HTTP/1.1\r\nHost: x\r\n\r\n",
        b"\x16\x03\x01\x02\x00\x01",
        b"\xff" * 100,
        bytes(100),
        b"\xff\x00\x00\x00\x00\x00\x00\x00\x01\x7f",
        pack_lengths(b"", bytes(5000)),
    ],
    ids=["HTTP", "TLS", "huge", "zeros", "ZMTP", "large before the greeting"],
)
def test_what_is_no_frame_ends_the_connection_and_nothing_else(build: Build, data: bytes) -> None:
    building = build()
    other, hostile = Visitor(building, number=1), Visitor(building, greets=False)
    hostile.write(data)
    eventually(hostile.is_closed, "its end")
    assert isinstance(other.ask(enqueue()), Enqueued)


def test_frames_behind_a_bad_greeting_harm_nothing(build: Build) -> None:
    building = build()
    hostile = Visitor(building, greets=False)
    hostile.write(packed([pack_header(Hello.opcode, 1), b"", b"\x90"]) + packed(building.peers.frame(enqueue(), QUEUE)) * 3)
    eventually(hostile.is_closed, "its end")
    assert isinstance(Visitor(building, number=1).ask(enqueue()), Enqueued)


def test_a_huge_length_after_the_greeting_ends_the_connection_before_anything_is_kept(build: Build) -> None:
    building = build()
    hostile = Visitor(building)
    hostile.write(b"\xff\xff\xff\xff\x00\x00")
    eventually(hostile.is_closed, "its end")
    assert building.door.empty


def test_unfinished_frames_are_bounded_together(build: Build) -> None:
    building = build(unfinished_bytes_max=300_000)
    visitors = [Visitor(building, number=number) for number in range(4)]
    for number, visitor in enumerate(visitors):
        visitor.write(pack_lengths(b"", bytes(1 << 20)) + bytes(50_000 + 20_000 * number))
        for _ in range(10):
            building.turn()
    eventually(visitors[-1].is_closed, "the end of the one with most")
    assert not any(visitor.is_closed() for visitor in visitors[:-1])
    assert building.door._kept_bytes <= 300_000


def subscribed(building: Building, number: int) -> Visitor:
    visitor = Visitor(building, number=number)
    visitor.say(Subscribe(1, 100_000), QUEUE)
    building.turn()
    return visitor


def fill(building: Building, visitor: Visitor, until: Callable[[], bool]) -> None:
    """Enqueue large messages until something has happened."""
    give_up_at = time.monotonic() + PATIENCE_S
    while not until():
        assert time.monotonic() < give_up_at
        large = enqueue()
        large.envelopes[0] += bytes(100_000)
        visitor.ask(large)
        building.turn()


def test_a_client_that_never_reads_is_closed_at_its_bound_and_no_other(build: Build) -> None:
    building = build(client_unread_max=2_000_000, unread_paused=1_000_000)
    silent, maker = subscribed(building, 1), Visitor(building, number=2)
    fill(building, maker, lambda: building.peers.clients.clients == 1)
    assert building.door._unsent_bytes == 0
    assert isinstance(maker.ask(enqueue()), Enqueued)
    silent.socket.close()


def test_all_clients_that_do_not_read_are_bounded_together(build: Build) -> None:
    building = build(unread_max=1_500_000)
    for number in range(1, 4):
        subscribed(building, number)
    maker = Visitor(building, number=9)
    fill(building, maker, lambda: building.peers.clients.clients < 4)
    assert building.door._unsent_bytes <= 1_500_000


def test_nothing_more_is_read_from_a_client_that_does_not_read_until_it_has_read(build: Build) -> None:
    building = build(unread_paused=100_000)
    silent, maker = subscribed(building, 1), Visitor(building, number=2)
    fill(building, maker, lambda: building.door._unsent_bytes > 100_000)
    frames = building.peers.clients.frames
    silent.say(Heartbeat(), QUEUE, request=77)
    for _ in range(20):
        building.turn()
    assert building.peers.clients.frames == frames
    give_up_at = time.monotonic() + PATIENCE_S
    while not any(got.request == 77 for got in silent.hear(1)):
        assert time.monotonic() < give_up_at
    assert building.door._unsent_bytes == 0


def test_a_lost_reader_s_pushes_are_dropped(build: Build) -> None:
    building = build()
    silent, maker = subscribed(building, 1), Visitor(building, number=2)
    silent.socket.close()
    fill(building, maker, lambda: building.peers.clients.clients == 1)
    assert building.door._unsent_bytes == 0


def test_connections_take_turns_within_a_turn(build: Build) -> None:
    """One that sends very much leaves room for one that sends little."""
    building = build()
    greedy, modest = Visitor(building, number=1), Visitor(building, number=2)
    greedy.socket.setblocking(False)
    beat = packed(building.peers.frame(Heartbeat(), QUEUE))
    greedy.socket.send(beat * (2 * FRAMES_MAX))
    modest.say(Heartbeat(), QUEUE)
    before = building.peers.clients.frames
    eventually(lambda: len(building.door._epoll.poll(0)) == 2, "both have something")
    building.door.wait(0)
    building.door.receive(building.peers.now_ms)
    assert building.peers.clients.frames - before <= FRAMES_MAX + SLICE_FRAMES
    assert building.door.has_more
    for _ in range(2):
        building.turn()
    assert [got.opcode for got in modest.hear(1)] == [Heartbeat.opcode]


def test_many_connections_come_and_go(build: Build) -> None:
    building = build(connections_max=100, spared_ms=0)
    visitors = [Visitor(building, number=number) for number in range(150)]
    assert building.peers.clients.clients == 100
    for visitor in visitors:
        visitor.socket.close()
    eventually(lambda: building.turn() is None and building.door.empty, "all are gone")
    assert not building.peers.clients.busy


def test_a_connection_beyond_the_limit_is_closed_if_none_is_idle(build: Build) -> None:
    building = build(connections_max=1)
    first, second = Visitor(building), Visitor(building, greets=False)
    eventually(second.is_closed, "its end")
    assert isinstance(first.ask(enqueue()), Enqueued)


def test_a_door_that_is_retired_takes_no_connection_and_answers_the_others(build: Build) -> None:
    building = build()
    visitor = Visitor(building)
    building.door.retire(building.peers.now_ms)
    assert [got.content for got in visitor.hear(1)] == [WorkerBanner(b"")]
    with pytest.raises(ConnectionRefusedError):
        building.connect()
    assert isinstance(visitor.ask(enqueue()), Enqueued)
    visitor.socket.close()
    eventually(lambda: building.turn() is None and building.door.empty, "it is gone")


def test_a_door_that_closes_sends_what_waits(build: Build) -> None:
    building = build()
    visitor = Visitor(building)
    building.peers.clients.retire(building.peers.now_ms)
    building.door._dirty.update(dict.fromkeys(building.door._wires.values()))
    building.door.close()
    visitor.socket.settimeout(5)
    data = visitor.socket.recv(1000)
    assert data.endswith(packed([pack_header(WORKER_BANNER), b"", b"\x91\xc4\x00"]))
    assert visitor.socket.recv(1) == b""
    assert isinstance(read([pack_header(WORKER_BANNER), b"", b"\x91\xc4\x00"]).content, WorkerBanner)


# --- endpoints ----------------------------------------------------------------------------------------------------------


def opened(*endpoints: str, address: str = "") -> tuple[ClientSocket, list[DoorNotOpened]]:
    peers = SocketPeers()
    door = open_client_socket(list(endpoints), peers.clients, peers.host, PAYLOAD_BYTES_MAX, lambda: peers.now_ms, address)
    door.close()
    return door, [note for note in peers.host.notes if isinstance(note, DoorNotOpened)]


def test_a_socket_of_an_earlier_life_is_replaced(tmp_path: Path) -> None:
    for _ in range(2):
        door, notes = opened(f"ipc://{tmp_path}/door.ipc")
        assert (door.endpoints, notes) == ([f"ipc://{tmp_path}/door.ipc"], [])


def test_a_path_is_named_absolutely(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert opened("ipc://door.ipc")[0].endpoints == [f"ipc://{tmp_path}/door.ipc"]


def test_a_path_that_no_client_could_name_is_not_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    deep = tmp_path / ("d" * SOCKET_PATH_BYTES_MAX)
    deep.mkdir()
    monkeypatch.chdir(deep)
    door, notes = opened("ipc://door.ipc")
    assert (door.endpoints, notes) == ([], [])


def test_all_addresses_of_a_host_are_named_by_the_router_s() -> None:
    door, notes = opened("tcp://0.0.0.0:0")
    assert notes == []
    (shown,) = door.endpoints
    assert shown.startswith("tcp://*:")
    assert int(shown.rpartition(":")[2]) > 0


@pytest.mark.parametrize("endpoint", ["tcp://0.0.0.0:0", "tcp://127.0.0.1:0"])
def test_an_address_is_named_instead_of_that_where_it_listens(endpoint: str, tmp_path: Path) -> None:
    door, notes = opened(endpoint, f"ipc://{tmp_path}/door.ipc", address="rome.example.org")
    assert notes == []
    shown, socket_file = door.endpoints
    assert shown.startswith("tcp://rome.example.org:")
    assert socket_file == f"ipc://{tmp_path}/door.ipc"


def test_an_endpoint_that_cannot_be_opened_is_noted_and_the_others_serve(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        bad = [
            f"tcp://127.0.0.1:{taken.getsockname()[1]}",
            f"ipc://{tmp_path}/none/door.ipc",
            "tcp://127.0.0.1:x",
            f"ipc://{tmp_path}/{'x' * 200}",
        ]
        door, notes = opened(bad[0], f"ipc://{tmp_path}/door.ipc", *bad[1:])
    assert [note.endpoints for note in notes] == [[each] for each in bad]
    assert door.endpoints == [f"ipc://{tmp_path}/door.ipc"]


def test_a_door_leaves_no_descriptor_behind(build: Build) -> None:
    with all_closed_again():
        building = build()
        visitors = [Visitor(building, number=number) for number in range(3)]
        building.close()
    assert all(visitor.socket.fileno() == -1 for visitor in visitors)


def test_deliveries_come_whole_to_a_slow_reader(build: Build) -> None:
    building = build()
    slow, maker = subscribed(building, 1), Visitor(building, number=2)
    fill(building, maker, lambda: building.door._unsent_bytes > 200_000)
    seen = 0
    while building.door._unsent_bytes:
        seen += sum(isinstance(got.content, Delivered) for got in slow.hear(1))
    assert seen > 0


def test_what_was_read_before_a_pause_waits_until_the_router_is_heard_of(build: Build) -> None:
    building = build()
    visitor = Visitor(building)
    visitor.write(packed(building.peers.frame(enqueue(), QUEUE)))
    building.away_ms = TRUST_MS
    building.turn()
    assert visitor.hear(0) == []
    assert building.door.has_more
    building.peers.clients.trust(building.peers.now_ms)
    assert [type(got.content) for got in visitor.hear(1)] == [Enqueued]
