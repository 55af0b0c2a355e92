"""ZeroMQ as the product uses it, in the virtual world: DEALER and ROUTER sockets over connections that take time and break.

What is kept of the real thing: frames of one connection arrive in order; what is under way when a connection breaks is lost from
some point on, in both directions; what a DEALER has not sent yet waits for the next connection; either end notices a loss in its own
time, and what it sends until then is lost without a word; a ROUTER tells that a peer is unknown (mandatory) or does not read;
a newcomer takes over the identity of its predecessor, and what that one had sent and nobody had read comes under a name of ZeroMQ's own.
"""

import builtins
from collections import deque
from collections.abc import Sequence
from struct import pack
from typing import Any

import zmq

from tests.simulation.world.world import Process, World

NOBLOCK, SNDMORE, POLLIN = int(zmq.NOBLOCK), int(zmq.SNDMORE), int(zmq.POLLIN)
POLLOUT = int(zmq.POLLOUT)
FD, RCVMORE, SNDHWM, EVENTS = int(zmq.FD), int(zmq.RCVMORE), int(zmq.SNDHWM), int(zmq.EVENTS)

flagged = int.__and__
"""Whether a flag is set: pyzmq's flags cost microseconds when they are combined as what they are."""


class NothingThere(zmq.Again):
    """No message waits. Made without asking the system for a text."""

    errno = zmq.EAGAIN

    def __init__(self) -> None:
        """Nothing to look up."""


CLOSED, DISCONNECTED, ACCEPTED = int(zmq.EVENT_CLOSED), int(zmq.EVENT_DISCONNECTED), int(zmq.EVENT_HANDSHAKE_SUCCEEDED)
IMMEDIATE, HEARTBEAT_IVL, HEARTBEAT_TIMEOUT = int(zmq.IMMEDIATE), int(zmq.HEARTBEAT_IVL), int(zmq.HEARTBEAT_TIMEOUT)


class Frame(bytes):
    """One part, as pyzmq gives it out uncopied. ``more``: others follow."""

    more = True

    @property
    def bytes(self) -> builtins.bytes:
        return self[:]

    @property
    def buffer(self) -> memoryview:
        return memoryview(self)

    def get(self, name: str) -> str:
        """What is known of the connection that it came on."""
        assert name == "Peer-Address"
        return "10.0.0.1"


class LastFrame(Frame):
    """The last part of a message. ``address``: where it came from."""

    more = False
    address = ""

    def get(self, name: str) -> str:
        """Return what libzmq knows of the sender."""
        assert name == "Peer-Address", name
        return self.address


def frames_of(parts: Sequence[bytes]) -> list[Frame]:
    """The parts of one message, each of which knows whether others follow."""
    return [*map(Frame, parts[:-1]), LastFrame(parts[-1])]


class Network:
    """Who listens where, how long frames take, and what breaks."""

    def __init__(self, world: World, latency_us: tuple[int, int]) -> None:
        self.world = world
        self.latency_us = latency_us
        self.listeners: dict[str, RouterSocket] = {}
        self.connections: dict[int, Connection] = {}
        """Those that carry frames."""
        self.taps: list[Any] = []
        """Who sees every frame to a ROUTER: ``tap(dealer, parts)``, when it is sent, or dropped."""
        self.arrivals: list[Any] = []
        """Who sees what reaches a DEALER: ``seen(connection, parts)``."""
        self.refusing_until_us: dict[str, int] = {}
        """Endpoints that cannot be reached until a time."""
        self.apart_until_us: dict[tuple[str, str], int] = {}
        """Processes that do not reach an endpoint until a time."""
        self.streams: dict[int, Any] = {}
        """Direct connections of clients to workers that carry bytes."""
        self.doors: dict[tuple[str, int], Any] = {}
        """The listening sockets of workers, by address."""
        self.dealers: dict[int, DealerSocket] = {}
        """Those that are watched by their descriptor."""
        self.direct_taps: list[Any] = []
        """Who sees what a worker sends to a client: ``tap(identity, parts)``."""
        self.direct_arrivals: list[Any] = []
        """Who sees what reaches a client on a direct connection: ``seen(parts)``."""
        self._made = 0
        self._random = world.random("network")
        self._draw = self._random.random
        self._least_us, self._span_us = latency_us[0], latency_us[1] - latency_us[0]

    def new_number(self) -> int:
        self._made += 1
        return self._made

    def latency(self) -> int:
        return self._least_us + int(self._span_us * self._draw())

    def see(self, dealer: "DealerSocket", parts: list[bytes]) -> None:
        """Show a frame that a DEALER sends to those who watch."""
        for tap in self.taps:
            tap(dealer, parts)

    def cut(self, connection: "Connection", *, kept: float = 0.5, notice_us: tuple[int, int] = (0, 200_000)) -> None:
        """Break a connection: of what is under way some arrives, and each end notices when it does."""
        if not connection.alive:
            return
        connection.alive = False
        del self.connections[connection.number]
        for flight in connection.flights:
            arriving = self._random.randint(0, len(flight)) if self._random.random() < kept else 0
            while len(flight) > arriving:
                flight.pop()
        self.world.after(self._random.randint(*notice_us), connection.dealer_notices)
        self.world.after(self._random.randint(*notice_us), connection.router_notices)


