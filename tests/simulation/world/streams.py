"""Plain stream sockets in the virtual world, and the selector that a worker's door looks through.

What is kept of the real thing: bytes arrive in order, and in pieces; a socket takes only what its buffer has room for; the end of a
process closes its sockets, and what its peer had not been sent by then is lost; a connection that breaks loses what is under way from
some byte on, in both directions, and each end notices in its own time; a name and a port that no process listens on are refused.
"""

import errno
import select
import socket as real
from collections import deque
from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any

from fila_proto_zmq.stream import FrameReader
from tests.simulation.world.sockets import Network, StopDescriptor

CAPACITY_BYTES = 3000
"""What a connection takes in one direction before it is read: little, so that writers have to wait."""

READ, WRITE = select.EPOLLIN, select.EPOLLOUT


class Tap:
    """Frames out of the bytes of one direction, for those who watch the wire."""

    def __init__(self) -> None:
        self._reader = FrameReader(1 << 30)

    def frames(self, data: bytes) -> list[list[bytes]]:
        self._reader.feed(data)
        found = []
        while (parts := self._reader.take()) is not None:
            found.append([*parts])
        return found


class Stream:
    """One connection: ``ends[0]`` is the client's, ``ends[1]`` the worker's."""

    def __init__(self, network: Network, client: "StreamSocket", worker: "StreamSocket") -> None:
        self.network = network
        self.ends = (client, worker)
        self.alive = True
        self.flights: tuple[deque[bytes], deque[bytes]] = (deque(), deque())
        """Bytes under way to each end."""
        self.waiting = [0, 0]
        """Bytes that were sent to each end and not read there."""
        self._arrived = Tap()
        self._last_us = [0, 0]
        self.number = network.new_number()
        network.streams[self.number] = self

    def __str__(self) -> str:
        return f"{self.ends[0].owner.name} from {self.ends[1].owner.name}'s door"

    def send(self, data: bytes, to: int) -> None:
        """Put bytes on their way to an end. If the connection is broken, and the sender does not know, they are lost."""
        if not self.alive:
            return
        self.waiting[to] += len(data)
        network = self.network
        when_us = max(network.world.now_us + network.latency(), self._last_us[to])
        self._last_us[to] = when_us
        self.flights[to].append(data)
        network.world.at(when_us, self._arrive, data, to)

    def _arrive(self, data: bytes, to: int) -> None:
        flight = self.flights[to]
        if not flight or flight[0] is not data:
            return  # lost
        flight.popleft()
        if to == 0 and not self.ends[0].closed:
            for frame in self._arrived.frames(data):
                for seen in self.network.direct_arrivals:
                    seen(frame)
        self.ends[to].take_in(data)

    def end(self, by: int) -> None:
        """One end was closed: the other one reads what is under way, and then the end; what was sent here is lost."""
        if not self.alive:
            return
        self.alive = False
        del self.network.streams[self.number]
        self.flights[by].clear()
        other = self.ends[1 - by]
        when_us = max(self.network.world.now_us + self.network.latency(), self._last_us[1 - by])
        self.network.world.at(when_us, other.ended, 0)

    def cut(self, *, kept: float = 0.5, notice_us: tuple[int, int] = (0, 200_000)) -> None:
        """Break: of what is under way some arrives, and each end notices when it does."""
        if not self.alive:
            return
        self.alive = False
        network, draw = self.network, self.network._random
        del network.streams[self.number]
        for flight in self.flights:
            arriving = draw.randint(0, len(flight)) if draw.random() < kept else 0
            while len(flight) > arriving:
                flight.pop()
        for end in self.ends:
            network.world.after(draw.randint(*notice_us), end.ended, errno.ECONNRESET)


