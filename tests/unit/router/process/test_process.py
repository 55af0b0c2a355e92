"""The router as a process, with real sockets on both sides."""

import random
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import msgspec
import psutil
import pytest
import zmq

from fila_proto_zmq.codec import decode_body, encode_command, encode_delivery, encode_reply, from_fault
from fila_proto_zmq.commands import (
    BY_OPCODE,
    DELIVERY,
    MARK,
    Command,
    Delivered,
    Done,
    Enqueue,
    Fault,
    GetClusterStatus,
    Grant,
    Grants,
    Hello,
    Pulse,
    Register,
    Tokens,
    TokenWant,
    Welcome,
)
from fila_proto_zmq.errors import InvalidFrameError, ShardUnavailableError
from fila_proto_zmq.frames import ERROR, REPLY, pack_header, unpack_header
from fila_proto_zmq.ids import client_of
from fila_proto_zmq.limits import ENVELOPE_OVERHEAD_BYTES, FRAME_BYTES_MAX
from fila_router.settings import RouterSettings

PATIENCE_S = 60
PAYLOAD_BYTES_MAX = 1000
TOKEN = 1_000_000


def is_knock(parts: list[bytes]) -> bool:
    """Whether the router only looked if there is somebody."""
    return parts[:2] == [b"", pack_header(Pulse.opcode, 0, REPLY)]


class Peer:
    """A DEALER socket with a name: a client, or a worker."""

    def __init__(self, context: zmq.Context, endpoint: str, identity: bytes, rcvhwm: int = 1000) -> None:
        self.socket = context.socket(zmq.DEALER)
        self.socket.rcvhwm = rcvhwm
        if identity:
            self.socket.identity = identity
        self.socket.linger = 0
        self.socket.rcvtimeo = 1000 * PATIENCE_S
        self.socket.reconnect_ivl = 10
        self.socket.connect(endpoint)

    def send(self, *parts: bytes) -> None:
        self.socket.send_multipart(parts)

    def recv(self) -> list[bytes]:
        while is_knock(parts := self.socket.recv_multipart()):
            pass
        return parts

    def ask(self, command: Command, request: int = 1, key: str = "") -> Any:
        self.send(*encode_command(command, request, key))
        return content(self.recv())


class Broker:
    """A router process, and those who talk to it."""

    def __init__(self, directory: Path, context: zmq.Context) -> None:
        self.directory = directory
        self.context = context
        self.peers: list[Peer] = []
        self.process = launch(directory)

    def client(self, name: bytes = b"\1client") -> Peer:
        self.peers.append(Peer(self.context, f"ipc://{self.directory}/front.ipc", name))
        return self.peers[-1]

    def worker(self, epoch: int = 1, **known: Any) -> Peer:
        worker = Peer(self.context, f"ipc://{self.directory}/back.ipc", b"worker-0")
        self.peers.append(worker)
        worker.send(b"", *encode_command(Register("worker-0", 1, "v", [(0, epoch)], **known), 1))
        assert not unpack_header(worker.recv()[1]).flags & ERROR
        return worker

    def stop(self) -> int:
        self.process.terminate()
        self.process.communicate(timeout=PATIENCE_S)
        return self.process.returncode

    def close(self) -> None:
        for peer in self.peers:
            peer.socket.close()
        self.process.kill()
        self.process.communicate()


def launch(directory: Path, **changes: Any) -> subprocess.Popen[bytes]:
    settings = RouterSettings("ipc://front.ipc", "ipc://back.ipc", 1, 15_000, PAYLOAD_BYTES_MAX)
    process = subprocess.Popen(
        [sys.executable, "-P", "-m", "fila_router"], cwd=directory, stdin=subprocess.PIPE, stderr=subprocess.PIPE
    )
    process.stdin.write(msgspec.json.encode(msgspec.structs.replace(settings, **changes)) + b"\n")
    process.stdin.flush()
    return process


def content(parts: list[bytes]) -> Any:
    header, _, body = parts
    parsed = unpack_header(header)
    assert parsed.flags & REPLY
    if parsed.flags & ERROR:
        return from_fault(decode_body(Fault, body))
    return decode_body(BY_OPCODE[parsed.opcode].reply, body)