class Connection:
    """One connection of a DEALER to a ROUTER."""

    def __init__(self, network: Network, dealer: "DealerSocket", router: "RouterSocket", identity: bytes) -> None:
        self.network = network
        self.number = network.new_number()
        self.dealer = dealer
        self.router = router
        self.identity = identity
        self.alive = True
        self.replaced = False
        self.ignored = False
        """It came under a name that another one has, and the router does not listen to it."""
        self.flights: tuple[deque[Any], deque[Any]] = (deque(), deque())
        """Frames under way to the dealer, and to the router: ``(when it arrives, parts)``."""
        self.backlog: deque[list[bytes]] = deque()
        """What the router keeps for a dealer that does not read."""
        self._last_us = [0, 0]
        network.connections[self.number] = self

    def __str__(self) -> str:
        return f"{self.dealer.owner.name} from {self.router.endpoint}"

    def cut(self, *, kept: float, notice_us: tuple[int, int]) -> None:
        """Break."""
        self.network.cut(self, kept=kept, notice_us=notice_us)

    def send(self, parts: list[bytes], to_router: bool) -> None:
        """Put a frame on its way. If the connection is broken, and its sender does not know, it is lost."""
        if to_router:
            self.network.see(self.dealer, parts)
        if not self.alive:
            return
        if not to_router and self.dealer.stalled:
            self.backlog.append(parts)
            return
        self._fly(parts, to_router)

    def _fly(self, parts: list[bytes], to_router: bool) -> None:
        network = self.network
        world, last_us = network.world, self._last_us
        when_us = world.now_us + network.latency()
        if when_us < last_us[to_router]:
            when_us = last_us[to_router]
        last_us[to_router] = when_us
        self.flights[to_router].append(parts)
        world.at(when_us, self._arrive, parts, to_router)

    def read_again(self) -> None:
        """The dealer reads what it had left."""
        while self.backlog and self.alive:
            self._fly(self.backlog.popleft(), to_router=False)

    def _arrive(self, parts: list[bytes], to_router: bool) -> None:
        flight = self.flights[to_router]
        if not flight or flight[0] is not parts:
            return  # lost
        flight.popleft()
        if to_router:
            self.router.take_in(self, parts)
        else:
            if not self.dealer.closed:
                for seen in self.network.arrivals:
                    seen(self, parts)
            self.dealer.take_in(parts)

    def dealer_notices(self) -> None:
        self.dealer.lost(self)

    def router_notices(self) -> None:
        self.router.lost(self)


class Socket:
    """What both kinds have: options, an owner, an inbox."""

    def __init__(self, network: Network, owner: Any) -> None:
        self.network = network
        self.owner = owner
        self.closed = False
        self.options: dict[int, Any] = {}
        self.inbox: deque[Any] = deque()
        self.fd = network.new_number()
        owner.sockets.append(self)

    def setsockopt(self, option: int, value: Any) -> None:
        self.options[int(option)] = value

    set = setsockopt

    def owner_died(self) -> None:
        """Its process is gone."""
        self.close()

    def close(self, linger: int | None = None) -> None:
        raise NotImplementedError

    def __enter__(self) -> Any:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _notify(self) -> None:
        self.owner.notice(self)