class StreamSocket:
    """A socket of either kind of process."""

    def __init__(self, network: Network, owner: Any) -> None:
        self.network = network
        self.owner = owner
        self.closed = False
        self.family = real.AF_INET
        self.fd = network.new_number()
        self.stream: Stream | None = None
        self.side = 0
        self.address: tuple[str, int] | None = None
        self.accepted: deque[StreamSocket] = deque()
        self.came_from = ""
        """Of a worker's end: where its client is."""
        self.selector: Selector | None = None
        self._data: deque[bytes] = deque()
        self._end: int | None = None
        """Why nothing more comes, once all is read: 0 is a plain end, else an errno."""
        self._error = 0
        self._full = False
        owner.sockets.append(self)

    # --- the API ------------------------------------------------------------------------------------------------------

    def fileno(self) -> int:
        return self.fd

    def setblocking(self, flag: bool) -> None:
        assert not flag

    def setsockopt(self, *_: Any) -> None:
        """Nothing to set."""

    def getsockopt(self, level: int, option: int) -> int:
        return self._error

    def getpeername(self) -> None:
        if self.stream is None:
            raise OSError(errno.ENOTCONN, "not connected")

    def bind(self, address: tuple[str, int]) -> None:
        self.address = address[0], self.network.new_number()

    def listen(self, backlog: int) -> None:
        assert self.address is not None
        self.network.doors[self.address] = self

    def getsockname(self) -> tuple[str, int]:
        assert self.address is not None
        return self.address

    def accept(self) -> "tuple[StreamSocket, tuple[str, int]]":
        if not self.accepted:
            raise BlockingIOError
        sock = self.accepted.popleft()
        return sock, (sock.came_from, 0)

    def connect_ex(self, address: tuple[str, int]) -> int:
        self.network.world.after(self.network.latency(), self._try, address)
        return errno.EINPROGRESS

    def recv(self, size: int, flags: int = 0) -> bytes:
        if self._data and flags & real.MSG_PEEK:
            return self._data[0][:size]
        if self._data:
            data = b"".join(self._data)
            self._data.clear()
            if len(data) > size:
                self._data.append(data[size:])
                data = data[:size]
            if self.stream is not None:
                self.stream.waiting[self.side] -= len(data)
                self.stream.ends[1 - self.side].room()
            return data
        if self._end is None:
            raise BlockingIOError
        if self._end:
            raise ConnectionResetError(self._end, "reset")
        return b""

    def send(self, data: Any) -> int:
        return self.sendmsg([data])

    def sendmsg(self, pieces: Sequence[Any]) -> int:
        self.owner.touch("a frame is sent")
        stream = self.stream
        if stream is None or self._end is not None:
            raise BrokenPipeError(errno.EPIPE, "broken pipe")
        room = CAPACITY_BYTES - stream.waiting[1 - self.side]
        if room <= 0:
            self._full = True
            raise BlockingIOError
        data = b"".join(pieces)[:room]
        stream.send(data, 1 - self.side)
        return len(data)

    def close(self) -> None:
        if self.closed:
            return
        self.closed = True
        if self.address is not None and self.network.doors.get(self.address) is self:
            del self.network.doors[self.address]
        for waiting in self.accepted:
            waiting.close()
        if self.stream is not None:
            self.stream.end(self.side)

    owner_died = close

    # --- what happens to it -------------------------------------------------------------------------------------------

    def _try(self, address: tuple[str, int]) -> None:
        if self.closed:
            return
        network = self.network
        listening = network.doors.get(address)
        if listening is None or network.refusing_until_us.get("doors", 0) > network.world.now_us:
            self._error = errno.ECONNREFUSED
        else:
            other = StreamSocket(network, listening.owner)
            self.stream = other.stream = Stream(network, self, other)
            other.side, other.came_from = 1, self.owner.address
            listening.accepted.append(other)
            listening.notify()
        self.notify()

    def take_in(self, data: bytes) -> None:
        if not self.closed:
            self._data.append(data)
            self.notify()

    def ended(self, error: int) -> None:
        if not self.closed and self._end is None:
            self._end = error
            self.notify()

    def room(self) -> None:
        if self._full:
            self._full = False
            self.notify()

    def notify(self) -> None:
        if self.selector is not None:
            self.owner.notice(self.selector)
        elif not self.closed:
            self.owner.notice(self)

    @property
    def events(self) -> int:
        """What could be done with it now."""
        events = READ if self._data or self._end is not None or self.accepted else 0
        full = self.stream is not None and self._end is None and self.stream.waiting[1 - self.side] >= CAPACITY_BYTES
        return events | (0 if full else WRITE)


