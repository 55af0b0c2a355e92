"""The link to one router: a DEALER socket that registers this worker, sends pulses, and carries frames.

The worker's own frames (Register, Pulse, Leave) carry an empty client id. A restarted router has no entry of the worker. It
answers a pulse with an error, and the worker registers again. ZeroMQ reconnects.

A registration or its answer may be lost with a connection while the router still has an older entry. Links keep order. So if
a pulse is answered before a registration that was sent earlier, that answer will not come, and the worker registers again.
Rejected: a timeout, because registrations would queue up while the router is away.

What a worker sent before it was killed may be read, and answered, when its next process has connected. So request ids begin with
a number of the process, and answers to other processes are dropped.
"""

import os
from collections import deque
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Final

import zmq

from fila_proto_zmq.codec import decode_body, encode_command, from_fault
from fila_proto_zmq.commands import Command, EndClient, Fault, Leave, Park, Pulse, Pulsed, PutKeys, Register, Registered
from fila_proto_zmq.errors import InvalidFrameError
from fila_proto_zmq.events import WorkerAdmitted
from fila_proto_zmq.frames import ERROR, HEADER_BYTES, REPLY, Header, unpack_header
from fila_proto_zmq.version import VERSION
from fila_worker.core.effects import Effect
from fila_worker.process.shard_process import ShardProcess
from fila_worker.process.slots import Frame
from fila_worker.replication.replicated import MustEnd
from fila_worker.settings import WorkerSettings
from fila_worker.transport.direct_clients import DirectClients

RECONNECT_MS_MAX: Final = 100
"""The longest pause between two attempts to reach the router. Short: queues are not served meanwhile, and workers are few."""
HEARTBEAT_MS: Final = 1000
HEARTBEAT_TIMEOUT_MS: Final = 8000
"""ZeroMQ's heartbeat interval with several routers, and how long it waits for any frame.

A connection whose network was cut stays, and TCP retries ever more seldom: after a cut of 30 s it was dead for 5 s more, and
a new one takes 0.2 s. Clients of that router wait meanwhile. Large frames delay heartbeats on a slow network, so it is not
shorter.
"""
CONNECT_MS_MAX: Final = 1000
"""How long an attempt to connect may take: the system's own attempts become ever rarer."""
DRAIN_FRAMES_MAX: Final = 128
"""Frames read in one turn: their writes share one commit, and a limit keeps their answers from waiting."""
DRAIN_BYTES_MAX: Final = 1 * 1024 * 1024
COPY_BYTES_MAX: Final = 16 * 1024
"""Larger bodies are decoded from ZeroMQ's own memory: their messages are copied once, not twice."""


FRAME_PARTS: Final = 4
"""Client, header, routing key, body."""
PULSES_MAX: Final = 16
"""Unanswered pulses that are remembered: only the latest answers matter."""
SILENT_MS: Final = 2000
"""A router without a frame for so long is lost until its next frame. It answers pulses, and probes a few times a second."""
LIFE_BITS: Final = 32
"""The bits of a request id below the number of the process."""
_POLLIN: Final = int(zmq.POLLIN)
_POLLOUT: Final = int(zmq.POLLOUT)


@dataclass(slots=True)
class Intake:
    """The frames and bytes that may still be read in a turn, from all links together."""

    frames: int = 0
    size_bytes: int = 0

    def begin_turn(self) -> None:
        """Take a turn's worth."""
        self.frames, self.size_bytes = DRAIN_FRAMES_MAX, DRAIN_BYTES_MAX


