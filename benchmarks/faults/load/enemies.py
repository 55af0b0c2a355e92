"""Enemies of a guarded cluster: client processes that send what no client would, at a given rate, and count it.

All of them can reach the cluster's address, and know the server's public key. *Strangers* have no API key; *spies* have one
that allows next to nothing, and also come to the worker's own door. They read some of their answers, and none of others. They
have the lowest priority of their machine: elsewhere they would not take CPU time from the cluster.
"""

import os
import socket
import time
from contextlib import suppress
from dataclasses import dataclass
from random import Random
from typing import TypeAlias

import zmq

from benchmarks.harness.processes import Gate
from fila_proto_zmq.codec import decode_body, encode_command
from fila_proto_zmq.commands import (
    BY_OPCODE,
    Browse,
    DoorView,
    Enqueue,
    GetClusterStatus,
    GetPlacement,
    Hello,
    ListQueues,
    Receive,
    Settle,
    Welcome,
)
from fila_proto_zmq.frames import ERROR, HEADER_BYTES, REPLY, VERSION, pack_header, unpack_header
from fila_proto_zmq.stream import pack_lengths

Parts: TypeAlias = list[bytes]

SOCKETS = 8
"""Open connections of one enemy. Each is a new client with a new identity after some frames."""
FRAMES_EACH = 200
"""Frames of a connection before another one takes its place."""
HUGE_PARTS = 2_000
HUGE_BYTES = 4 * 1024 * 1024
HUGE_EVERY = 500
"""One frame in so many is huge, in one way or another."""
OPEN_TO_ALL_KEYS = {command.opcode for command in (Hello, GetPlacement, GetClusterStatus, ListQueues)}
RAW_EVERY = 200
"""After so many frames a bare TCP connection says what is no ZMTP."""
GREETINGS = (
    b"POST / HTTP/1.1\r\nHost: x\r\nContent-Length: 3\r\n\r\nabc",
    b"\x01\x00" * 60,
    b"\xff" + bytes(63),
    b"\xff\0\0\0\0\0\0\0\1\x7f\3\1NULL" + bytes(48),
    b"\xff\0\0\0\0\0\0\0\1\x7f\3\1CURVE" + bytes(47) + b"\x04\xc8\5HELLO" + bytes(194),
)
"""What bare connections say: HTTP, ZMTP 1.0, noise, ZMTP 3 without encryption, a CURVE greeting that is none."""


@dataclass
class Sent:
    """What an enemy did. ``welcomed``: answers that were no errors to what their sender may not do."""

    frames: int = 0
    raw: int = 0
    refused: int = 0
    welcomed: int = 0
    door_frames: int = 0


class Noise:
    """Frames that are wrong in many ways, from one stream of numbers."""

    def __init__(self, random: Random, session: bytes = b"") -> None:
        self._random = random
        self._session = session
        self._tag = int.from_bytes(session[:4], "big")
        self._opcodes = sorted(BY_OPCODE)
        self._made = 0

    def frame(self) -> Parts:
        """Return another frame."""
        self._made += 1
        random = self._random
        if self._made % HUGE_EVERY == 0:
            return random.choice([self._many_parts, self._one_large])()
        return random.choice([self._bytes, self._header, self._body, self._command, self._hello])()

    def _bytes(self) -> Parts:
        return [
            self._random.randbytes(self._random.choice([0, 1, 17, 18, 19, 300])) for _ in range(self._random.randint(1, 6))
        ]

    def _header(self) -> Parts:
        """A frame with any opcode, any flags, and a body that may not fit."""
        random = self._random
        opcode = random.choice([random.randrange(256), random.choice(self._opcodes)])
        header = pack_header(
            opcode, random.getrandbits(60), random.choice([0, 0, 0, 1, 3, 255]), random.choice([0, self._tag])
        )
        return [header, self._queue(), random.choice([b"\x90", b"\xc1", b"\xdd\xff\xff\xff\xff", b"", random.randbytes(40)])]

    def _body(self) -> Parts:
        """A frame of a known command whose body was changed at one place."""
        header, queue, body = self._command()
        changed = bytearray(body or b"\0")
        changed[self._random.randrange(len(changed))] = self._random.randrange(256)
        return [header, queue, bytes(changed)]

    def _command(self) -> Parts:
        """A frame that is right, for what its sender may not do."""
        random = self._random
        command = random.choice(
            [
                Enqueue([random.randbytes(40)]),
                Receive(10, 0),
                Browse(10),
                ListQueues(),
                Settle(1, [(random.getrandbits(63), [])]),
            ]
        )
        queue = "" if isinstance(command, ListQueues) else self._queue().decode(errors="replace")
        return encode_command(command, random.getrandbits(60), queue, self._tag)

    def _hello(self) -> Parts:
        random = self._random
        garbage = random.choice(["", "fila_wrong", "x" * 500, random.randbytes(30).hex()])
        session = random.choice([b"", self._session, random.randbytes(32), bytes(5)])
        return encode_command(Hello(random.choice([[VERSION], [], [9] * 50]), "enemy", session, api_key=garbage), 1)

    def _queue(self) -> bytes:
        return self._random.choice([b"measured-0", b"measured-1.dlq", b"no-such", b"", b"\xff\xfe", b"x" * 400])

    def _many_parts(self) -> Parts:
        return [b"x"] * HUGE_PARTS

    def _one_large(self) -> Parts:
        return [pack_header(Enqueue.opcode, 1, 0, self._tag), b"measured-1", bytes(HUGE_BYTES)]