@pytest.fixture
def directory() -> Iterator[Path]:
    with TemporaryDirectory(prefix="fila") as name:  # short: a socket's path has room for 107 bytes
        yield Path(name)


@pytest.fixture
def broker(directory: Path) -> Iterator[Broker]:
    with zmq.Context() as context:
        broker = Broker(directory, context)
        yield broker
        broker.close()


def echo(worker: Peer) -> list[bytes]:
    """Answer one request; returns what the worker saw."""
    seen = worker.recv()
    client, header, key, _ = seen
    parsed = unpack_header(header)
    worker.send(client, pack_header(parsed.opcode, parsed.request, REPLY), key, b"\x90")
    return seen


def test_frames_travel_both_ways_unchanged(broker: Broker):
    worker, client = broker.worker(), broker.client()
    for size in (0, 10, 70_000, 1_000_000):
        body = random.Random(size).randbytes(size)
        client.send(pack_header(Enqueue.opcode, 7), b"orders", body)
        name, *parts = echo(worker)
        assert parts == [pack_header(Enqueue.opcode, 7), b"orders", body]
        assert name != b"\1client"
        assert client.recv() == [pack_header(Enqueue.opcode, 7, REPLY), b"orders", b"\x90"]


def test_bursts_from_many_clients_all_arrive(broker: Broker):
    worker = broker.worker()
    clients = [broker.client(b"\1client%d" % number) for number in range(20)]
    for request in range(1, 101):
        for client in clients:
            client.send(pack_header(Enqueue.opcode, request), b"orders", b"")
    for _ in range(20 * 100):
        echo(worker)
    for client in clients:
        assert [unpack_header(client.recv()[0]).request for _ in range(100)] == list(range(1, 101))


@pytest.mark.parametrize(
    "parts",
    [(b"",), (b"x",), (b"x", b"y"), (pack_header(20, 1), b"orders"), (pack_header(20, 1), b"q", b"b", b"more", b"parts")],
)
def test_a_frame_of_the_wrong_number_of_parts_is_an_invalid_frame(broker: Broker, parts: tuple[bytes, ...]):
    worker, client = broker.worker(), broker.client()
    client.send(*parts)
    assert isinstance(content(client.recv()), InvalidFrameError)
    client.send(pack_header(Enqueue.opcode, 2), b"orders", b"")
    assert echo(worker)[3] == b""


def test_random_multiparts_disturb_no_client(broker: Broker):
    chance = random.Random(3)
    worker, client, noise = broker.worker(), broker.client(), broker.client(b"\1noise")
    for _ in range(2000):
        noise.send(*(chance.randbytes(chance.choice([0, 1, 18, 40])) for _ in range(chance.randrange(1, 7))))
        worker.send(*(chance.randbytes(chance.choice([0, 1, 18, 40])) for _ in range(chance.randrange(1, 7))))
    client.send(pack_header(Enqueue.opcode, 2), b"orders", b"")
    echo(worker)
    assert client.recv()[0] == pack_header(Enqueue.opcode, 2, REPLY)


def test_an_absurd_frame_costs_only_its_sender_the_connection(broker: Broker):
    worker, client, giant = broker.worker(), broker.client(), broker.client(b"\1giant")
    assert isinstance(giant.ask(Hello([1])), Welcome)
    giant.send(
        pack_header(Enqueue.opcode, 2), b"orders", bytes(PAYLOAD_BYTES_MAX + FRAME_BYTES_MAX + ENVELOPE_OVERHEAD_BYTES + 1)
    )
    client.send(pack_header(Enqueue.opcode, 3), b"orders", b"")
    assert echo(worker)[1] == pack_header(Enqueue.opcode, 3)
    assert isinstance(giant.ask(Hello([1]), 4), Welcome)  # it may reconnect


def test_raw_bytes_on_the_port_disturb_no_client(broker: Broker):
    worker, client = broker.worker(), broker.client()
    for junk in (b"GET / HTTP/1.1\r\n\r\n", bytes(1000), b"\xff" * 1000):
        with socket.socket(socket.AF_UNIX) as raw:
            raw.connect(f"{broker.directory}/front.ipc")
            raw.sendall(junk)
    client.send(pack_header(Enqueue.opcode, 3), b"orders", b"")
    assert echo(worker)[1] == pack_header(Enqueue.opcode, 3)


