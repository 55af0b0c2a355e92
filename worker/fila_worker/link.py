"""The link to the router: one DEALER socket that registers this worker, shows that it lives, and carries frames.

The worker's own frames (Register, Pulse, Leave) carry an empty client id. When the router does not know the worker, because
it was restarted, it answers a pulse with an error, and the worker registers again; ZeroMQ reconnects by itself.

A registration, or its answer, may be lost with a connection while the router knows the worker from an earlier one. Links keep
order. So if a pulse is answered before a registration that was sent earlier, that answer will not come, and the worker
registers again. Rejected: a timer, because it would queue up registrations while the router is away.
"""

import os
from collections import deque
from collections.abc import Iterator
from typing import Final

import psutil
import zmq

from fila_proto_zmq.codec import decode_body, encode_command, from_fault
from fila_proto_zmq.commands import Command, EndClient, Fault, Leave, Park, Pulse, PutKeys, Register, Registered
from fila_proto_zmq.errors import InvalidFrameError
from fila_proto_zmq.events import WorkerAdmitted
from fila_proto_zmq.frames import ERROR, HEADER_BYTES, REPLY, Header, unpack_header
from fila_proto_zmq.version import VERSION
from fila_worker.core.effects import Effect
from fila_worker.direct.clients import DirectClients
from fila_worker.host import Host
from fila_worker.replicated import MustEnd
from fila_worker.settings import WorkerSettings
from fila_worker.slots import Frame

PULSE_MS: Final = 250
"""How often the worker shows that it lives.

Pulses wait for the connection while the router is away. A router's restart takes longer than this, so a pulse waits when
the router is back, and reaches it at once.
"""
RECONNECT_MS_MAX: Final = 100
"""The longest pause between two attempts to reach the router.

It is short, because no queue is served meanwhile, and workers are few.
"""
DRAIN_FRAMES_MAX: Final = 128
"""Frames read in one turn: their writes share one commit, and a limit keeps their answers from waiting."""
DRAIN_BYTES_MAX: Final = 1 * 1024 * 1024
COPY_BYTES_MAX: Final = 16 * 1024
"""Larger bodies are decoded from ZeroMQ's own memory: their messages are copied once, not twice."""


FRAME_PARTS: Final = 4
"""Client, header, routing key, body."""
PULSES_MAX: Final = 16
"""Unanswered pulses that are remembered: a later answer says more than an earlier one."""
_POLLIN: Final = int(zmq.POLLIN)