class Knocking:
    """The connections of one enemy to the router, which are replaced one after the other."""

    def __init__(self, endpoint: str, server_key: str, api_key: str, random: Random) -> None:
        self._endpoint, self._server_key, self._api_key = endpoint, server_key, api_key
        self._random = random
        self._context = zmq.Context()
        self._open: list[tuple[zmq.Socket[bytes], Noise]] = []
        self._turn = 0
        self.sent = Sent()

    def one(self) -> None:
        """Send one frame on one of the connections."""
        self._turn += 1
        if len(self._open) < SOCKETS or self._turn % FRAMES_EACH == 0:
            self._replace()
        connection, noise = self._open[self._turn % len(self._open)]
        with suppress(zmq.Again):  # an enemy whose frames are not taken goes on with others
            connection.send_multipart(noise.frame(), zmq.NOBLOCK)
            self.sent.frames += 1
        if self._turn % 3 == 0:
            self._read(connection)
        if self._turn % RAW_EVERY == 0:
            self._say_raw()

    def _replace(self) -> None:
        if len(self._open) >= SOCKETS:
            self._open.pop(0)[0].close(0)
        connection = self._context.socket(zmq.DEALER)
        for option, value in ((zmq.LINGER, 0), (zmq.SNDHWM, 50), (zmq.RCVHWM, 50)):
            connection.setsockopt(option, value)
        public_key, secret_key = zmq.curve_keypair()
        connection.curve_serverkey = self._server_key.encode()
        connection.curve_publickey, connection.curve_secretkey = public_key, secret_key
        connection.connect(self._endpoint)
        session = self._greeted(connection)[0] if self._api_key else b""
        self._open.append((connection, Noise(self._random, session)))

    def _greeted(self, connection: "zmq.Socket[bytes]") -> tuple[bytes, list[DoorView]]:
        """Say Hello with the key. Return the session, and the doors of the workers."""
        connection.send_multipart(encode_command(Hello([VERSION], "enemy", b"", direct=True, api_key=self._api_key), 1))
        if not connection.poll(5000):
            return b"", []
        header, *_, body = connection.recv_multipart()
        if unpack_header(header).flags & ERROR:
            return b"", []
        welcome = decode_body(Welcome, body)
        return welcome.session, welcome.doors or []

    def _read(self, connection: "zmq.Socket[bytes]") -> None:
        with suppress(zmq.Again):
            for _ in range(5):
                header = connection.recv_multipart(zmq.NOBLOCK)[0]
                answer = unpack_header(header[:HEADER_BYTES])
                allowed = bool(self._api_key) and answer.opcode in OPEN_TO_ALL_KEYS
                self.sent.refused += bool(answer.flags & ERROR)
                self.sent.welcomed += answer.flags & (ERROR | REPLY) == REPLY and not allowed

    def _say_raw(self) -> None:
        host, _, port = self._endpoint.removeprefix("tcp://").rpartition(":")
        with suppress(OSError), socket.create_connection((host, int(port)), timeout=1) as stranger:
            stranger.sendall(self._random.choice(GREETINGS))
            self.sent.raw += 1

    def doors(self) -> list[str]:
        """Return the files of the workers' own doors, as a client learns them."""
        connection = self._context.socket(zmq.DEALER)
        connection.setsockopt(zmq.LINGER, 0)
        connection.curve_serverkey = self._server_key.encode()
        connection.curve_publickey, connection.curve_secretkey = zmq.curve_keypair()
        connection.connect(self._endpoint)
        doors = self._greeted(connection)[1]
        connection.close(0)
        return [each.removeprefix("ipc://") for door in doors for each in door.endpoints if each.startswith("ipc://")]

    def close(self) -> None:
        """Close all connections."""
        for connection, _ in self._open:
            connection.close(0)
        self._context.term()


class AtTheDoor:
    """The connections of a spy to the worker's own door: bare streams."""

    def __init__(self, path: str, random: Random) -> None:
        self._path, self._random, self._noise = path, random, Noise(random)
        self._open: list[socket.socket] = []

    def one(self) -> bool:
        """Send one frame, or what is none. Return whether the door took it."""
        if len(self._open) < SOCKETS:
            stream = socket.socket(socket.AF_UNIX)
            stream.settimeout(1)
            stream.connect(self._path)
            self._open.append(stream)
        stream = self._random.choice(self._open)
        parts = [*self._noise.frame(), b"", b""][:3]
        data = pack_lengths(parts[1], parts[2]) + parts[0].ljust(HEADER_BYTES, b"\0")[:HEADER_BYTES] + parts[1] + parts[2]
        if self._random.random() < 0.2:
            data = self._random.randbytes(self._random.choice([1, 5, 60]))
        try:
            stream.sendall(data)
        except OSError:  # closed by the door, or full
            self._open.remove(stream)
            stream.close()
            return False
        return True

    def close(self) -> None:
        """Close all connections."""
        for stream in self._open:
            stream.close()


async def attack(gate: Gate, endpoint: str, server_key: str, api_key: str, frames: int, rate: float, seed: int) -> Sent:
    """Send so many frames at a rate. ``api_key``: of a spy; empty for a stranger."""
    os.nice(19)
    knocking = Knocking(endpoint, server_key, api_key, Random(seed))
    door = AtTheDoor(knocking.doors()[0], Random(seed)) if api_key else None
    gate.wait()
    began = time.monotonic()
    sent = knocking.sent
    while sent.frames + sent.door_frames < frames:
        early_s = began + (sent.frames + sent.door_frames) / rate - time.monotonic()
        if early_s > 0:
            time.sleep(early_s)
        if door is not None and sent.frames % 4 == 0:
            sent.door_frames += door.one()
        knocking.one()
    if door is not None:
        door.close()
    knocking.close()
    return sent