def test_a_vanished_worker_is_noticed_and_answered_for(broker: Broker):
    worker, client = broker.worker(), broker.client()
    client.send(pack_header(Enqueue.opcode, 1), b"orders", b"")
    worker.recv()
    worker.socket.close()
    error = content(client.recv())
    assert isinstance(error, ShardUnavailableError)
    assert "refused" not in error.details  # the worker had it
    assert client.ask(GetClusterStatus()).workers[0].state == "down"
    client.send(pack_header(Enqueue.opcode, 2), b"orders", b"")
    assert content(client.recv()).details["refused"] is True
    worker = broker.worker(epoch=2)
    client.send(pack_header(Enqueue.opcode, 3), b"orders", b"")
    echo(worker)
    assert client.recv()[0] == pack_header(Enqueue.opcode, 3, REPLY)


def test_tokens_come_when_they_are_due_though_no_frame_arrives(broker: Broker):
    worker = broker.worker(config_version=1, config={"throttle:api:rate": "50"})
    totals = []
    for consumed in range(5):
        want = TokenWant(["api"], TOKEN, TOKEN, consumed * TOKEN, 0)
        worker.send(b"", *encode_command(Tokens(0, 1, [want]), 0))
        while not (grant := granted(worker)).granted > consumed * TOKEN:
            assert 0 < grant.wait_ms <= 20
        totals.append(grant.granted)
    assert totals == [TOKEN * count for count in range(1, 6)]


def granted(worker: Peer) -> Grant:
    client, header, key, body = worker.recv()
    assert (client, header, key) == (b"", pack_header(Grants.opcode), b"")
    (grant,) = decode_body(Grants, body).grants
    return grant


def test_a_worker_reads_what_it_lacks_before_the_first_frame_of_a_client(broker: Broker):
    client = broker.client()
    worker = Peer(broker.context, f"ipc://{broker.directory}/back.ipc", b"worker-0")
    broker.peers.append(worker)
    for request in range(1, 1001):
        client.send(pack_header(Enqueue.opcode, request), b"orders", b"")
        if request == 500:
            worker.send(b"", *encode_command(Register("worker-0", 1, "v", [(0, 1)]), 1))
    assert unpack_header(worker.recv()[1]).opcode == Register.opcode


def test_a_client_that_returns_with_its_session_gets_its_answers(broker: Broker):
    worker, first = broker.worker(), broker.client(b"")
    session = first.ask(Hello([1])).session
    first.send(pack_header(Enqueue.opcode, 1), b"orders", b"")
    client, *_ = worker.recv()
    assert client == client_of(session)
    second = broker.client(b"")
    assert second.ask(Hello([1], session=session), 2).session == session
    worker.send(client, *encode_reply(Enqueue.opcode, 1, Done(), "orders"))
    assert unpack_header(second.recv()[0]).request == 1


def test_a_client_is_the_same_one_after_the_router_was_restarted(broker: Broker):
    session = broker.client(b"").ask(Hello([1])).session
    broker.stop()
    broker.process = launch(broker.directory)
    worker, again = broker.worker(), broker.client(b"")
    again.ask(Hello([1], session=session))
    again.send(pack_header(Enqueue.opcode, 1), b"orders", b"")
    assert worker.recv()[0] == client_of(session)


def test_who_chooses_another_s_address_gets_nothing_of_it(broker: Broker):
    """Addresses are libzmq's numbers; a second peer under one that is in use is not listened to."""
    worker, victim = broker.worker(), broker.client(b"\1chosen")
    session = victim.ask(Hello([1])).session
    thieves = [broker.client(b"\1chosen"), broker.client(client_of(session))]
    for thief in thieves:
        thief.send(*encode_command(GetClusterStatus(), 1))
    assert thieves[1].recv()
    worker.send(client_of(session), *encode_delivery("orders", Delivered(1, [])))
    assert unpack_header(victim.recv()[0]).opcode == DELIVERY
    assert not thieves[0].socket.poll(0)
    assert not thieves[1].socket.poll(0)


