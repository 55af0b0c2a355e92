"""A worker's client socket: listening sockets, connections and their bytes.

Rejected: a ZeroMQ ROUTER. A round trip costs three times the CPU time (13–19 µs against 38–53 µs of the client's alone),
wakes an I/O thread on each side, and does not show how much a client has read; a plain socket shows exactly how much it took.
"""

import errno
import os
import select
import socket
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Final

from fila_process.files import SOCKET_PATH_BYTES_MAX
from fila_proto_zmq.errors import InvalidFrameError
from fila_proto_zmq.events import DoorNotOpened
from fila_proto_zmq.frames import HEADER_BYTES
from fila_proto_zmq.limits import ENVELOPE_OVERHEAD_BYTES, FRAME_BYTES_MAX
from fila_proto_zmq.names import ROUTING_KEY_BYTES_MAX
from fila_proto_zmq.stream import FrameReader, FrameWriter
from fila_worker.core.effects import Effect
from fila_worker.process.shard_process import ShardProcess
from fila_worker.transport.direct_clients import DirectClients, DirectConnection

FRAMES_MAX: Final = 128
"""Frames taken in one turn: their writes share one commit, and a limit keeps their answers from waiting."""
BYTES_MAX: Final = 1024 * 1024
SLICE_FRAMES: Final = 32
"""Frames taken from one connection before the next one has its turn."""
ACCEPTED_MAX: Final = 64
"""New connections taken in one turn."""
NOT_BODY_BYTES_MAX: Final = HEADER_BYTES + 2 + ROUTING_KEY_BYTES_MAX
"""The bytes in a frame's length beside its body. A larger body is cut off at the router, too."""

_IPC: Final = "ipc://"
_ANY: Final = frozenset({"0.0.0.0", "::"})
_READ, _WRITE = select.EPOLLIN, select.EPOLLOUT


class _Wire:
    """One connection's socket. ``events``: those that are waited for; ``queued``: it is among those to be read."""

    __slots__ = ("connection", "events", "kept_bytes", "queued", "reader", "socket", "writer")

    def __init__(self, sock: socket.socket, connection: DirectConnection, reader: FrameReader) -> None:
        self.socket = sock
        self.connection = connection
        self.reader = reader
        self.writer = FrameWriter()
        self.events = _READ
        self.kept_bytes = 0
        self.queued = False


