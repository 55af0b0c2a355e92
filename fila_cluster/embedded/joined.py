"""A whole broker without processes and sockets: the router's core and a worker's host, joined in memory.

``fila-cluster up --workers 1`` runs the same parts, with the same frames between them, so clients see no difference. There is
no clock and no thread here: an owner calls :meth:`Joined.turn` with the time when there is work. The clients put frames into
their connections in any thread; all else is for one thread at a time.

Rejected: clients that reach the host without a router (sessions, the token bank, the runtime config and requests to all
shards are the router's, and would be built twice).
"""

import gc
import os
import secrets
from collections import deque
from collections.abc import Callable, Iterable
from itertools import count
from typing import Final, Protocol

import psutil

from fila_admission.acts import ACT_OPCODES
from fila_proto_zmq.codec import decode_body, encode_command, from_fault
from fila_proto_zmq.commands import Command, Fault, Hello, Pulse, Register, Registered
from fila_proto_zmq.errors import InvalidFrameError
from fila_proto_zmq.events import Event
from fila_proto_zmq.frames import ERROR, REPLY, unpack_header
from fila_proto_zmq.version import VERSION
from fila_router.core.feature import ClusterSettings
from fila_router.core.limits import DEFAULTS
from fila_router.core.router import Router
from fila_router.core.unread import ClientConnection
from fila_worker.core.settings import ShardSettings
from fila_worker.process.shard_process import LOG_FULL_MS, ShardProcess

FRAMES_PER_TURN: Final = 128
"""Frames of clients that are carried out in one turn: their writes share one commit."""
PULSE_MS: Final = 250
"""The interval of the router's timers and of the worker's heartbeats."""
PARTS: Final = 3
"""Header, routing key, body."""

_WITH_ADDRESS: Final = frozenset(bytes([opcode]) for opcode in (Hello.opcode, *ACT_OPCODES))
ADDRESS: Final = "this process"
"""The address of all clients, in the list of connections and of administrative acts."""


class Watcher(Protocol):
    """Observes the requests of clients and the worker's answers, about queues."""

    def asked(self, client: bytes, header: bytes, key: bytes, body: bytes) -> None:
        """Observe a request before the worker carries it out."""

    def answered(self, client: bytes, header: bytes, key: bytes, body: bytes) -> None:
        """Observe an answer or a delivery."""


class Joint:
    """A client's connection. ``arrived``: up to ``pipe_frames`` frames for the client; the router's core keeps the others."""

    def __init__(self, name: bytes, joined: "Joined", ring: Callable[[], None]) -> None:
        """``ring``: called when frames have arrived."""
        self.name = name
        self.arrived: deque[list[bytes]] = deque()
        self.ring = ring
        self._joined = joined

    def put(self, frames: list[bytes]) -> None:
        """Send a frame to the broker."""
        self._joined.arrived.append((self, frames))

    def close(self) -> None:
        """End the connection. Its frames that were not carried out are lost."""
        self._joined.closed.append(self)


