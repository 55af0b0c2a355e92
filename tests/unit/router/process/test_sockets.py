"""Who does not speak ZMTP 3 is refused: above all browsers, whose POST would be read as frames of ZMTP 1.0."""

import socket
import subprocess
from collections.abc import Iterator
from contextlib import closing, contextmanager, suppress
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest
import zmq

from fila_proto_zmq.codec import encode_command
from fila_proto_zmq.commands import (
    Command,
    CreateQueue,
    DeleteQueue,
    GetClusterStatus,
    Hello,
    QueueOptions,
    Register,
    Welcome,
)
from tests.unit.router.process.test_process import PATIENCE_S, Peer, launch

SLED = b"\x01\x00" * 200
"""Empty frames of ZMTP 1.0: whichever of them the reader of the headers jumps to, the commands behind are read whole."""


def frame(data: bytes, *, more: bool) -> bytes:
    """A frame of ZMTP 1.0: length, flags, body."""
    length = len(data) + 1
    return (bytes([length]) if length < 255 else b"\xff" + length.to_bytes(8, "big")) + bytes([more]) + data


def message(command: Command, key: str) -> bytes:
    header, routing_key, body = encode_command(command, 1, key)
    return frame(header, more=True) + frame(routing_key, more=True) + frame(body, more=False)


def post(port: int, commands: bytes) -> bytes:
    """A browser's request, with a path that lets the lengths in its headers lead into its body."""
    for length in range(60, 400):
        body = SLED + commands
        request = (
            f"POST /{'a' * length} HTTP/1.1\r\nHost: 127.0.0.1:{port}\r\nAccept: */*\r\nContent-Length: {len(body)}\r\n"
            "Origin: https://evil.example\r\nConnection: keep-alive\r\n\r\n"
        ).encode() + body
        start, position = len(request) - len(body), 0
        while position < start:
            position += 1 + request[position]
        if (position - start) % 2 == 0 and position - start < len(SLED):
            return request
    raise AssertionError("no path leads into the body")


def hang_up(stranger: socket.socket) -> None:
    """Return when the other side has closed the connection."""
    stranger.settimeout(PATIENCE_S)
    with suppress(ConnectionResetError):
        while stranger.recv(1000):  # the first words of a greeting
            pass


@contextmanager
def peers(*arguments: tuple[str, bytes]) -> Iterator[list[Peer]]:
    with zmq.Context() as context:
        made = [Peer(context, endpoint, name) for endpoint, name in arguments]
        try:
            yield made
        finally:
            for peer in made:
                peer.socket.close()


@pytest.fixture
def directory() -> Iterator[Path]:
    with TemporaryDirectory(prefix="fila") as name:
        yield Path(name)


@pytest.fixture
def ports() -> list[int]:
    with closing(socket.socket()) as one, closing(socket.socket()) as other:
        for free in (one, other):
            free.bind(("127.0.0.1", 0))
        return [one.getsockname()[1], other.getsockname()[1]]


@pytest.fixture
def router(directory: Path, ports: list[int]) -> Iterator["subprocess.Popen[bytes]"]:
    front, back = ports
    process = launch(directory, listen=f"tcp://127.0.0.1:{front}", worker_listen=f"tcp://127.0.0.1:{back}")
    with peers((f"tcp://127.0.0.1:{front}", b"")) as (client,):
        assert isinstance(client.ask(Hello([1])), Welcome)  # it listens
    yield process
    process.kill()
    process.communicate()


@pytest.mark.usefixtures("router")
def test_a_browser_s_post_is_no_chain_of_commands(ports: list[int]):
    front, back = ports
    evil = message(DeleteQueue(force=True), "orders") + message(CreateQueue(QueueOptions()), "owned-by-a-web-page")
    with peers((f"tcp://127.0.0.1:{back}", b"worker-0"), (f"tcp://127.0.0.1:{front}", b"")) as (worker, client):
        worker.send(b"", *encode_command(Register("worker-0", 1, "v", [(0, 1)]), 1))
        worker.recv()
        with socket.create_connection(("127.0.0.1", front)) as page:
            page.sendall(post(front, evil))
            hang_up(page)
        assert isinstance(client.ask(Hello([1])), Welcome)
        client.send(*encode_command(DeleteQueue(), 2, "the-first-request"))
        assert worker.recv()[2] == b"the-first-request"


@pytest.mark.usefixtures("router")
@pytest.mark.parametrize("door", [0, 1])
def test_a_peer_of_zmtp_1_is_hung_up_on(ports: list[int], door: int):
    with socket.create_connection(("127.0.0.1", ports[door])) as old:
        old.sendall(frame(b"", more=False) + message(GetClusterStatus(), ""))
        hang_up(old)


def test_the_names_that_peers_get_begin_elsewhere_in_each_life(directory: Path):
    """libzmq ends the process if a peer has chosen the name that the next one is to get."""
    front = f"ipc://{directory}/front.ipc"
    router = launch(directory)
    usual = [b"\0" + (0x6B8B4567 + number).to_bytes(4, "big") for number in range(10)]
    with peers(*((front, name) for name in usual)) as thieves, peers(*[(front, b"")] * 10) as clients:
        for peer in thieves + clients:
            assert isinstance(peer.ask(Hello([1])), Welcome)
    router.terminate()
    router.communicate(timeout=PATIENCE_S)
    assert router.returncode == 0