class ClientSocket:
    """The listening sockets of a worker, and the connections of its clients."""

    def __init__(
        self, clients: DirectClients, host: ShardProcess, max_payload_bytes: int, clock: Callable[[], int], address: str = ""
    ) -> None:
        """``clock``: the worker's time, ms. ``address``: shown to clients instead of a TCP endpoint's own host."""
        self._clients = clients
        self._address = address
        self._clock = clock
        self._host = host
        self._limits = clients.limits
        self._frame_bytes_max = max_payload_bytes + FRAME_BYTES_MAX + ENVELOPE_OVERHEAD_BYTES + NOT_BODY_BYTES_MAX
        self._epoll = select.epoll()
        self._watched: dict[int, _Wire | socket.socket] = {}
        """The connections and listening sockets by descriptor. Other descriptors are those that others have added."""
        self._wires: dict[bytes, _Wire] = {}
        self._callers: set[socket.socket] = set()
        """Listening sockets at which a client has called."""
        self._ready: deque[_Wire] = deque()
        """Wires that may have more to read than was read."""
        self._paused = False
        """Whether the router's confirmation ended while frames were read."""
        self._dirty: dict[_Wire, None] = {}
        self._unsent_bytes = 0
        self._kept_bytes = 0
        self._listening: list[socket.socket] = []
        self.endpoints: list[str] = []
        """Where clients find it."""

    @property
    def has_more(self) -> bool:
        """Whether frames wait that a turn had no room for."""
        return bool(self._ready)

    # --- waiting ------------------------------------------------------------------------------------------------------

    def watch(self, descriptor: int) -> None:
        """Add a descriptor that wakes the worker while it waits here: one system call covers all descriptors."""
        self._epoll.register(descriptor, _READ)

    def watch_no_more(self, descriptor: int) -> None:
        """Remove a descriptor that was added."""
        self._epoll.unregister(descriptor)

    def wait(self, timeout_ms: int) -> list[int]:
        """Sleep until something comes. Return the readable watched descriptors; :meth:`receive` reads the rest."""
        elsewhere = []
        for descriptor, events in self._epoll.poll(timeout_ms / 1000):
            watched = self._watched.get(descriptor)
            if type(watched) is _Wire:
                if events != _READ:  # it may be written, or has ended: then both ways find out
                    self._dirty[watched] = None
                if events != _WRITE and not watched.queued:
                    watched.queued = True
                    self._ready.append(watched)
            elif watched is None:
                elsewhere.append(descriptor)
            else:
                self._callers.add(watched)  # type: ignore[arg-type]  # the others are listening sockets
        return elsewhere

    # --- listening ----------------------------------------------------------------------------------------------------

    def listen(self, endpoint: str) -> None:
        """Listen at ``ipc://PATH``, relative to the working directory, or ``tcp://HOST:PORT``; port 0: any. Raise OSError."""
        listening, shown = _listen_ipc(endpoint) if endpoint.startswith(_IPC) else _listen_tcp(endpoint, self._address)
        self._listening.append(listening)
        listening.listen(256)
        listening.setblocking(False)
        self._epoll.register(listening, _READ)
        self._watched[listening.fileno()] = listening
        if shown:
            self.endpoints.append(shown)

    def _accept(self, listening: socket.socket, now_ms: int) -> None:
        for _ in range(ACCEPTED_MAX):
            try:
                sock, address = listening.accept()
            except OSError:  # no client, or it has gone, or no descriptor is left: the client takes another way
                return
            self._take_in(sock, address[0] if sock.family != socket.AF_UNIX else "", now_ms)

    def _take_in(self, sock: socket.socket, address: str, now_ms: int) -> None:
        connection = self._clients.connected(now_ms, address)
        self._close_some()
        if connection is None:
            sock.close()
            return
        prepare(sock)
        wire = _Wire(sock, connection, FrameReader(self._limits.greeting_bytes_max))
        self._wires[connection.name] = wire
        self._epoll.register(sock, _READ)
        self._watched[sock.fileno()] = wire
        self._dirty[wire] = None

    # --- in -----------------------------------------------------------------------------------------------------------

    def receive(self, now_ms: int) -> None:
        """Take in what :meth:`wait` has seen: clients' frames, up to a turn's worth, a slice of each connection at a time."""
        while self._callers:
            self._accept(self._callers.pop(), now_ms)
        frames = bytes_read = 0
        self._paused = False
        while self._ready and not self._paused and frames < FRAMES_MAX and bytes_read < BYTES_MAX and not self._host.full:
            wire = self._ready.popleft()
            taken, size, more = self._read(wire, now_ms)
            frames += taken
            bytes_read += size
            wire.queued = more and wire.connection.open
            if wire.queued:
                self._ready.append(wire)
            if wire.connection.outgoing:
                self._dirty[wire] = None
        if self._clients.closing:
            self._close_some()

    def _read(self, wire: _Wire, now_ms: int) -> tuple[int, int, bool]:
        """Take a slice of a connection's frames. Return how many, their bytes, and whether there may be more."""
        reader, connection, host = wire.reader, wire.connection, self._host
        arrived, frames, size, drained, more = self._clients.arrived, 0, 0, False, False
        try:
            while connection.open and not more:
                parts = reader.take() if reader.left else None
                if parts is not None:
                    frames += 1
                    size += len(parts[2])
                    arrived(connection, *parts, now_ms)
                    if connection.client:
                        reader.frame_bytes_max = self._frame_bytes_max
                    if reader.left or not drained:
                        more = frames >= SLICE_FRAMES or size >= BYTES_MAX or host.full
                        continue
                if drained or connection.unread > self._limits.unread_paused:
                    break
                data = wire.socket.recv(self._limits.read_bytes)
                if not data:
                    self._lose(wire)
                    break
                drained = len(data) < self._limits.read_bytes
                reader.feed(data)
                if not self._clients.trusted(self._clock()):  # the process was paused just before it read
                    self._paused = more = True
        except BlockingIOError:
            pass
        except (OSError, InvalidFrameError):
            self._lose(wire)
        if reader.left or reader.have or wire.kept_bytes:
            self._note_kept(wire)
        return frames, size, more

    def _note_kept(self, wire: _Wire) -> None:
        kept = wire.reader.kept_bytes if wire.connection.open else 0
        self._kept_bytes += kept - wire.kept_bytes
        wire.kept_bytes = kept
        if self._kept_bytes > self._limits.unfinished_bytes_max:
            self._lose(max(self._wires.values(), key=lambda each: each.kept_bytes))

    # --- out ----------------------------------------------------------------------------------------------------------

    def send(self, effect: Effect) -> bool:
        """Send a frame here when :meth:`flush` is called; return False if it has to go through the router."""
        connection = self._clients.send(effect)
        if connection is None:
            return False
        wire = self._wires.get(connection.name)
        if wire is not None:
            self._dirty[wire] = None
        return True

    def interrupt(self, shards: frozenset[int]) -> None:
        """Answer the open requests for shards that have failed."""
        for connection in self._clients.interrupt(shards):
            wire = self._wires.get(connection.name)
            if wire is not None:
                self._dirty[wire] = None

    def flush(self) -> None:
        """Send what waits, as far as the sockets take it."""
        if not self._dirty:
            return
        dirty, self._dirty = self._dirty, {}
        for wire in dirty:
            if wire.connection.name in self._wires:
                self._flush(wire)
        if self._clients.closing:
            self._close_some()

    def _flush(self, wire: _Wire) -> None:
        connection, writer = wire.connection, wire.writer
        frames, connection.outgoing = connection.outgoing, []
        try:
            writer.send(wire.socket, frames)
        except OSError:
            self._lose(wire)
            return
        if writer.size_bytes or connection.unread:
            self._note_unread(wire)

    def _note_unread(self, wire: _Wire) -> None:
        """Note how much the socket has not taken. Close the connection whose client leaves too much of it."""
        connection, before = wire.connection, wire.connection.unread
        connection.unread = wire.writer.size_bytes
        self._unsent_bytes += connection.unread - before
        self._look_for(wire)
        if connection.unread > self._limits.client_unread_max:
            self._lose(wire)
        elif self._unsent_bytes > self._limits.unread_max:
            self._lose(max(self._wires.values(), key=lambda each: each.connection.unread))

    def _look_for(self, wire: _Wire) -> None:
        unread = wire.connection.unread
        events = (_WRITE if unread else 0) | (_READ if unread <= self._limits.unread_paused else 0)
        if events != wire.events:
            wire.events = events
            self._epoll.modify(wire.socket, events)

    # --- ends ---------------------------------------------------------------------------------------------------------

    def tick(self, now_ms: int) -> None:
        """Close what is idle for too long. Call it a few times a second."""
        self._clients.tick(now_ms)
        self._close_some()

    @property
    def empty(self) -> bool:
        """Whether no client is connected."""
        return not self._wires

    def retire(self, now_ms: int) -> None:
        """Take no new connections, and ask all clients to go."""
        self._stop_listening()
        self._clients.retire(now_ms)
        self._dirty.update(dict.fromkeys(self._wires.values()))

    def _lose(self, wire: _Wire) -> None:
        if wire.connection.open:
            self._clients.closed(wire.connection)
        self._forget(wire)

    def _close_some(self) -> None:
        for connection in self._clients.take_to_close():
            wire = self._wires.get(connection.name)
            if wire is not None:
                if connection.outgoing:
                    self._flush(wire)
                self._forget(wire)

    def _forget(self, wire: _Wire) -> None:
        if self._wires.pop(wire.connection.name, None) is None:
            return
        self._unsent_bytes -= wire.connection.unread
        self._kept_bytes -= wire.kept_bytes
        wire.connection.unread = wire.kept_bytes = 0
        wire.connection.open = False
        with suppress(ValueError):
            self._ready.remove(wire)
        del self._watched[wire.socket.fileno()]
        self._epoll.unregister(wire.socket)
        wire.socket.close()

    def close(self) -> None:
        """Send what waits, as far as the sockets take it at once, and close everything."""
        self.flush()
        for wire in list(self._wires.values()):
            self._lose(wire)
        self._stop_listening()
        self._epoll.close()

    def _stop_listening(self) -> None:
        for listening in self._listening:
            del self._watched[listening.fileno()]
            self._epoll.unregister(listening)
            listening.close()
        self._listening.clear()

    def check(self) -> None:
        """Check the invariants, for tests."""
        wires = self._wires.values()
        assert set(self._wires) == set(self._clients.connections)
        assert self._unsent_bytes == sum(wire.connection.unread for wire in wires)
        assert self._kept_bytes == sum(wire.kept_bytes for wire in wires)
        assert all(wire.connection.unread == wire.writer.size_bytes for wire in wires)
        assert all(wire.queued and wire.connection.open for wire in self._ready)
        assert all(self._watched[wire.socket.fileno()] is wire for wire in wires)
        self._clients.check()