class RouterSocket:
    """The worker's side of the wire to one router."""

    def __init__(
        self,
        settings: WorkerSettings,
        host: ShardProcess,
        clients: DirectClients,
        doors: list[str],
        number: int = 0,
        endpoint: str = "",
    ) -> None:
        """``clients``: those at the client socket, which clients find at ``doors``. ``number``: its place among the links.
        ``endpoint``: the router's; empty: of this host's."""
        self.number = number
        self.has_bank = False
        """Whether this router holds the token bank."""
        self.pulsed = Pulsed()
        """The router's last answer to a pulse. Its ``at_ms`` is 0 while that may be of an earlier process of the router."""
        self._endpoint = endpoint or settings.router
        self._settings = settings
        self._host = host
        self._clients = clients
        self._doors = doors
        self._several = bool(settings.other_routers) or settings.replication is not None
        self._pulses: deque[tuple[int, int]] = deque(maxlen=PULSES_MAX)
        """The pulses without an answer, as ``(request, when it was sent)``."""
        self._life = int.from_bytes(clients.door[:4])
        """The number of this process."""
        self._requests = self._life << LIFE_BITS
        self._confirmed: list[int] = []
        self._offers: dict[int, int] = {}
        """For each unanswered registration, by request, the host's ``offers`` that it contained."""
        self._offered = 0
        """The host's ``offers`` that were registered last."""
        self._admitted = False
        """Whether the router has answered a registration of this process."""
        self._heard_ms = 0
        """When the last frame of the router itself came."""
        self._unsent = False
        """Whether a frame was dropped without a connection, so that the router lacks it."""
        self.ready = True
        """Whether a frame may wait. The owner sets it after its wait, which is cheaper than to ask the socket."""
        self.drained = False
        """Whether no more frames waited when frames were last received."""
        self._used = False
        """Whether something was sent since the socket was last asked for frames."""
        self.left = False
        """Whether the router has confirmed that it sends nothing more here."""
        self._flags = int(zmq.NOBLOCK) if self._several else 0
        self.socket = _connect(settings, self._endpoint, several=self._several)
        self.descriptor = int(self.socket.getsockopt(zmq.FD))
        """Readable when something has happened at the socket. It shows each arrival once: see :attr:`has_more`."""

    @property
    def has_more(self) -> bool:
        """Whether frames may wait that the descriptor does not show: ask it before each wait.

        ZeroMQ also notes arrivals when it sends, and then the descriptor does not show them.
        """
        if self._used:
            self._used = False
            self.drained = self.drained and not self._readable
        return not self.drained

    def lives(self, now_ms: int) -> bool:
        """Return whether the router routes to this worker and has sent a frame a moment ago."""
        return self._admitted and now_ms - self._heard_ms < SILENT_MS

    def register(self, now_ms: int) -> None:
        """Offer this worker's shards to the router, with the config of its latest copy.

        While a change of the config is unconfirmed, the offer waits, too: the router would spread what may be lost.
        """
        host = self._host
        if host.config.unsettled:
            return
        shards = [(shard.index, shard.epoch) for shard in host.shards.values()]
        if self.has_bank:  # the router counts what it granted as spent
            host.new_session(now_ms)
        self.pulsed = Pulsed(0, self.pulsed.bank)
        offer = Register(self._settings.name, os.getpid(), VERSION, shards)
        offer.config_version, offer.config, offer.parks = host.config.version, host.config.values, host.config.parks()
        offer.outages = host.slots.outages
        offer.home, offer.draining = host.home, host.draining
        if self._doors:
            offer.door, offer.endpoints = self._clients.door, self._doors
        self._offered, self._unsent = host.offers, False
        self._say(offer)
        self._offers[self._requests] = host.offers

    def register_changes(self, now_ms: int) -> None:
        """Register again if a shard began or ceased to serve, or after a new connection."""
        if self._host.offers != self._offered or (self._unsent and self._is_connected):
            self.register(now_ms)

    def pulse(self, pulse: Pulse, now_ms: int) -> None:
        """Send a pulse."""
        self._say(pulse)
        self._pulses.append((self._requests, now_ms))

    def park(self, parks: dict[str, int]) -> int:
        """Ask the router to park throttle keys at all workers; return the request that it confirms."""
        self._say(Park(parks))
        return self._requests

    def take_confirmed(self) -> list[int]:
        """Return the requests to park that were confirmed, once."""
        confirmed, self._confirmed = self._confirmed, []
        return confirmed

    def leave(self) -> None:
        """Ask the router to send nothing more here."""
        self._say(Leave())

    def _say(self, command: Command) -> None:
        self._requests += 1
        self._used = True
        try:
            self.socket.send_multipart([b"", *encode_command(command, self._requests)], self._flags)
        except zmq.Again:
            self._unsent = True

    @property
    def _is_connected(self) -> bool:
        return bool(int(self.socket.getsockopt(zmq.EVENTS)) & _POLLOUT)

    def receive(self, now_ms: int, intake: Intake) -> Iterator[Frame]:
        """Yield the waiting frames of clients, within the turn's intake; the caller carries out each at once. Call it if
        ``ready``.

        Answers to the worker itself are handled here. Clients' frames before the answer to the first registration were for an
        earlier process of this worker, with a state that this one does not have. They are dropped: the router has answered
        them.
        """
        frames, size_bytes = intake.frames, intake.size_bytes
        self.drained = False
        while frames > 0 and size_bytes > 0 and not self._host.full:
            if not self._readable:
                self.drained = True
                break
            parts = self.socket.recv_multipart(zmq.NOBLOCK, copy=False)
            frame: Frame = [part.bytes if len(part) < COPY_BYTES_MAX else part.buffer for part in parts]
            if self._admitted if frame[0] else not self._is_for_us(frame, now_ms):
                frames -= 1
                size_bytes -= len(frame[-1])
                if self._clients.busy and len(frame) == FRAME_PARTS and len(frame[1]) == HEADER_BYTES:
                    self._clients.came_by_router(frame)
                yield frame
        intake.frames, intake.size_bytes = frames, size_bytes

    @property
    def _readable(self) -> bool:
        """Whether a frame waits. Not by an exception, because many turns find an empty socket."""
        return bool(int(self.socket.getsockopt(zmq.EVENTS)) & _POLLIN)

    def _is_for_us(self, frame: Frame, now_ms: int) -> bool:
        """Handle an answer of the router, or its API keys. Return False for a request that the process carries out."""
        self._heard_ms = now_ms
        try:
            header = unpack_header(frame[1])
        except (InvalidFrameError, IndexError):
            return False
        if header.flags & REPLY and header.request and header.request >> LIFE_BITS != self._life:
            return True  # it answers an earlier process of this worker
        if header.flags & ERROR and header.opcode == Register.opcode:
            if header.request < max(self._offers, default=0):
                return True  # a later offer is under way, perhaps without the shard that another worker has by now
            refusal = from_fault(decode_body(Fault, frame[3]))  # another worker has these shards with a later epoch
            if self._settings.replication is not None:  # a new leader was faster than the log here
                raise MustEnd(str(refusal))
            raise refusal
        if not header.flags & REPLY:
            return self._is_for_client_socket(header, frame, now_ms)
        if header.opcode == Pulse.opcode:
            if header.request and not header.flags & ERROR:
                self.pulsed = decode_body(Pulsed, frame[3])
            self._heed_answer(header, now_ms)
        elif header.flags & ERROR:
            return True
        elif header.opcode == Register.opcode:
            self._registered(header.request, decode_body(Registered, frame[3]), now_ms)
        elif header.opcode == Leave.opcode:
            self.left = True
        elif header.opcode == Park.opcode:
            self._confirmed.append(header.request)
        return True

    def _is_for_client_socket(self, header: Header, frame: Frame, now_ms: int) -> bool:
        """Apply a router's request to the client socket. Return False if the process carries it out, too."""
        if header.opcode == PutKeys.opcode:
            self._clients.put_keys(decode_body(PutKeys, frame[3]), self.number)
            return True
        if header.opcode == EndClient.opcode:
            end = decode_body(EndClient, frame[3])
            if end.unreached:
                self._clients.lose(end.client, self.number, now_ms)
                return True
            self._clients.end(end.client)
        return False

    def _heed_answer(self, header: Header, now_ms: int) -> None:
        """Register again if the router lacks the last offer; once, for any number of waiting pulses."""
        offered = max(self._offers, default=0)
        self._note_answer(header)
        unknown = header.flags & ERROR and (header.request == 0 or offered < header.request)
        if unknown or 0 < offered < header.request:
            self.register(now_ms)

    def _note_answer(self, header: Header) -> None:
        """Note that the router counts this worker among the living, as of the pulse that it answers."""
        while self._pulses and self._pulses[0][0] <= header.request:
            request, sent_ms = self._pulses.popleft()
            if request == header.request and not header.flags & ERROR and self._admitted:
                self._clients.trust(sent_ms)

    def _registered(self, request: int, reply: Registered, now_ms: int) -> None:
        offer = self._offers.get(request, 0)
        self._offers = {later: offers for later, offers in self._offers.items() if later > request}
        self._admitted = True
        self._host.registered(reply, now_ms, offer, self.number)
        if self._host.shards:
            self._host.notes.append(WorkerAdmitted(self._endpoint, list(self._host.shards)))

    def send(self, effects: Iterable[Effect]) -> None:
        """Send a committed turn's effects."""
        try:
            for effect in effects:
                self._used = True
                self.socket.send_multipart([effect.client, *effect.frames()], self._flags)
        except zmq.Again:
            self._unsent = True

    def close(self) -> None:
        """Send what waits, for a second at most, and close the socket."""
        self.socket.close()


