"""All connections of a client: the link to a router, and a wire to each worker that it talks to directly.

If there is one endpoint its link lasts as long as the client, and libzmq connects it again. Else a link is made once, and
when it is lost, or does not greet in time, another one is made to the next endpoint (:mod:`endpoints`). The wires stay:
they need no router.
"""

import math
import socket
from _thread import start_new_thread
from collections import deque
from collections.abc import Callable, Collection
from contextlib import suppress
from functools import partial
from typing import Any, Protocol
from urllib.parse import urlsplit

from fila_cluster.client.io.inside import Inhabitant, InsideLink
from fila_cluster.client.io.link import FRAMES_PER_EXCHANGE, RouterLink
from fila_cluster.client.io.wire import ANSWER_BYTES, CHECKED_S, Wire
from fila_cluster.client.protocol.session import ClientSession
from fila_cluster.client.protocol.short_calls import AfterShort
from fila_cluster.client.requests.endpoints import Endpoint, EndpointRounds
from fila_cluster.client.requests.routes import DirectWay
from fila_proto_zmq.commands import Command


class Lookup:
    """One question for the addresses of a name. ``descriptor`` is readable when there is an answer.

    It is asked in a thread of its own: a name server may take many seconds. libzmq would ask in its I/O thread, take the
    first address only, and hold up the closing of its context meanwhile.
    """

    def __init__(self, endpoint: Endpoint) -> None:
        self.endpoint = endpoint
        self._socket, done = socket.socketpair()
        self._socket.setblocking(False)
        self.descriptor = self._socket.fileno()
        self._found: list[str] = []
        try:
            start_new_thread(_look_up, (endpoint, self._found, done))
        except RuntimeError:  # the system has no more threads, or the interpreter is about to end
            done.close()

    def take(self) -> list[str] | None:
        """Return the addresses, as endpoints: an empty list if the name has no address now. None: there is no answer yet."""
        try:
            self._socket.recv(1)
        except BlockingIOError:
            return None
        return self._found

    def close(self) -> None:
        """Wait for the answer no longer. The thread ends by itself."""
        self._socket.close()


def _look_up(endpoint: Endpoint, found: list[str], done: socket.socket) -> None:
    try:
        with suppress(OSError, UnicodeError):  # UnicodeError: the text is not a name
            found += _addresses(endpoint)
    finally:
        with suppress(OSError):  # the client is closed
            done.shutdown(socket.SHUT_WR)  # a fork may have copied the descriptor: its end alone would not be seen
        done.close()


def _addresses(endpoint: Endpoint) -> list[str]:
    """Return the addresses of version 4, and only if there are none, those of version 6: routers seldom listen on both."""
    infos = socket.getaddrinfo(endpoint.name, endpoint.port, type=socket.SOCK_STREAM)
    hosts = [str(address[0]) for family, _, _, _, address in infos if family == socket.AF_INET]
    hosts = hosts or [f"[{address[0]}]" for family, _, _, _, address in infos if family == socket.AF_INET6]
    return [f"tcp://{host}:{endpoint.port}" for host in dict.fromkeys(hosts)]


LOOKUP_S = 0.5
"""How long the first link waits for the addresses of names, unless no address was found by then."""
LOOKUPS_S = 1.0
"""Names are looked up at most this often."""


class DescriptorWatcher(Inhabitant, Protocol):
    """The shell, which sleeps until a descriptor is ready."""

    def watch(self, descriptor: int, *, writable: bool) -> None:
        """Look at a descriptor from now on: when it is readable, and ``writable`` also when it takes something."""

    def unwatch(self, descriptor: int) -> None:
        """Do not look at a descriptor any more."""


