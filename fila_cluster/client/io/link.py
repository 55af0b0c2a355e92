"""The socket under both shells, and the exchange of frames in both directions.

ZeroMQ's file descriptor is edge-triggered: it becomes readable once, and any operation on the socket may swallow the edge.
So after any use of the socket, :meth:`RouterLink.exchange` reads messages until there are none, before a thread sleeps on the
descriptor. One poll call reads the state of the socket and of its monitor, which reports a lost connection. The monitor is
read before anything is sent, so that an earlier loss does not fail a new call.

Rejected: ``zmq.asyncio`` (a future per frame, several times the cost) and ``recv_multipart`` (asks for RCVMORE after each
part, 7 µs instead of 2).

After a fork, a client of the parent only raises a clear error in the child. The socket, its thread and the broker's leases
are the parent's. So in the child every earlier client refuses to be used, gives out no prefetched deliveries, and drops its
socket without touching it.
"""

import math
import os
import weakref
from struct import Struct
from typing import Any, Protocol

import zmq

from fila_cluster.client.protocol.session import ClientSession
from fila_cluster.client.requests.endpoints import PAUSE_S_MAX, PAUSE_S_MIN
from fila_proto_zmq.errors import FilaError
from fila_proto_zmq.frames import HEADER_BYTES


class Disowned(Protocol):
    """An object that belongs to the process that made it."""

    def disown(self, error: FilaError) -> None:
        """Refuse everything from now on with ``error``, in the child of a fork."""


_all: "weakref.WeakSet[Disowned]" = weakref.WeakSet()


def leave_to_the_parent(owned: Disowned) -> None:
    """Disown ``owned`` in every child of a fork."""
    _all.add(owned)


def _disown_all() -> None:
    for owned in list(_all):
        owned.disown(FilaError("this client was opened before the fork: open another one in the child process"))


os.register_at_fork(after_in_child=_disown_all)


FRAMES_PER_EXCHANGE = 256
"""The most frames that an exchange reads, so that an event loop gets to its other tasks."""
_LOOK_S = 0.02
"""A sender may notice a lost connection this late: then its call counts as lost with it."""

_OPTIONS = (
    (zmq.LINGER, 0),  # closing waits for the broker's answer, not for the socket
    (zmq.SNDHWM, 0),  # the calls bound what is in flight, and a frame must never be dropped or block
    (zmq.RCVHWM, 0),
    (zmq.IMMEDIATE, 0),
    (zmq.TCP_KEEPALIVE, 1),
    (zmq.TCP_KEEPALIVE_IDLE, 30),
    (zmq.TCP_KEEPALIVE_INTVL, 5),
    (zmq.TCP_KEEPALIVE_CNT, 3),
    (zmq.RECONNECT_IVL, round(1000 * PAUSE_S_MIN)),
    (zmq.RECONNECT_IVL_MAX, round(1000 * PAUSE_S_MAX)),
)
_LATER_MS = 3_600_000
"""When libzmq connects a link again that is made once: the link is dropped long before. With "never" (-1) libzmq takes the
connection from the socket as soon as it is gone, and ends the process if a message was read only in part at that moment
(libzmq 4.3.5, an assertion in fq.cpp)."""
HEARTBEAT_MS = 200
"""How often ZeroMQ asks the router for a sign of life, if it may be silent for half a second; else less often."""
_PER_SILENCE = 6
"""Signs of life that may be missing."""
CONNECT_MS_MAX = 5_000
"""How long libzmq tries to connect again before another attempt: the system's own ones come ever more seldom."""
_EVENTS = (
    zmq.EVENT_DISCONNECTED
    | zmq.EVENT_HANDSHAKE_SUCCEEDED
    | zmq.EVENT_HANDSHAKE_FAILED_NO_DETAIL
    | zmq.EVENT_HANDSHAKE_FAILED_PROTOCOL
)
_EVENTS_OF_ONCE = _EVENTS | zmq.EVENT_CLOSED
"""The events of a link that is made once, which also end when no connection can be made."""
_EVENT = Struct("=hi")
"""The event and its value, in a monitor's message."""
_MISMATCH = int(zmq.PROTOCOL_ERROR_ZMTP_MECHANISM_MISMATCH)
# As plain numbers: pyzmq's enums cost a lookup each.
_FIRST = int(zmq.SNDMORE | zmq.NOBLOCK)
_POLLIN, _NOBLOCK, _SNDMORE, _RCVMORE = int(zmq.POLLIN), int(zmq.NOBLOCK), int(zmq.SNDMORE), int(zmq.RCVMORE)