class Link:
    """The worker's side of the wire to the router."""

    def __init__(self, settings: WorkerSettings, host: Host, clients: DirectClients, doors: list[str]) -> None:
        """``clients``: those at the worker's own door, which clients find at ``doors``."""
        self._settings = settings
        self._host = host
        self._clients = clients
        self._doors = doors
        self._pulses: deque[tuple[int, int]] = deque(maxlen=PULSES_MAX)
        """The pulses without an answer, as ``(request, when it was sent)``."""
        self._process = psutil.Process()
        self._requests = 0
        self.next_pulse_ms = 0
        self._confirmed: list[int] = []
        self._offers: dict[int, int] = {}
        """For each unanswered registration, by request, the host's ``offers`` that it contained."""
        self._offered = 0
        """The host's ``offers`` that were registered last."""
        self._admitted = False
        """Whether the router has answered a registration of this process."""
        self.ready = True
        """Whether a frame may wait; the owner knows it from its wait, which is cheaper than asking the socket."""
        self.drained = False
        """Whether no more frames waited when frames were last received."""
        self._used = False
        """Whether something was sent since the socket was last asked for frames."""
        self.left = False
        """Whether the router has confirmed that it sends nothing more here."""
        self.socket: zmq.Socket[bytes] = zmq.Context.instance().socket(zmq.DEALER)
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
            (zmq.IPV6, int("[" in settings.router)),
        ):
            self.socket.setsockopt(option, value)
        if settings.keys is not None:
            for key, text in (
                (zmq.CURVE_SERVERKEY, settings.keys.server_key),
                (zmq.CURVE_PUBLICKEY, settings.keys.public_key),
                (zmq.CURVE_SECRETKEY, settings.keys.secret_key),
            ):
                self.socket.setsockopt(key, text.encode())
        self.socket.connect(settings.router)
        self.descriptor = int(self.socket.getsockopt(zmq.FD))
        """Readable when something has happened at the socket. It shows each arrival once: see :attr:`has_more`."""

    @property
    def has_more(self) -> bool:
        """Whether frames may wait that the descriptor does not show: ask it before each wait.

        ZeroMQ also takes note of arrivals when something is sent, and the descriptor is silent about them from then on.
        """
        if self._used:
            self._used = False
            self.drained = self.drained and not self._readable
        return not self.drained

    def register(self, now_ms: int) -> None:
        """Offer this worker's shards to the router, with the cluster's config as the worker knows it.

        While a change of the config waits to be confirmed, the offer waits, too: a router would spread what may be lost.
        """
        host = self._host
        if host.config.unsettled:
            return
        shards = [(shard.index, shard.epoch) for shard in host.shards.values()]
        host.registers(now_ms)
        offer = Register(self._settings.name, os.getpid(), VERSION, shards)
        offer.config_version, offer.config, offer.parks = host.config.version, host.config.values, host.config.parks()
        offer.outages = host.outages
        offer.home, offer.draining = host.home, host.draining
        if self._doors:
            offer.door, offer.endpoints = self._clients.door, self._doors
        self._offered = host.offers
        self._say(offer)
        self._offers[self._requests] = host.offers

    def register_changes(self, now_ms: int) -> None:
        """Register again if a shard began or ceased to serve."""
        if self._host.offers != self._offered:
            self.register(now_ms)

    def pulse(self, now_ms: int) -> None:
        """Show that the worker lives, a few times a second."""
        if now_ms >= self.next_pulse_ms:
            self.next_pulse_ms = now_ms + PULSE_MS
            clients = self._clients
            acts, rss_bytes = clients.audit.take(), self._process.memory_info().rss
            pulse = Pulse(rss_bytes, self._host.queues, clients.clients, clients.frames, acts, clients.keys_version)
            pulse.stored_keys = self._host.config.keys_version
            self._say(pulse)
            self._pulses.append((self._requests, now_ms))

    def park(self, parks: dict[str, int]) -> int:
        """Ask the router to have throttle keys parked everywhere; return the request that it confirms."""
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
        self.socket.send_multipart([b"", *encode_command(command, self._requests)])

    def receive(self, now_ms: int) -> Iterator[Frame]:
        """Yield the clients' frames that wait, up to a turn's worth; the caller carries out each at once. Call it if ``ready``.

        Answers to the worker itself are handled here.

        Clients' frames that come before the first registration is answered were meant for an earlier life of this worker,
        which had state that this one does not have. They are dropped: the router has answered for them.
        """
        frames = bytes_read = 0
        self.drained = False
        while frames < DRAIN_FRAMES_MAX and bytes_read < DRAIN_BYTES_MAX and not self._host.full:
            if not self._readable:
                self.drained = True
                break
            parts = self.socket.recv_multipart(zmq.NOBLOCK, copy=False)
            frame: Frame = [part.bytes if len(part) < COPY_BYTES_MAX else part.buffer for part in parts]
            if self._admitted if frame[0] else not self._is_for_us(frame, now_ms):
                frames += 1
                bytes_read += len(frame[-1])
                if self._clients.busy and len(frame) == FRAME_PARTS and len(frame[1]) == HEADER_BYTES:
                    self._clients.came_by_router(frame)
                yield frame

    @property
    def _readable(self) -> bool:
        """Whether a frame waits. An empty socket is no exception here: many turns find one."""
        return bool(int(self.socket.getsockopt(zmq.EVENTS)) & _POLLIN)

    def _is_for_us(self, frame: Frame, now_ms: int) -> bool:
        """Handle an answer of the router, or the API keys that it sends. Return False for a request that the host carries out."""
        try:
            header = unpack_header(frame[1])
        except (InvalidFrameError, IndexError):
            return False
        if header.flags & ERROR and header.opcode == Register.opcode:
            if header.request < max(self._offers, default=0):
                return True  # a later offer is under way, perhaps without the shard that another worker has by now
            refusal = from_fault(decode_body(Fault, frame[3]))  # another worker has these shards with a later epoch
            if self._settings.replication is not None:  # a new leader was faster than the log here
                raise MustEnd(str(refusal))
            raise refusal
        if not header.flags & REPLY:
            if header.opcode == PutKeys.opcode:
                put = decode_body(PutKeys, frame[3])
                self._clients.put_keys(put.keys, put.version)
            elif header.opcode == EndClient.opcode:
                self._clients.end(decode_body(EndClient, frame[3]).client)
            return header.opcode == PutKeys.opcode
        if header.opcode == Pulse.opcode:
            self._pulsed(header, now_ms)
        elif header.flags & ERROR:
            return True
        elif header.opcode == Register.opcode:
            self._registered(header.request, decode_body(Registered, frame[3]), now_ms)
        elif header.opcode == Leave.opcode:
            self.left = True
        elif header.opcode == Park.opcode:
            self._confirmed.append(header.request)
        return True

    def _pulsed(self, header: Header, now_ms: int) -> None:
        """Register again if the router does not know the last offer; once, however many pulses waited for its return."""
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
        self._host.registered(reply, now_ms, offer)
        if self._host.shards:
            self._host.notes.append(WorkerAdmitted(self._settings.router, list(self._host.shards)))

    def send(self, effects: list[Effect]) -> None:
        """Send a committed turn's effects."""
        for effect in effects:
            self._used = True
            self.socket.send_multipart([effect.client, *effect.frames()])

    def close(self) -> None:
        """Send what waits, for a second at most, and close the socket."""
        self.socket.close()
