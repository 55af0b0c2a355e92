"""The loop that moves frames between the two sockets as the core decides: one thread, one poll.

It is written for a low cost per forwarded frame (``python -m benchmarks router_hop``). To read part by part, the small parts
as bytes and the body uncopied, costs half of ``recv_multipart``. A ready socket is drained without a poll between frames. The
core's own share is less than a microsecond of about 16.
"""

import time
from collections.abc import Callable
from typing import Any, Final

import psutil
import zmq

from fila_admission.acts import ACT_OPCODES
from fila_process.clock import ProcessClock, SteadyClock
from fila_process.journal import Journal
from fila_process.parent import ParentHeartbeat, StopRequests
from fila_proto_zmq.commands import ApiKey, Hello
from fila_proto_zmq.events import ProcessStopping
from fila_router.core.router import Router
from fila_router.core.unread import ClientConnection
from fila_router.sockets import Socket

BURST_FRAMES: Final = 500
"""Frames taken from one side before the other gets its turn: a few milliseconds."""

TICK_MS: Final = 250

MEASURE_MS: Final = 1000
"""How often memory and CPU time are measured."""

_WITH_ADDRESS: Final = frozenset(bytes([opcode]) for opcode in (Hello.opcode, *ACT_OPCODES))
"""Opcodes of requests whose sender's address is looked up."""
_NOW: Final = zmq.NOBLOCK
_MORE: Final = zmq.SNDMORE
_MORE_NOW: Final = zmq.SNDMORE | zmq.NOBLOCK
_UNFINISHED: Final = zmq.RCVMORE