class DealerSocket(Socket):
    """A DEALER: one connection at a time, made again when it is lost."""

    def __init__(self, network: Network, owner: Any) -> None:
        super().__init__(network, owner)
        self.endpoint = ""
        self.connection: Connection | None = None
        self.outbox: deque[list[bytes]] = deque()
        """What waits for a connection."""
        self.monitor: Monitor | None = None
        self.stalled = False
        """It does not read."""
        self.losses = 0
        self._unsent: list[bytes] = []
        self._reading: list[bytes] = []
        self.signalled = False
        """Whether its descriptor is readable: something has come since the socket was last used."""

    # --- the API ------------------------------------------------------------------------------------------------------

    def connect(self, endpoint: str) -> None:
        self.endpoint = endpoint
        self.network.world.after(self.network.latency(), self._try)

    def get_monitor_socket(self, events: int) -> "Monitor":
        self.monitor = Monitor(self.network, self.owner)
        return self.monitor

    def disable_monitor(self) -> None:
        self.monitor = None

    def get(self, option: int) -> Any:
        if option == FD:
            self.network.dealers[self.fd] = self
            return self.fd
        if option == RCVMORE:
            return bool(self._reading)
        if option == EVENTS:
            self.signalled = False
            return (POLLIN if self.inbox else 0) | (0 if self._drops else POLLOUT)
        return self.options[int(option)]

    getsockopt = get

    def send(self, part: bytes, flags: int = 0, copy: bool = True) -> None:
        self._unsent.append(part if type(part) is bytes else bytes(part))
        if not flags or not flagged(flags, SNDMORE):
            parts, self._unsent = self._unsent, []
            self.send_multipart(parts)

    def send_multipart(self, parts: Sequence[Any], flags: int = 0, copy: bool = True) -> None:
        self.owner.touch("a frame is sent")
        self.signalled = False
        plain = [part if type(part) is bytes else bytes(part) for part in parts]
        if self.connection is None:
            if self._drops:
                self.network.see(self, plain)
                raise zmq.Again
            self.outbox.append(plain)
        else:
            self.connection.send(plain, to_router=True)

    @property
    def _drops(self) -> bool:
        """Whether it takes nothing, because it has no connection and keeps nothing for the next one."""
        return self.connection is None and bool(self.options.get(IMMEDIATE))

    @property
    def _is_made_once(self) -> bool:
        """Whether its owner makes another one when the connection is lost."""
        return bool(self.options.get(int(zmq.RECONNECT_IVL), 0) < 0)

    def recv(self, flags: int = 0, copy: bool = True) -> Any:
        if not self._reading:
            self._reading = self.recv_multipart(flags)[::-1]
        part = self._reading.pop()
        return part if copy else Frame(part) if self._reading else LastFrame(part)

    def recv_multipart(self, flags: int = 0, copy: bool = True) -> list[Any]:
        if not self.inbox:
            assert flagged(flags, NOBLOCK), "nothing here may block"
            raise NothingThere
        parts = self.inbox.popleft()
        return parts if copy else frames_of(parts)

    def poll(self, timeout: float | None = None, flags: int = 0) -> int:
        poller = Poller(self.network)
        poller.register(self)
        return int(bool(poller.poll(timeout)))

    def close(self, linger: int | None = None) -> None:
        if self.closed:
            return
        self.closed = True
        connection, self.connection = self.connection, None
        if connection is not None:
            self.network.cut(connection, kept=0.8, notice_us=(0, 20_000))

    # --- what happens to it -------------------------------------------------------------------------------------------

    def _try(self) -> None:
        if self.closed or self.connection is not None:
            return
        network, world = self.network, self.network.world
        router = network.listeners.get(self.endpoint)
        apart_us = network.apart_until_us.get((self.owner.name, self.endpoint), 0)
        until_us = max(network.refusing_until_us.get(self.endpoint, 0), apart_us)
        if self._is_made_once and until_us > world.now_us:
            return  # its owner gives up by itself
        if self._is_made_once and router is None:
            self._report(CLOSED)
            return
        if router is None or until_us > world.now_us:
            world.after(self._reconnect_us(), self._try)
            return
        self.connection = router.accept(self)
        if self._is_made_once:
            self._report(ACCEPTED)
        if self.options.get(HEARTBEAT_IVL):  # 0: none
            self._look(self.connection, 0)
        while self.outbox:
            self.connection.send(self.outbox.popleft(), to_router=True)
        if self.options.get(IMMEDIATE):
            self.signalled = True
            self._notify()

    def _look(self, connection: Connection, silent_ms: int) -> None:
        """Give the connection up when the other side does nothing for too long."""
        if self.connection is not connection or self.closed:
            return
        each_ms, most_ms = self.options[HEARTBEAT_IVL], self.options[HEARTBEAT_TIMEOUT]
        world = self.network.world
        silent_ms = silent_ms + each_ms if connection.router.owner.paused_until_us > world.now_us else 0
        if silent_ms > most_ms:
            self.network.cut(connection, notice_us=(0, 0))
        else:
            world.after(1000 * each_ms, self._look, connection, silent_ms)

    def _report(self, event: int) -> None:
        if self.monitor is not None:
            self.monitor.inbox.append([pack("=hi", event, 0), b""])
            self.monitor._notify()

    def _reconnect_us(self) -> int:
        shortest = max(1, self.options.get(int(zmq.RECONNECT_IVL), 100))
        return network_random(self.network).randint(shortest, 2 * shortest) * 1000

    def lost(self, connection: Connection) -> None:
        if self.connection is not connection or self.closed:
            return
        self.connection = None
        self.losses += 1
        self._report(DISCONNECTED)
        if self._is_made_once:
            return
        self.network.world.after(self._reconnect_us(), self._try)

    def take_in(self, parts: list[bytes]) -> None:
        if not self.closed:
            self.inbox.append(parts)
            self.signalled = True
            self._notify()


