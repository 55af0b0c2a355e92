"""The plain socket of a direct way: it connects without blocking, and moves frames.

A worker may have several endpoints. A socket on its own host comes first; the next one is tried when one does not answer.
"""

import errno
import math
import os
import socket
from collections import deque
from contextlib import suppress

from fila_cluster.client.protocol.session import ClientSession
from fila_cluster.client.requests.routes import DirectWay
from fila_proto_zmq.errors import InvalidFrameError
from fila_proto_zmq.stream import FrameReader, FrameWriter

READ_BYTES = 256 * 1024
ANSWER_BYTES = 64 * 1024
"""What is read of a short answer at once, with the deliveries that come beside it."""
CHECKED_S = 0.05
"""A wire that was read so long ago is read before something is sent: the worker may have closed it meanwhile."""
VIEW_BYTES_MIN = 16 * 1024
"""Larger bodies are decoded where they were read: decoding copies what it keeps of them."""
FRAME_BYTES_MAX = (1 << 32) - 1
"""A worker's frames are as large as its messages; the client has no bound of its own."""

_IPC = "ipc://"
_UNDER_WAY = frozenset({0, errno.EINPROGRESS, errno.EALREADY, errno.EINTR})


class Wire:
    """The connection of one direct way. ``router_host``: what ``*`` in an endpoint stands for.

    ``descriptor`` is the socket's, -1 if there is no socket. ``read_at`` is when it was read last.
    """

    def __init__(self, way: DirectWay, router_host: str) -> None:
        self.way = way
        self.connecting = False
        self.socket: socket.socket | None = None
        self.descriptor = -1
        self.read_at = -math.inf
        self._endpoints = deque(
            each for each in way.endpoints if not each.startswith(_IPC) or os.path.exists(each[len(_IPC) :])
        )
        self._endpoints.rotate(-way.failures)  # one that does not answer takes all the time of an attempt
        self._router_host = router_host
        self._reader = FrameReader(FRAME_BYTES_MAX, VIEW_BYTES_MIN)
        self._writer = FrameWriter()

    @property
    def wants_to_write(self) -> bool:
        """Whether something waits until the socket takes it."""
        return self.connecting or self._writer.size_bytes > 0

    def connect(self) -> bool:
        """Begin to connect to the next endpoint that can be tried; False if there is none."""
        while self._endpoints:
            endpoint = self._endpoints.popleft()
            try:
                failure = self._begin(endpoint)
            except (OSError, ValueError):
                failure = errno.EINVAL
            if failure in _UNDER_WAY and self.socket is not None:
                self.descriptor = self.socket.fileno()
                self.connecting = failure != 0
                return True
            self.close()
        return False

    def _begin(self, endpoint: str) -> int:
        if endpoint.startswith(_IPC):
            self.socket = socket.socket(socket.AF_UNIX)
            self.socket.setblocking(False)
            return self.socket.connect_ex(endpoint[len(_IPC) :])
        host, _, port = endpoint.removeprefix("tcp://").rpartition(":")
        host = self._router_host if host == "*" else host.strip("[]")
        family, *_, address = socket.getaddrinfo(host, int(port), type=socket.SOCK_STREAM)[0]
        self.socket = socket.socket(family, socket.SOCK_STREAM)
        self.socket.setblocking(False)
        self.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self.socket.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        return self.socket.connect_ex(address)

    def connected(self) -> bool:
        """Note whether the connection that was begun is there, else try the next endpoint; return False if there is none."""
        assert self.socket is not None
        if self.socket.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR) == 0:
            with suppress(OSError):  # not yet: the descriptor was not ready
                self.socket.getpeername()
                self.connecting = False
            return True
        self.close()
        return self.connect()

    def read(self, session: ClientSession, now: float, frames_max: int) -> bool | None:
        """Give the frames that have come to the session; True if there may be more, None if the connection is gone."""
        assert self.socket is not None
        reader, way, drained = self._reader, self.way, False
        try:
            for _ in range(frames_max):
                parts = reader.take() if reader.left else None
                while parts is None:
                    if drained:  # the socket gave less than it was asked for: it has no more, and asking costs an exception
                        return False
                    data = self.socket.recv(READ_BYTES)
                    if not data:
                        return None
                    drained = len(data) < READ_BYTES
                    reader.feed(data)
                    parts = reader.take()
                session.arrived(parts, now, way)
        except BlockingIOError:
            return False
        except (OSError, InvalidFrameError):
            return None
        return True

    def is_quiet(self, now: float) -> bool:
        """Return whether nothing is left to be sent, and nothing has come. It looks if it has not read lately."""
        if self._writer.size_bytes or self._reader.left or self._reader.have or self.socket is None:
            return False
        if now - self.read_at > CHECKED_S:
            try:
                self.socket.recv(1, socket.MSG_PEEK)
            except BlockingIOError:
                self.read_at = now
                return True
            except OSError:
                pass
            return False
        return True

    def send(self, frame: bytes) -> bool:
        """Send a frame behind all others, as far as the socket takes it; False if something is left to be sent."""
        assert self.socket is not None
        try:
            count = self.socket.send(frame)
        except OSError:  # if the connection is lost, the next attempt says so
            count = 0
        if count == len(frame):
            return True
        self._writer.append(frame[count:])
        return False

    def take_in(self, data: bytes, session: ClientSession, now: float) -> None:
        """Give the frames in what the socket gave to the session. A damaged one is found again by :meth:`read`."""
        reader = self._reader
        reader.feed(data)
        try:
            while reader.left and (parts := reader.take()) is not None:
                session.arrived(parts, now, self.way)
        except InvalidFrameError:
            return

    def write(self) -> bool:
        """Send the way's outgoing frames, as far as the socket takes them; False if the connection is gone."""
        assert self.socket is not None
        outgoing = self.way.outgoing
        frames = list(outgoing)
        outgoing.clear()
        try:
            self._writer.send(self.socket, frames)
        except OSError:
            return False
        return True

    def close(self) -> None:
        """Close the socket. Frames that were not sent are lost."""
        if self.socket is not None:
            self.socket.close()
            self.socket = None
            self.descriptor = -1
        self.connecting = False

    def disown(self) -> None:
        """Leave the connection to the parent, in the child of a fork."""
        self.close()  # the parent has a descriptor of its own