def _connect(settings: WorkerSettings, endpoint: str, *, several: bool) -> "zmq.Socket[bytes]":
    """Return a socket that connects to a router. ``several``: whether it is one of many."""
    made: zmq.Socket[bytes] = zmq.Context.instance().socket(zmq.DEALER)
    for option, value in (
        (zmq.IDENTITY, settings.name.encode()),
        (zmq.LINGER, 1000),
        (zmq.SNDHWM, 0),
        (zmq.RCVHWM, 0),
        (zmq.SNDBUF, 1 << 20),
        (zmq.RCVBUF, 1 << 20),
        (zmq.RECONNECT_IVL, 20),
        (zmq.RECONNECT_IVL_MAX, RECONNECT_MS_MAX),
        (zmq.TCP_KEEPALIVE, 1),
        (zmq.IPV6, int("[" in endpoint)),
        (zmq.IMMEDIATE, int(several)),  # of several routers one may be away for long: nothing is kept for it
        (zmq.HEARTBEAT_IVL, HEARTBEAT_MS if several else 0),
        (zmq.HEARTBEAT_TIMEOUT, HEARTBEAT_TIMEOUT_MS),
        (zmq.CONNECT_TIMEOUT, CONNECT_MS_MAX if several else 0),
    ):
        made.setsockopt(option, value)
    if settings.keys is not None:
        for key, text in (
            (zmq.CURVE_SERVERKEY, settings.keys.server_key),
            (zmq.CURVE_PUBLICKEY, settings.keys.public_key),
            (zmq.CURVE_SECRETKEY, settings.keys.secret_key),
        ):
            made.setsockopt(key, text.encode())
    made.connect(endpoint)
    return made