class Joined:
    """One broker. ``notes``: the events for the operator; the owner takes them out."""

    def __init__(self, host: ShardProcess, settings: ShardSettings, shards: int, name: str) -> None:
        """``host``: all ``shards`` shards, with these settings. ``name``: the worker's."""
        self.host = host
        cluster = ClusterSettings(shards, settings.consumer_timeout_ms, settings.max_payload_bytes, VERSION)
        self.router = Router(cluster, entropy=secrets.token_bytes)
        self.arrived: deque[tuple[Joint, list[bytes]]] = deque()
        """Frames of clients, in order."""
        self.closed: deque[Joint] = deque()
        self.notes: list[Event] = []
        self.watcher: Watcher | None = None
        self._worker = name.encode()
        self._joints: dict[bytes, Joint] = {}
        self._rung: dict[Joint, None] = {}
        self._numbers = count(1)
        self._handed_over = False
        """Whether a frame of the router waits for the worker's next turn, which answers it."""
        self._requests = 0
        self._offers: dict[int, int] = {}
        self._offered = 0
        self._pulse_at_ms = 0
        self._process = psutil.Process()

    def connect(self, ring: Callable[[], None]) -> Joint:
        """Open a connection."""
        name = next(self._numbers).to_bytes(5, "big")
        joint = self._joints[name] = Joint(name, self, ring)
        return joint

    def turn(self, now_ms: int) -> None:
        """Carry out the frames that have arrived, and due work."""
        host, router = self.host, self.router
        self._forget_closed()
        if now_ms >= self._pulse_at_ms:
            self._pulse(now_ms)
        host.begin_turn(now_ms)
        self._from_clients(now_ms)
        self._handed_over = False
        for effect in host.turn(now_ms, drained=not self.arrived):
            self._from_worker(effect.client, effect.frames(), now_ms)
        self._register(now_ms)
        router.serve(now_ms)
        router.unread.try_again(now_ms, self._takes, self._put)
        self._pass_on(now_ms)
        self._tidy()
        while self._rung:
            self._rung.popitem()[0].ring()

    def next_due(self, now_ms: int) -> int | None:
        """Return the milliseconds until :meth:`turn` has work without a frame; None: it needs a frame."""
        is_full = self.host.log_is_full  # then frames wait
        if self.closed or self._handed_over or self.host.offers != self._offered or (self.arrived and not is_full):
            return 0
        dues = (self.host.next_due(now_ms), self.router.next_due(now_ms), LOG_FULL_MS if is_full else None)
        return min((due for due in dues if due is not None), default=None)

    @property
    def is_ready(self) -> bool:
        """Whether all shards serve, and the router has been informed."""
        return (
            not self.host.slots.opening
            and not self.host.slots.outages
            and not self._offers
            and self.host.offers == self._offered
        )

    def close(self) -> None:
        """Flush and close the shards, and free their memory: connections may be kept for longer."""
        self.host.close()
        for slot in self.host.slots.values():
            slot.leave()
        self.host.shards.clear()
        self.arrived.clear()
        self._joints.clear()
        self._rung.clear()

    # --- frames of clients --------------------------------------------------------------------------------------------

    def _from_clients(self, now_ms: int) -> None:
        arrived, host, router = self.arrived, self.host, self.router
        for _ in range(FRAMES_PER_TURN):
            if not arrived or host.full:
                return
            joint, frames = arrived.popleft()
            if joint.name not in self._joints:
                continue
            if len(frames) != PARTS:
                router.malformed(joint.name, frames[0] if frames else b"", now_ms)
                continue
            header, key, body = frames
            address = ADDRESS if header[3:4] in _WITH_ADDRESS else ""
            way = router.from_client(joint.name, header, key, body, now_ms, address)
            if router.outgoing.to_workers:
                self._pass_on(now_ms)  # the worker may need it first
            if way is not None:
                if self.watcher is not None:
                    self.watcher.asked(way[1], header, key, body)
                host.accept([way[1], header, key, body], now_ms)

    def _to_client(self, connection: ClientConnection, parts: list[bytes], now_ms: int) -> None:
        if connection.held or not self._takes(connection):
            self.router.unread.hold(connection, parts, now_ms)
        else:
            self._put(connection, parts)

    def _takes(self, connection: ClientConnection) -> bool:
        """Return whether there is room for a frame; False, too, if the client is gone."""
        joint = self._joints.get(connection.name)
        if joint is None:
            self.router.ended(connection)
            return False
        return len(joint.arrived) < DEFAULTS.pipe_frames

    def _put(self, connection: ClientConnection, parts: list[bytes]) -> None:
        joint = self._joints[connection.name]
        joint.arrived.append(parts)
        self._rung[joint] = None

    def _forget_closed(self) -> None:
        while self.closed:
            joint = self.closed.popleft()
            self._joints.pop(joint.name, None)
            self._rung.pop(joint, None)
            joint.arrived.clear()

    # --- between router and worker ------------------------------------------------------------------------------------

    def _from_worker(self, client: bytes, parts: Iterable[bytes], now_ms: int) -> None:
        header, key, body = parts
        if client and self.watcher is not None:
            self.watcher.answered(client, header, key, body)
        connection = self.router.from_worker(self._worker, client, header, key, body, now_ms)
        if connection is not None:
            self._to_client(connection, [header, key, body], now_ms)

    def _say(self, command: Command, now_ms: int) -> None:
        """Send a command of the worker itself."""
        self._requests += 1
        self._from_worker(b"", encode_command(command, self._requests), now_ms)

    def _pulse(self, now_ms: int) -> None:
        self._pulse_at_ms = now_ms + PULSE_MS
        if self._offered:
            self._say(Pulse(self._process.memory_info().rss, self.host.queues), now_ms)
        self.router.tick(now_ms)

    def _register(self, now_ms: int) -> None:
        """Offer the shards to the router, when they have changed."""
        host = self.host
        if host.offers == self._offered or host.config.unsettled:
            return
        host.new_session(now_ms)  # the router counts what it granted as spent
        shards = [(shard.index, shard.epoch) for shard in host.shards.values()]
        offer = Register(self._worker.decode(), os.getpid(), VERSION, shards)
        offer.config_version, offer.config, offer.parks = host.config.version, host.config.values, host.config.parks()
        offer.outages = host.slots.outages
        self._offered = host.offers
        self._offers[self._requests + 1] = host.offers
        self._say(offer, now_ms)
        self._pass_on(now_ms)

    def _pass_on(self, now_ms: int) -> None:
        """Send the router's own commands."""
        outgoing = self.router.outgoing
        while outgoing.to_workers or outgoing.to_clients or outgoing.notes:
            to_workers, to_clients, notes = outgoing.take()
            for _, _, header, key, body in to_workers:
                self._to_worker([b"", header, key, body], now_ms)
            for client, *parts in to_clients:
                connection = self.router.connection_of(client, len(parts[-1]), now_ms)
                if connection is not None:
                    self._to_client(connection, parts, now_ms)
            self.notes += notes

    def _to_worker(self, frame: list[bytes], now_ms: int) -> None:
        try:
            header = unpack_header(frame[1])
        except InvalidFrameError:
            return
        if not header.flags & REPLY:
            self._handed_over = True
            self.host.accept(frame, now_ms)
        elif header.opcode == Register.opcode:
            if header.flags & ERROR:
                raise from_fault(decode_body(Fault, frame[3]))
            offer = self._offers.pop(header.request, 0)
            self.host.registered(decode_body(Registered, frame[3]), now_ms, offer)
        # else the answer to a pulse, or to keys that were parked: there is no other worker to inform

    def _tidy(self) -> None:
        """Do the owner's part of the host's work."""
        host = self.host
        host.failed.clear()  # all clients came by the router
        if host.dropped:
            host.dropped = False
            gc.collect()  # the memory of the failed shard is all cycles, and its iterators keep its store locked
        host.recovered = False
        if host.notes:
            self.notes += host.notes
            host.notes.clear()