def network_random(network: Network) -> Any:
    """Numbers for what happens on the network."""
    return network._random


class Monitor(Socket):
    """Tells its process that the connection was lost."""

    def get(self, option: int) -> Any:
        return self.fd

    def recv_multipart(self, flags: int = 0, copy: bool = True) -> list[Any]:
        if not self.inbox:
            raise NothingThere
        parts: list[Any] = self.inbox.popleft()
        return parts

    def close(self, linger: int | None = None) -> None:
        self.closed = True


class RouterSocket(Socket):
    """A ROUTER with mandatory routing and handover."""

    def __init__(self, network: Network, owner: Any) -> None:
        super().__init__(network, owner)
        self.endpoint = ""
        self.peers: dict[bytes, Connection] = {}
        self._reading: list[bytes] = []
        self._address = ""
        """Where the message that is read came from."""
        self._target: Connection | None = None
        self._parts: list[bytes] = []

    # --- the API ------------------------------------------------------------------------------------------------------

    def bind(self, endpoint: str) -> None:
        assert endpoint not in self.network.listeners, endpoint
        self.endpoint = endpoint
        self.network.listeners[endpoint] = self

    def get(self, option: int) -> Any:
        if option == RCVMORE:
            return bool(self._reading)
        if option == FD:
            return self.fd
        return self.options[int(option)]

    def recv(self, flags: int = 0, copy: bool = True) -> Any:
        if not self._reading:
            if not self.inbox:
                assert flagged(flags, NOBLOCK), "nothing here may block"
                raise NothingThere
            connection, parts = self.inbox.popleft()
            self._reading, self._address = parts[::-1], connection.dealer.owner.address
            return connection.identity if not connection.replaced else b"\0" + connection.number.to_bytes(4, "big")
        part = self._reading.pop()
        if copy or self._reading:
            return part if copy else Frame(part)
        last = LastFrame(part)
        last.address = self._address
        return last

    def recv_multipart(self, flags: int = 0, copy: bool = True) -> list[Any]:
        parts = [self.recv(flags, copy)]
        while self._reading:
            parts.append(self.recv(flags, copy))
        return parts

    def send(self, part: Any, flags: int = 0, copy: bool = True) -> None:
        if self._target is None:
            assert flagged(flags, SNDMORE), "an address alone"
            self._target = self._peer(bytes(part))
            self._parts = []
            return
        self._parts.append(part if type(part) is bytes else bytes(part))
        if not flags or not flagged(flags, SNDMORE):
            target, self._target = self._target, None
            target.send(self._parts, to_router=False)

    def send_multipart(self, parts: Sequence[Any], flags: int = 0, copy: bool = True) -> None:
        for part in parts[:-1]:
            self.send(part, SNDMORE)
        self.send(parts[-1], flags)

    def _peer(self, identity: bytes) -> Connection:
        self.owner.touch("a frame is sent")
        connection = self.peers.get(identity)
        if connection is None:
            raise zmq.ZMQError(zmq.EHOSTUNREACH)
        if connection.backlog and 0 < self.options.get(SNDHWM, 0) <= len(connection.backlog):
            raise zmq.ZMQError(zmq.EAGAIN)
        return connection

    def close(self, linger: int | None = None) -> None:
        if self.closed:
            return
        self.closed = True
        if self.network.listeners.get(self.endpoint) is self:
            del self.network.listeners[self.endpoint]
        for connection in list(self.network.connections.values()):
            if connection.router is self:
                self.network.cut(connection, kept=0.8, notice_us=(0, 20_000))

    # --- what happens to it -------------------------------------------------------------------------------------------

    def accept(self, dealer: DealerSocket) -> Connection:
        identity = dealer.options.get(int(zmq.IDENTITY)) or b"\0" + self.network.new_number().to_bytes(4, "big")
        connection = Connection(self.network, dealer, self, identity)
        old = self.peers.get(identity)
        if old is not None and not self.options.get(int(zmq.ROUTER_HANDOVER)):
            connection.ignored = True
            return connection
        if old is not None:
            old.replaced = True
            if old.alive:
                self.network.cut(old)
        self.peers[identity] = connection
        return connection

    def lost(self, connection: Connection) -> None:
        if self.peers.get(connection.identity) is connection:
            del self.peers[connection.identity]

    def take_in(self, connection: Connection, parts: list[bytes]) -> None:
        if not self.closed and not connection.ignored:
            self.inbox.append((connection, parts))
            self._notify()