def prepare(sock: socket.socket) -> None:
    """Set what each connection needs: it never blocks, sends at once, and ends when its machine is gone."""
    sock.setblocking(False)
    if sock.family != socket.AF_UNIX:
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)


def _listen_ipc(endpoint: str) -> tuple[socket.socket, str]:
    path = Path(endpoint.removeprefix(_IPC))
    listening = socket.socket(socket.AF_UNIX)
    try:
        path.unlink(missing_ok=True)  # of an earlier process: the data directory belongs to this cluster alone
        listening.bind(str(path))
    except OSError:
        listening.close()
        raise
    shown = str(path.absolute())
    return listening, f"{_IPC}{shown}" if len(os.fsencode(shown)) <= SOCKET_PATH_BYTES_MAX else ""


def _listen_tcp(endpoint: str, address_shown: str) -> tuple[socket.socket, str]:
    host, _, port = endpoint.removeprefix("tcp://").rpartition(":")
    try:
        family, *_, address = socket.getaddrinfo(host.strip("[]"), int(port), type=socket.SOCK_STREAM)[0]
    except ValueError as cause:
        raise OSError(errno.EINVAL, f"not an endpoint: {endpoint}") from cause
    listening = socket.socket(family, socket.SOCK_STREAM)
    try:
        listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listening.bind(address)
    except OSError:
        listening.close()
        raise
    shown = address_shown or ("*" if host.strip("[]") in _ANY else host)
    return listening, f"tcp://{shown}:{listening.getsockname()[1]}"


def open_client_socket(
    endpoints: list[str],
    clients: DirectClients,
    host: ShardProcess,
    max_payload_bytes: int,
    clock: Callable[[], int],
    address: str = "",
) -> ClientSocket:
    """Return a client socket that listens at ``endpoints``. ``address``: see :class:`ClientSocket`.

    If that fails, it is logged, and the worker serves without it: clients go through the router.
    """
    client_socket = ClientSocket(clients, host, max_payload_bytes, clock, address)
    for endpoint in endpoints:
        try:
            client_socket.listen(endpoint)
        except OSError as error:
            host.notes.append(DoorNotOpened([endpoint], error.strerror or str(error)))
    return client_socket