class Selector:
    """The selector of one process: its streams, and what else it watches."""

    def __init__(self, network: Network, owner: Any) -> None:
        self._owner = owner
        self._network = network
        self._streams: dict[StreamSocket, SimpleNamespace] = {}
        self._others: dict[Any, SimpleNamespace] = {}
        """ZeroMQ sockets, which it knows by their descriptors, and requests to stop."""

    # --- the API ------------------------------------------------------------------------------------------------------

    def register(self, source: Any, events: int, data: Any = None) -> None:
        if isinstance(source, StreamSocket):
            self._streams[source] = SimpleNamespace(fileobj=source, fd=source.fd, events=events, data=data)
            source.selector = self
        else:
            watched = self._network.dealers.get(source, source)
            self._others[watched] = SimpleNamespace(fileobj=source, fd=source, events=events, data=data)

    def modify(self, socket: StreamSocket, events: int, data: Any = None) -> None:
        self.register(socket, events, data)
        self._owner.notice(self)

    def unregister(self, source: Any) -> None:
        if isinstance(source, StreamSocket):
            del self._streams[source]
            source.selector = None
        else:
            del self._others[self._network.dealers.get(source, source)]

    def select(self, timeout: float) -> list[tuple[SimpleNamespace, int]]:
        self._owner.touch("it waits")
        return self._owner.wait(self, timeout * 1000)  # type: ignore[no-any-return]

    def close(self) -> None:
        """Nothing to free."""

    # --- what its process waits for -----------------------------------------------------------------------------------

    def has(self, source: Any) -> bool:
        """Return whether what has happened at ``source`` may wake the process."""
        return source is self or source in self._others

    def ready(self, process: Any) -> list[tuple[SimpleNamespace, int]]:
        """Return what can be read or written."""
        streams = [
            (key, each.events & key.events) for each, key in self._streams.items() if each.events & key.events
        ]  # fmt: skip
        return streams + [(key, READ) for each, key in self._others.items() if _is_readable(each, process)]

    def any_ready(self, process: Any) -> bool:
        """Return whether :meth:`ready` finds something."""
        return any(_is_readable(each, process) for each in self._others) or any(
            each.events & key.events for each, key in self._streams.items()
        )


def _is_readable(source: Any, process: Any) -> bool:
    return bool(process.stop_wanted if isinstance(source, StopDescriptor) else source.signalled)


class Epoll(Selector):
    """A selector with the methods of :class:`select.epoll`."""

    def poll(self, timeout: float) -> list[tuple[Any, int]]:
        return [(key.fd, events) for key, events in self.select(timeout)]


class FakeSockets:
    """Stands in for the modules ``socket``, ``selectors`` and ``select``."""

    EVENT_READ, EVENT_WRITE = READ, WRITE

    def __init__(self, network: Network) -> None:
        self._network = network

    def socket(self, *_: Any) -> StreamSocket:
        return StreamSocket(self._network, self._network.world.current)

    def DefaultSelector(self) -> Selector:  # noqa: N802
        return Selector(self._network, self._network.world.current)

    def epoll(self) -> "Epoll":
        return Epoll(self._network, self._network.world.current)

    def getaddrinfo(self, host: str, port: int, **_: Any) -> list[Any]:
        return [(real.AF_INET, None, None, "", (host, port))]

    def __getattr__(self, name: str) -> Any:
        return getattr(real, name)