class Poller:
    """Sleeps in the virtual world."""

    def __init__(self, network: Network) -> None:
        self._network = network
        self._world = network.world
        self._sources: list[Any] = []

    def register(self, source: Any, flags: int = 0) -> None:
        self._sources.append(source)

    def has(self, source: Any) -> bool:
        return source in self._sources

    def ready(self, process: Process) -> list[tuple[Any, int]]:
        found = []
        for source in self._sources:
            if source.inbox:
                found.append((source, POLLIN))  # noqa: PERF401  # a comprehension is a call
        if process.stop_wanted:
            found += [(source, POLLIN) for source in self._sources if isinstance(source, StopDescriptor)]
        return found

    def any_ready(self, process: Process) -> bool:
        """Whether :meth:`ready` finds something."""
        for source in self._sources:
            if source.inbox:
                return True
        return process.stop_wanted and bool(self.ready(process))

    def poll(self, timeout: float | None = None) -> list[tuple[Any, int]]:
        process = self._world.current
        process.touch("it waits")
        return process.wait(self, timeout)  # type: ignore[no-any-return]


class StopDescriptor:
    """Readable when its process is asked to stop."""

    inbox: Sequence[object] = ()


class Context:
    """Makes sockets for the process or client that runs now."""

    closed = False

    def __init__(self, network: Network) -> None:
        self._network = network

    def socket(self, kind: int) -> Any:
        owner = self._network.world.current
        return RouterSocket(self._network, owner) if kind == zmq.ROUTER else DealerSocket(self._network, owner)

    def term(self) -> None:
        self.closed = True

    def __enter__(self) -> "Context":
        return self

    def __exit__(self, *_: object) -> None:
        """Nothing to end."""


class FakeZmq:
    """Stands in for the module ``zmq`` in the product's modules that use sockets."""

    def __init__(self, network: Network) -> None:
        class OneContext(Context):
            def __init__(self) -> None:
                super().__init__(network)

            @classmethod
            def instance(cls) -> Context:
                return cls()

            def __class_getitem__(cls, _: Any) -> type:
                return cls

        self.Context = OneContext
        self.Poller = lambda: Poller(network)
        self.zmq_poll = _zmq_poll

    def __getattr__(self, name: str) -> Any:
        """What is the same here; kept, because it is asked for at each frame."""
        value = self.__dict__[name] = getattr(zmq, name)
        return value


def _zmq_poll(sources: Sequence[tuple[Any, int]], timeout: int) -> list[tuple[Any, int]]:
    assert timeout == 0
    for source, _ in sources:
        if source.inbox:
            return [each for each in sources if each[0].inbox]
    return []
