"""All connections of a client: the link to the router, and a wire to each worker that it talks to directly."""

from collections import deque
from collections.abc import Collection
from typing import Protocol
from urllib.parse import urlsplit

from fila_cluster.client.io.link import FRAMES_PER_EXCHANGE, Link
from fila_cluster.client.io.wire import Wire
from fila_cluster.client.protocol.session import Session
from fila_cluster.client.requests.way import DirectWay

CHECKED_S = 0.05
"""A wire that was read so long ago is read before something is sent: the worker may have closed it meanwhile."""


class Watcher(Protocol):
    """The shell, which sleeps until a descriptor is ready."""

    def watch(self, descriptor: int, *, writable: bool) -> None:
        """Look at a descriptor from now on: when it is readable, and ``writable`` also when it takes something."""

    def unwatch(self, descriptor: int) -> None:
        """Do not look at a descriptor any more."""


class Links:
    """The router's link, and the wires by their ways."""

    def __init__(self, endpoint: str, server_keys: tuple[str, ...], watcher: Watcher) -> None:
        """``server_keys``: public keys that the server may have, which are tried in turn. Empty: do not encrypt."""
        self._endpoint = endpoint
        self._server_keys: deque[str | None] = deque(server_keys or [None])
        self._refused = 0
        """Handshakes that were refused since the last that was not."""
        self.router = Link(endpoint, self._server_keys[0])
        self._torn = False
        """Whether an interrupt came in the middle of an exchange with the router: an answer may be lost, or half of a frame sent."""
        self._watcher = watcher
        self._router_host = urlsplit(endpoint).hostname or ""
        self._wires: dict[DirectWay, Wire] = {}
        self._by_descriptor: dict[int, Wire] = {}
        self._watched: dict[int, bool] = {}
        self._direct_frames = 0
        """The frames of direct ways, by the count of the routes, that were given to their wires."""
        self._interrupted: list[Wire] = []
        """Wires on which an interrupt came between a system call and its effect: their streams can't be trusted any more."""

    @property
    def descriptors(self) -> list[tuple[int, bool]]:
        """Every descriptor to look at, with whether it is to take something."""
        return [*((each, False) for each in self.router.descriptors), *self._watched.items()]

    @property
    def closed(self) -> bool:
        """Whether they can't be used any more."""
        return self.router.closed

    def exchange(self, session: Session, now: float, ready: Collection[int] | None = ()) -> bool:
        """Send outgoing frames and read arrived ones; True if there are more than were read.

        ``ready``: the descriptors that are ready; None: any may be.
        """
        if self._torn:
            self._renew(session, now)
        while self._interrupted:
            self._lose(self._interrupted.pop(), session, now)
        more = arrived = False
        for descriptor in self._all() if ready is None else ready:
            wire = self._by_descriptor.get(descriptor)
            if wire is not None:
                more |= self._serve(wire, session, now)
            elif descriptor in self.router.descriptors:
                arrived = True
        more |= self._exchange(session, now, arrived=arrived)
        routes = session.routes
        while routes.direct_frames != self._direct_frames or routes.wanted or routes.unwanted:
            more |= self._write(session, now)
            if session.outgoing:
                more |= self._exchange(session, now, arrived=False)
        return more

    def _exchange(self, session: Session, now: float, *, arrived: bool) -> bool:
        try:
            more = self.router.exchange(session, now, arrived=arrived)
        except BaseException:
            self._torn = True
            raise
        link = self.router
        if link.accepted:
            self._refused, link.accepted = 0, False
        self._torn |= link.dead
        if link.refused is not None:
            why, link.refused = link.refused, None
            return self._try_next_key(why, session) or more
        return more

    def _try_next_key(self, why: str, session: Session) -> bool:
        """Have another key of the server tried at once, and return True; False if that was the last one.

        Then libzmq tries the last key again after a pause, and the others follow.
        """
        self._refused += 1
        if self.router.dead or self._refused % len(self._server_keys) == 0:
            session.refused_link(why, final=self.router.dead)
            return False
        self._server_keys.rotate(-1)
        self._torn = True
        return True

    def distrust(self) -> None:
        """Begin anew with the router in the next exchange: an interrupt came in the middle of a change of the session."""
        self._torn = True

    def _renew(self, session: Session, now: float) -> None:
        """Replace the link to the router. What was under way on the old one counts as lost with it."""
        for descriptor in self.router.descriptors:
            self._watcher.unwatch(descriptor)
        self.router.close()
        self.router = Link(self._endpoint, self._server_keys[0])
        for descriptor in self.router.descriptors:
            self._watcher.watch(descriptor, writable=False)
        session.disconnected(now)
        self._torn = False

    def _all(self) -> list[int]:
        return [*self._by_descriptor, *self.router.descriptors]

    def _connect(self, way: DirectWay, session: Session, now: float) -> None:
        self._close(way)
        wire = self._wires[way] = Wire(way, self._router_host)
        if wire.connect():
            self._watch(wire)
        else:
            self._lose(wire, session, now)

    def _serve(self, wire: Wire, session: Session, now: float) -> bool:
        """Go on with a wire whose descriptor is ready."""
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

    def _read(self, wire: Wire, session: Session, now: float) -> bool:
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

    def _write(self, session: Session, now: float) -> bool:
        """Send what is outgoing, and open and close what the session wants; return whether there is more to read than was read."""
        more = False
        routes = session.routes
        direct_frames = routes.direct_frames
        for wire in [wire for way, wire in self._wires.items() if way.outgoing]:
            if now - wire.read_at > CHECKED_S and wire.socket is not None:
                more |= self._read(wire, session, now)
            if wire.way.outgoing and wire.socket is not None:
                self._send(wire, session, now)
        self._direct_frames = direct_frames  # not before: an interrupt may have left some to be sent
        while routes.wanted:
            self._connect(routes.wanted.popleft(), session, now)
        while routes.unwanted:
            self._close(routes.unwanted.popleft())
        return more

    def _send(self, wire: Wire, session: Session, now: float) -> None:
        try:
            connected = wire.write()
        except BaseException:
            self._interrupted.append(wire)
            raise
        if not connected:
            self._lose(wire, session, now)
        elif self._watched.get(wire.descriptor) is not wire.wants_to_write:
            self._watch(wire)

    def _lose(self, wire: Wire, session: Session, now: float) -> None:
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
        self.router.disown()
        for wire in self._wires.values():
            wire.disown()

    def close(self) -> None:
        """Close all connections."""
        for way in list(self._wires):
            self._close(way)
        self.router.close()