class RouterLoop:
    """The running router."""

    def __init__(
        self,
        core: Router,
        front: Socket,
        back: Socket,
        stop: StopRequests,
        journal: Journal,
        heartbeat: ParentHeartbeat,
        save_keys: Callable[[list[ApiKey], int], None],
    ) -> None:
        """``save_keys``: stores all API keys with their version. They are on disk when it returns."""
        self._save_keys = save_keys
        self._core = core
        self._front = front
        self._back = back
        self._stop = stop
        self._journal = journal
        self._heartbeat = heartbeat
        self._clock = SteadyClock()  # the bank's rates hold however the wall clock is set
        self._wall = ProcessClock()
        self._process = psutil.Process()
        self._measure_ms = 0
        self._poller = zmq.Poller()
        for source in (front, back, *stop.fds):
            self._poller.register(source, zmq.POLLIN)

    def run(self) -> None:
        """Forward until asked to stop; frames that have arrived by then still go out."""
        tick_ms = self._clock.now_ms()
        stopping = False
        while not stopping:
            ready = dict(self._poller.poll(self._sleep_ms(tick_ms)))
            now_ms = self._clock.now_ms()
            if self._back in ready:
                self._drain_workers(now_ms)
            self._core.serve(now_ms)
            self._send_held(now_ms)
            self._send_answers(now_ms)  # a worker that is back needs some of these before it gets clients' frames
            if self._front in ready:
                self._drain_clients(now_ms)
            if now_ms >= tick_ms:
                self._core.dated(self._wall.now_ms() - now_ms)
                self._core.tick(now_ms)
                self._heartbeat.beat()
                self._measure(now_ms)
                tick_ms = now_ms + TICK_MS
            self._send_answers(now_ms)
            stopping = self._stop.requested(ready)
        self._journal.tell([ProcessStopping()])
        self._drain_workers(self._clock.now_ms())
        self._send_answers(self._clock.now_ms())

    def _measure(self, now_ms: int) -> None:
        if now_ms >= self._measure_ms:
            self._measure_ms = now_ms + MEASURE_MS
            self._core.measured(self._process.memory_info().rss, time.process_time_ns() // 1_000_000)

    def _sleep_ms(self, tick_ms: int) -> int:
        now_ms = self._clock.now_ms()
        due_ms = self._core.next_due(now_ms)
        return max(0, tick_ms - now_ms if due_ms is None else min(tick_ms - now_ms, due_ms))

    def _drain_clients(self, now_ms: int) -> None:
        front, back, from_client = self._front, self._back, self._core.from_client
        recv, get, send = front.recv, front.get, back.send
        for _ in range(BURST_FRAMES):
            try:
                connection = recv(_NOW)
            except zmq.Again:
                return
            header = recv()
            key = recv() if get(_UNFINISHED) else b""
            body = recv(copy=False) if get(_UNFINISHED) else None
            if body is None or body.more:
                self._core.malformed(connection, header, now_ms)
                _skip_rest(front)
                continue
            address = _address_of(body) if header[3:4] in _WITH_ADDRESS else ""
            forward = from_client(connection, header, key, body, now_ms, address)
            if forward is None:
                continue
            worker, client = forward
            if not _reaches(back, worker):
                self._core.unsent(worker, client, header, key, now_ms)
                continue
            send(client, _MORE)
            send(header, _MORE)
            send(key, _MORE)
            send(body, copy=False)

    def _drain_workers(self, now_ms: int) -> None:
        back, front, from_worker = self._back, self._front, self._core.from_worker
        recv, get, send = back.recv, back.get, front.send
        for _ in range(BURST_FRAMES):
            try:
                identity = recv(_NOW)
            except zmq.Again:
                return
            client = recv()
            header = recv() if get(_UNFINISHED) else b""
            key = recv() if get(_UNFINISHED) else b""
            body = recv(copy=False) if get(_UNFINISHED) else None
            if body is None or body.more:
                _skip_rest(back)
                continue
            connection = from_worker(identity, client, header, key, body, now_ms)
            if connection is None:
                continue
            if connection.held or not self._takes(connection):
                self._core.unread.hold(connection, [header, key, body], now_ms)
                continue
            send(header, _MORE)
            send(key, _MORE)
            send(body, copy=False)

    def _send_answers(self, now_ms: int) -> None:
        outgoing, access = self._core.outgoing, self._core.access
        if access is not None and access.unsaved:
            self._save_keys(access.records(), access.version)  # before any answer says that it is done
        while outgoing.to_workers or outgoing.to_clients or outgoing.notes:
            to_workers, to_clients, notes = outgoing.take()
            for identity, *parts in to_workers:
                if _reaches(self._back, identity):
                    self._back.send_multipart(parts)
                else:
                    self._core.unreachable(identity, now_ms)
            for client, *parts in to_clients:
                self._answer(client, parts, now_ms)
            self._journal.tell(notes)

    def _answer(self, client: bytes, parts: list[Any], now_ms: int) -> None:
        connection = self._core.connection_of(client, len(parts[-1]), now_ms)
        if connection is None:
            return
        if connection.held or not self._takes(connection):
            self._core.unread.hold(connection, parts, now_ms)
        else:
            self._front.send_multipart(parts)

    def _send_held(self, now_ms: int) -> None:
        """Send the frames that pipes did not take, as far as they take them now."""
        self._core.unread.try_again(now_ms, self._takes, self._finish)

    def _finish(self, connection: ClientConnection, parts: list[Any]) -> None:
        """Send the parts of a frame that has begun."""
        self._front.send_multipart(parts, copy=False)

    def _takes(self, connection: ClientConnection) -> bool:
        """Begin a frame to a client; False if its pipe is full, or if the client is gone, with its held frames."""
        try:
            self._front.send(connection.name, _MORE_NOW)
        except zmq.ZMQError as error:
            if error.errno == zmq.EHOSTUNREACH:
                self._core.ended(connection)
            elif error.errno != zmq.EAGAIN:
                raise
            return False
        return True


def _address_of(body: zmq.Frame) -> str:
    """Return the address that a frame came from; empty for a socket file."""
    try:
        return str(body.get("Peer-Address"))
    except zmq.ZMQError:
        return ""


def _reaches(socket: Socket, address: bytes) -> bool:
    """Begin a frame to ``address``; False if the peer is gone or does not read."""
    try:
        socket.send(address, _MORE_NOW)
    except zmq.ZMQError as error:
        if error.errno not in {zmq.EHOSTUNREACH, zmq.EAGAIN}:
            raise
        return False
    return True


def _skip_rest(socket: Socket) -> None:
    """Read and drop the parts that are left of a frame."""
    while socket.get(_UNFINISHED):
        socket.recv(copy=False)