class ClientLinks:
    """The router's link, and the wires by their ways. ``router``: None with nothing to connect to, or before it is time."""

    def __init__(self, rounds: EndpointRounds, server_keys: tuple[str, ...], watcher: DescriptorWatcher) -> None:
        """``server_keys``: public keys that a server may have, which are tried in turn. Empty: do not encrypt."""
        self._rounds = rounds
        self._server_keys: deque[str | None] = deque(server_keys or [None])
        self._refused = 0
        """Handshakes that were refused since the last that was not."""
        self._why_refused: str | None = None
        """Why an endpoint refused all keys in this round."""
        self.router: RouterLink | InsideLink | None = None
        self._moving = False
        """Whether to move to the next endpoint."""
        self._lookups: dict[int, Lookup] = {}
        """By their descriptors."""
        self._looked_up_at = -math.inf
        self._closed = False
        self._torn = False
        """Whether an interrupt came during an exchange with the router: an answer may be lost, or half of a frame sent."""
        self._watcher = watcher
        self._router_host = ""
        self._wires: dict[DirectWay, Wire] = {}
        self._by_descriptor: dict[int, Wire] = {}
        self._watched: dict[int, bool] = {}
        self._direct_frames = 0
        """The frames of direct ways, by the count of the routes, that were given to their wires."""
        self.has_news = False
        self._interrupted: list[Wire] = []
        """Wires on which an interrupt came between a system call and its effect: their streams can't be trusted any more."""

    @property
    def descriptors(self) -> list[tuple[int, bool]]:
        """Every descriptor to look at, with whether it is to take something."""
        return [*((each, False) for each in (*self._of_router(), *self._lookups)), *self._watched.items()]

    @property
    def closed(self) -> bool:
        """Whether they can't be used any more."""
        return self._closed or (self.router is not None and self.router.closed)

    def connect(self, session: ClientSession, now: float) -> None:
        """Begin: the session greets, and the first endpoint is connected."""
        session.connect(now)
        self._look_up(now)
        if self._lookups:
            session.timers.at(now + LOOKUP_S, self._go_on)
        else:
            self._move(session, now)

    def exchange(self, session: ClientSession, now: float, ready: Collection[int] | None = ()) -> bool:
        """Send outgoing frames and read arrived ones; True if there are more. ``ready``: the ready descriptors, None: any."""
        if self._torn:
            self._renew(session, now)
        while self._interrupted:
            self._lose(self._interrupted.pop(), session, now)
        if self._moving:
            self._move(session, now)
        more = arrived = False
        for descriptor in self._all() if ready is None else ready:
            wire = self._by_descriptor.get(descriptor)
            if wire is not None:
                more |= self._serve(wire, session, now)
            elif descriptor in self._of_router():
                arrived = True
            elif descriptor in self._lookups:
                self._take_addresses(self._lookups[descriptor])
        more |= self._exchange(session, now, arrived=arrived)
        routes = session.routes
        while routes.direct_frames != self._direct_frames or routes.wanted or routes.unwanted:
            more |= self._write(session, now)
            if session.outgoing:
                more |= self._exchange(session, now, arrived=False)
        return more or self._moving

    def _exchange(self, session: ClientSession, now: float, *, arrived: bool) -> bool:
        link = self.router
        if link is None:
            session.flush(now)
            return False
        try:
            more = link.exchange(session, now, arrived=arrived)
        except BaseException:
            self._torn = True
            raise
        if link.accepted:
            self._refused, link.accepted = 0, False
        alone = self._rounds.alone
        self._torn |= link.dead and alone
        self._moving |= link.lost or (link.dead and not alone)
        if link.refused is not None:
            why, link.refused = link.refused, None
            return self._try_next_key(link, why, session) or more
        return more

    def _try_next_key(self, link: RouterLink | InsideLink, why: str, session: ClientSession) -> bool:
        """Try another key of the server at once, and return True; False if that was the last one.

        Then the last key is tried again after a pause, or at the next endpoint, and the others follow.
        """
        self._refused += 1
        if link.dead or self._refused % len(self._server_keys) == 0:
            if self._rounds.alone:
                session.refused_link(why, final=link.dead)
            else:
                self._why_refused, self._moving = why, True
            return False
        self._server_keys.rotate(-1)
        self._torn, self._moving = True, False
        return True

    def distrust(self) -> None:
        """Begin anew with the router in the next exchange: an interrupt came in the middle of a change of the session."""
        self._torn = True

    def _renew(self, session: ClientSession, now: float) -> None:
        """Replace the link to the router by another one to the same endpoint."""
        self._end(session, now)
        if self._rounds.current:
            self._open(session, now)
        self._torn = False

    def _move(self, session: ClientSession, now: float) -> None:
        """Replace the link to the router by one to the next endpoint; after a round without success there is a pause."""
        had_router = self.router is not None and session.greeted
        self._end(session, now)
        if had_router:
            self._rounds.lost(now)
            self._why_refused = None
        if self._rounds.next(now) is not None:
            self._open(session, now)
        else:
            if self._why_refused is not None:
                session.refused_link(self._why_refused, final=False)
                self._why_refused = None
            session.timers.at(now + self._rounds.over(), self._go_on)
        self._moving = False
        self._look_up(now)

    def _go_on(self) -> None:
        """Move to the next endpoint after a pause."""
        self._moving |= self.router is None

    def _end(self, session: ClientSession, now: float) -> None:
        """Close the link to the router. Calls that are under way on it count as lost."""
        for descriptor in self._of_router():
            self._watcher.unwatch(descriptor)
        if self.router is not None:
            self.router.close()
            self.router = None
        session.disconnected(now)

    def _open(self, session: ClientSession, now: float) -> None:
        """Make a link to the current endpoint."""
        rounds = self._rounds
        link = self.router = self._make_link()
        self._router_host = urlsplit(rounds.current).hostname or ""
        for descriptor in link.descriptors:
            self._watcher.watch(descriptor, writable=False)
        if not rounds.alone:
            session.timers.at(now + rounds.attempt_s, partial(self._give_up, link, session))

    def _make_link(self) -> RouterLink | InsideLink:
        rounds = self._rounds
        if rounds.inside:
            return InsideLink(rounds.inside, self._watcher)
        return RouterLink(rounds.current, self._server_keys[0], again=rounds.alone, silence_s=rounds.silence_s)

    def _give_up(self, link: RouterLink | InsideLink, session: ClientSession) -> None:
        """Move to the next endpoint unless a router has greeted by now."""
        self._moving |= self.router is link and not session.greeted

    def _of_router(self) -> tuple[int, ...]:
        return () if self.router is None else self.router.descriptors

    def _all(self) -> list[int]:
        return [*self._by_descriptor, *self._of_router(), *self._lookups]

    # --- names --------------------------------------------------------------------------------------------------------

    def _look_up(self, now: float) -> None:
        """Ask for the addresses of all names, unless it is too early or an earlier question has no answer yet."""
        if now - self._looked_up_at < LOOKUPS_S:
            return
        self._looked_up_at = now
        asked = {lookup.endpoint for lookup in self._lookups.values()}
        for endpoint in self._rounds.names:
            if endpoint not in asked:
                lookup = Lookup(endpoint)
                self._lookups[lookup.descriptor] = lookup
                self._watcher.watch(lookup.descriptor, writable=False)

    def _take_addresses(self, lookup: Lookup) -> None:
        addresses = lookup.take()
        if addresses is None:
            return
        self._forget(lookup)
        if addresses:
            self._rounds.found(lookup.endpoint, addresses)
        if not self._lookups:
            self._go_on()

    def _forget(self, lookup: Lookup) -> None:
        if self._lookups.pop(lookup.descriptor, None) is not None:
            self._watcher.unwatch(lookup.descriptor)
            lookup.close()

    # --- wires --------------------------------------------------------------------------------------------------------

    def _connect(self, way: DirectWay, session: ClientSession, now: float) -> None:
        self._close(way)
        wire = self._wires[way] = Wire(way, self._router_host)
        if wire.connect():
            self._watch(wire)
        else:
            self._lose(wire, session, now)

    def _serve(self, wire: Wire, session: ClientSession, now: float) -> bool:
        """Serve a wire whose descriptor is ready."""
        if wire.connecting:
            self._unwatch(wire)
            if wire.connected():
                self._watch(wire)
            else:
                self._lose(wire, session, now)
            return False
        more = self._read(wire, session, now)
        if wire.wants_to_write and wire.descriptor in self._by_descriptor:
            self._send(wire, session, now)
        return more

    def _read(self, wire: Wire, session: ClientSession, now: float) -> bool:
        wire.read_at = now
        try:
            more = wire.read(session, now, FRAMES_PER_EXCHANGE)
        except BaseException:
            self._interrupted.append(wire)
            raise
        if more is None:
            self._lose(wire, session, now)
            return False
        return more

    def _write(self, session: ClientSession, now: float) -> bool:
        """Send outgoing frames, and open and close ways as the session asks; return whether there is more to read."""
        more = False
        routes = session.routes
        direct_frames = routes.direct_frames
        for wire in [wire for way, wire in self._wires.items() if way.outgoing or wire.wants_to_write]:
            if now - wire.read_at > CHECKED_S and wire.socket is not None:
                more |= self._read(wire, session, now)
            if wire.socket is not None and not wire.connecting:
                self._send(wire, session, now)
        self._direct_frames = direct_frames  # not before: an interrupt may have left some to be sent
        while routes.wanted:
            self._connect(routes.wanted.popleft(), session, now)
        while routes.unwanted:
            self._close(routes.unwanted.popleft())
        return more

    def send_short(
        self,
        session: ClientSession,
        key: str,
        make: Callable[[], Command],
        now: float,
        then: AfterShort | None,
    ) -> Wire | None:
        """Send a command as a short call; return the wire of its answer, None if that is not possible now."""
        short = session.short
        way = short.way_of(key, now)
        wire = None if way is None else self._wires.get(way)
        if wire is None or self._torn or self._moving or self._interrupted or not wire.is_quiet(now):
            return None
        try:
            frame = short.frame(wire.way, key, make(), now, then)
            if frame is None:
                return None
            if not wire.send(frame):
                short.due_at, self._direct_frames = now, -1  # the rest is for the next exchange
        except BaseException:
            self._interrupted.append(wire)
            raise
        return wire

    def receive_short(self, session: ClientSession, wire: Wire, now: float) -> Any:
        """Take in what came on the wire of the short call. Return its reply, None if that did not come.

        ``has_news``: whether the session has something to do then, now or earlier than before: deliveries came, too, or there
        is room for more.
        """
        assert wire.socket is not None
        self.has_news = False
        short = session.short
        try:
            due_at = short.consumption.due_at
            left = short.take(wire.socket.recv(ANSWER_BYTES))
            wire.read_at = now
            if left:
                wire.take_in(left, session, now)
                self.has_news = bool(session.outgoing or wire.way.outgoing)
            self.has_news |= short.consumption.due_at < due_at
        except OSError:  # the next attempt says so, too
            return None
        except BaseException:
            self._interrupted.append(wire)
            raise
        return short.reply

    def _send(self, wire: Wire, session: ClientSession, now: float) -> None:
        try:
            connected = wire.write()
        except BaseException:
            self._interrupted.append(wire)
            raise
        if not connected:
            self._lose(wire, session, now)
        elif self._watched.get(wire.descriptor) is not wire.wants_to_write:
            self._watch(wire)

    def _lose(self, wire: Wire, session: ClientSession, now: float) -> None:
        if self._wires.get(wire.way) is wire:
            self._close(wire.way)
            session.lost(wire.way, now)

    def _watch(self, wire: Wire) -> None:
        descriptor, writable = wire.descriptor, wire.wants_to_write
        self._by_descriptor[descriptor] = wire
        if self._watched.get(descriptor) is not writable:
            self._watched[descriptor] = writable
            self._watcher.watch(descriptor, writable=writable)

    def _unwatch(self, wire: Wire) -> None:
        descriptor = wire.descriptor
        if self._by_descriptor.pop(descriptor, None) is not None:
            del self._watched[descriptor]
            self._watcher.unwatch(descriptor)

    def _close(self, way: DirectWay) -> None:
        wire = self._wires.pop(way, None)
        if wire is not None:
            self._unwatch(wire)
            wire.close()

    def disown(self) -> None:
        """Leave all connections to the parent, in the child of a fork."""
        self._closed = True
        if self.router is not None:
            self.router.disown()
        for wire in self._wires.values():
            wire.disown()

    def close(self) -> None:
        """Close all connections."""
        for way in list(self._wires):
            self._close(way)
        for lookup in list(self._lookups.values()):
            self._forget(lookup)
        self._closed = True
        if self.router is not None:
            self.router.close()