def test_what_a_client_does_not_read_is_bounded_and_others_are_served(broker: Broker):
    """Of a client that reads nothing only so much is kept; one that reads late gets the rest in order, and marks between."""
    worker, client = broker.worker(), broker.client(b"")
    stuck, late = (Peer(broker.context, f"ipc://{broker.directory}/front.ipc", b"", rcvhwm=1) for _ in range(2))
    broker.peers += [stuck, late]
    for peer, frames in ((stuck, 400), (late, 20)):
        for request in range(1, frames + 1):
            peer.send(pack_header(Enqueue.opcode, request), b"orders", b"")
        for _ in range(frames):
            name, header, key, _ = worker.recv()
            worker.send(name, pack_header(Enqueue.opcode, unpack_header(header).request, REPLY), key, bytes(1 << 20))
    client.send(pack_header(Enqueue.opcode, 1), b"orders", b"")
    echo(worker)
    assert client.recv()
    assert psutil.Process(broker.process.pid).memory_info().rss < 300 << 20
    answers: list[int] = []
    while len(answers) < 20:
        header = unpack_header(late.recv()[0])
        assert header.opcode in {Enqueue.opcode, MARK}
        answers += [header.request] if header.opcode == Enqueue.opcode else []
    assert answers == list(range(1, 21))


def test_an_answer_for_a_client_that_is_gone_is_dropped(broker: Broker):
    worker, gone, client = broker.worker(), broker.client(b"\1gone"), broker.client()
    gone.send(pack_header(Enqueue.opcode, 1), b"orders", b"")
    seen = worker.recv()
    gone.socket.close()
    worker.send(seen[0], pack_header(Enqueue.opcode, 1, REPLY), b"orders", b"")
    client.send(pack_header(Enqueue.opcode, 1), b"orders", b"")
    assert echo(worker)[0] != seen[0]
    assert client.recv()


def test_a_worker_learns_that_the_router_was_restarted(broker: Broker):
    worker = broker.worker()
    broker.stop()
    broker.process = launch(broker.directory)
    worker.send(b"", *encode_command(Pulse(1, 1), 5))
    _, *answer = worker.recv()
    assert isinstance(content(answer), ShardUnavailableError)


def test_it_stops_on_sigterm(broker: Broker):
    broker.worker()
    assert broker.stop() == 0


def test_it_stops_when_its_parent_is_gone(broker: Broker):
    broker.worker()
    broker.process.communicate(timeout=PATIENCE_S)
    assert broker.process.returncode == 0


def failed(process: subprocess.Popen[bytes]) -> str:
    _, stderr = process.communicate(timeout=PATIENCE_S)
    assert process.returncode == 1
    (line,) = stderr.decode().splitlines()
    return line


def test_a_port_in_use_is_one_line(directory: Path):
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        endpoint = f"tcp://127.0.0.1:{taken.getsockname()[1]}"
        line = failed(launch(directory, listen=endpoint))
        assert (
            line
            == f"fila router: cannot listen on {endpoint}: address already in use; stop the other process or choose another --listen"
        )
        assert failed(launch(directory, worker_listen=endpoint)).endswith("choose another --worker-listen")


@pytest.mark.parametrize(
    "endpoint", ["tcp://203.0.113.7:1", "tcp://nonsense", "ipc:///no/such/dir/x", "what://x", f"ipc://{'x' * 200}"]
)
def test_an_endpoint_that_cannot_be_is_one_line(directory: Path, endpoint: str):
    assert failed(launch(directory, listen=endpoint)).startswith(f"fila router: cannot listen on {endpoint}: ")


@pytest.mark.parametrize("line", [b"", b"\n", b"{}\n", b"nonsense\n"])
def test_bad_settings_are_one_line(directory: Path, line: bytes):
    process = subprocess.Popen(
        [sys.executable, "-P", "-m", "fila_router"], cwd=directory, stdin=subprocess.PIPE, stderr=subprocess.PIPE
    )
    process.stdin.write(line)
    process.stdin.close()
    process.stdin = None
    assert failed(process).startswith("fila router: ")