class Bell:
    """A descriptor that :meth:`ring` makes readable."""

    def __init__(self) -> None:
        self.descriptor, self._rope = os.pipe()
        os.set_blocking(self.descriptor, False)
        os.set_blocking(self._rope, False)
        self._ends = [self.descriptor, self._rope]
        self._rung = False

    def ring(self) -> None:
        """Make it readable."""
        if not self._rung:
            os.write(self._rope, b"!")  # first: an interrupt in between rings twice, and not never
            self._rung = True

    def silence(self) -> None:
        """Make it quiet again."""
        if self._rung:
            self._rung = False
            os.read(self.descriptor, 16)

    def close(self) -> None:
        """Close both ends."""
        while self._ends:
            os.close(self._ends.pop())


class RouterLink:
    """One DEALER socket and its monitor, in a context of their own: closing it leaves nothing behind."""

    def __init__(
        self, endpoint: str, server_key: str | None = None, *, again: bool = True, silence_s: float | None = None
    ) -> None:
        """``server_key``: the server's public key, 40 characters of Z85, if the connection is to be encrypted.

        ``again``: whether libzmq connects again by itself. ``silence_s``: how long the router may leave a heartbeat
        unanswered.
        """
        self._encrypted = server_key is not None
        self._again = again
        self.dead = False
        """Whether the server speaks in another way, so that libzmq does not connect again."""
        self.lost = False
        """Whether the connection is gone, or could not be made, and libzmq does not connect again."""
        self.refused: str | None = None
        """Why the server refused the last handshake; the owner resets it."""
        self.accepted = False
        """Whether the server has accepted a handshake."""
        self._disowned = False
        self._looked_at = -math.inf
        self._context: zmq.Context[Any]
        try:
            self._context = zmq.Context()
            self._connect(endpoint, server_key, silence_s)
        except BaseException:  # an interrupt, or the process has no descriptors left
            if hasattr(self, "_context"):
                self._context.destroy(0)
            raise

    def _connect(self, endpoint: str, server_key: str | None, silence_s: float | None) -> None:
        self._socket = self._context.socket(zmq.DEALER)
        for option, value in _OPTIONS:
            self._socket.set(option, value)
        self._socket.set(zmq.IPV6, int("[" in endpoint))
        if not self._again:
            self._socket.set(zmq.RECONNECT_IVL, _LATER_MS)
        if silence_s is not None:
            self._socket.set(zmq.HEARTBEAT_IVL, max(HEARTBEAT_MS, round(1000 * silence_s / _PER_SILENCE)))
            self._socket.set(zmq.HEARTBEAT_TIMEOUT, round(1000 * silence_s))
            self._socket.set(zmq.CONNECT_TIMEOUT, CONNECT_MS_MAX)
        if server_key is not None:
            public_key, secret_key = zmq.curve_keypair()  # of this connection: who the client is, its API key says
            self._socket.curve_serverkey = server_key.encode()
            self._socket.curve_publickey, self._socket.curve_secretkey = public_key, secret_key
        self._monitor = self._socket.get_monitor_socket(_EVENTS if self._again else _EVENTS_OF_ONCE)
        self._both = [(self._socket, _POLLIN), (self._monitor, _POLLIN)]
        self._socket.connect(endpoint)
        self.descriptors = (int(self._socket.get(zmq.FD)), int(self._monitor.get(zmq.FD)))

    def exchange(self, session: ClientSession, now: float, *, arrived: bool) -> bool:
        """Send the outgoing frames and read arrived ones; True if there are more than were read.

        ``arrived``: the descriptors are readable. Otherwise frames are read only after sending, or if the last time was a
        while ago.
        """
        more = (arrived or now - self._looked_at > _LOOK_S) and self._take_in(session, now)
        session.flush(now)
        while session.outgoing and not (self.dead or self.lost) and self._send(session):
            more = self._take_in(session, now)
        return more

    @property
    def closed(self) -> bool:
        """Whether it can't be used any more. Garbage is collected in any order, and its sockets close themselves."""
        return self._disowned or self._socket.closed or self._monitor.closed

    def disown(self) -> None:
        """Leave the sockets to the parent, in the child of a fork: ZeroMQ's thread is not here, nothing may wait for it."""
        self._disowned = True

    def close(self) -> None:
        """Close the sockets, dropping frames that were not sent."""
        if self._disowned or self._context.closed:
            return
        if not self._socket.closed:
            self._socket.disable_monitor()
        self._monitor.close(0)
        self._socket.close(0)
        self._context.term()

    def _send(self, session: ClientSession) -> bool:
        """Send the outgoing frames. Return False if the socket takes nothing: the monitor will report a dead link."""
        send, outgoing = self._socket.send, session.outgoing
        while outgoing:
            header, key, body = outgoing[0]
            try:
                send(header, _FIRST)
            except zmq.Again:  # libzmq has given up the connection: a send that waits would wait for ever
                return False
            outgoing.popleft()
            send(key, _SNDMORE)
            send(body)
        return True

    def _take_in(self, session: ClientSession, now: float) -> bool:
        self._looked_at = now
        for _ in range(FRAMES_PER_EXCHANGE):
            ready = zmq.zmq_poll(self._both, 0)
            if not ready:
                return False
            if ready[0][0] is self._socket:  # first in the list, so that answers count before the loss of the link
                self._read_frame(session, now)
            else:
                self._read_monitor(session, now)
        return True

    def _read_frame(self, session: ClientSession, now: float) -> None:
        recv = self._socket.recv
        header = recv(_NOBLOCK)
        if len(header) != HEADER_BYTES:  # another program, or an interrupt came in between; skip to the next message
            while self._socket.get(_RCVMORE):
                recv(_NOBLOCK)
            return
        try:
            session.arrived((header, recv(_NOBLOCK), recv(_NOBLOCK)), now)
        except zmq.Again:  # fewer parts: another program
            return

    def _read_monitor(self, session: ClientSession, now: float) -> None:
        event, code = _EVENT.unpack(self._monitor.recv_multipart(_NOBLOCK)[0])
        if event == zmq.EVENT_CLOSED or (event == zmq.EVENT_DISCONNECTED and not self._again):
            self.lost = True
        elif event == zmq.EVENT_DISCONNECTED:
            session.disconnected(now)
        elif event == zmq.EVENT_HANDSHAKE_SUCCEEDED:
            self.accepted = True
        else:
            self.dead = event == zmq.EVENT_HANDSHAKE_FAILED_PROTOCOL
            self.refused = _why_refused(encrypted=self._encrypted, mismatch=code == _MISMATCH)


def _why_refused(*, encrypted: bool, mismatch: bool) -> str:
    """Return why a server refused the handshake of CurveZMQ, as far as libzmq reports it."""
    if not encrypted:
        return "the server refuses connections without encryption: pass its public key as server_key=, or set FILA_SERVER_KEY"
    if mismatch:
        return "the server does not encrypt: leave out server_key= (FILA_SERVER_KEY), if you trust the network"
    return (
        "the encrypted handshake failed: server_key= (FILA_SERVER_KEY) is not this server's public key, "
        "or it does not encrypt"
    )
