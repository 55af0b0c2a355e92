"""Clients of the cluster: the library's own asyncio client on a virtual event loop, and raw peers that keep to no protocol."""

import asyncio
from collections.abc import Coroutine, Mapping, Sequence
from functools import partial
from typing import Any

import zmq

from fila_admission.keys import digest_of
from fila_cluster import AsyncClient
from fila_cluster.client.asynchronous import client as asynchronous
from fila_cluster.client.protocol.session import ClientSession
from fila_proto_zmq.ids import client_of
from tests.simulation.replacing import replaced
from tests.simulation.world.event_loop import VirtualLoop
from tests.simulation.world.processes import FRONT
from tests.simulation.world.sockets import DealerSocket, Network
from tests.simulation.world.world import World

ADDRESSES = 4
"""So many machines have clients: those who try wrong keys share them with others."""


def address_of(name: str) -> str:
    """Where a client is."""
    return f"10.0.0.{int(name.rpartition('-')[2]) % ADDRESSES}"


class ClientProcess:
    """A program with one :class:`AsyncClient`: it may be paused, may die without a word, or close its client in good order."""

    def __init__(
        self,
        world: World,
        name: str,
        timeout_s: float,
        work_us: tuple[int, int],
        limits: Mapping[str, int],
        *,
        direct: bool,
        api_key: str = "",
        fronts: Sequence[str] = (FRONT,),
    ) -> None:
        """``fronts``: where the routers are."""
        self.world = world
        self.name = name
        self.address = address_of(name)
        self.api_key = api_key
        self.alive = True
        self.paused_until_us = 0
        self.pauses: list[tuple[int, int]] = []
        self.born_us = world.now_us
        self.died_us: int | None = None
        self.closed_us: int | None = None
        self.sockets: list[Any] = []
        self.tasks: list[asyncio.Task[Any]] = []
        self.loop = VirtualLoop(world, self, work_us)
        previous, world.current = world.current, self
        try:
            with replaced([(asynchronous, "ClientSession", partial(ClientSession, **limits))]):
                self.client = AsyncClient(",".join(fronts), api_key=api_key, timeout=timeout_s, direct=direct)
        finally:
            world.current = previous

    def spawn(self, program: Coroutine[Any, Any, Any]) -> None:
        """Let a program run beside the others of this process."""
        if not self.alive or self.loop.stopped:
            program.close()
            return
        previous, self.world.current = self.world.current, self
        try:
            task = self.loop.create_task(program)
        finally:
            self.world.current = previous
        task._log_destroy_pending = False  # type: ignore[attr-defined]  # a process that dies leaves its tasks behind
        self.tasks.append(task)

    def pause(self, span_us: int) -> None:
        """Let it do nothing for a while: neither its program nor its client's heartbeats."""
        if self.alive:
            self.paused_until_us = max(self.paused_until_us, self.world.now_us + span_us)
            self.pauses.append((self.world.now_us, self.paused_until_us))
            self.world.tell(self.name, f"is paused for {span_us / 1e6:.3f} s")

    def die(self) -> None:
        """End without a word."""
        if not self.alive:
            return
        self.world.tell(self.name, "dies")
        self.alive = False
        self.died_us = self.world.now_us
        self.loop.stop_for_good()
        for socket in self.sockets:
            socket.owner_died()

    # --- what its sockets need ------------------------------------------------------------------------------------------

    def touch(self, what: str) -> None:
        """Clients are paused between their rounds only."""

    def notice(self, source: Any) -> None:
        """A socket became readable."""
        self.loop.readable(source.fd)

    @property
    def identity(self) -> bytes | None:
        """The identity by which workers know it, once a router has given it one."""
        secret = self.client._session._connection._session
        return client_of(secret, digest_of(self.api_key) if self.api_key else b"") if secret else None

    @property
    def dealer(self) -> DealerSocket | None:
        """Its connection's socket."""
        return next((each for each in self.sockets if isinstance(each, DealerSocket) and not each.closed), None)


class RawPeer:
    """A peer that says what it likes under the identity that it likes. ``stalled``: it does not read."""

    def __init__(self, world: World, network: Network, name: str, identity: bytes, front: str = FRONT) -> None:
        self.world = world
        self.name = name
        self.address = address_of(name)
        self.api_key = ""
        """What it greets with."""
        self.sockets: list[Any] = []
        self.paused_until_us = 0
        self.heard: list[list[bytes]] = []
        previous, world.current = world.current, self
        self.socket = DealerSocket(network, self)
        world.current = previous
        if identity:
            self.socket.set(int(zmq.IDENTITY), identity)
        self.socket.connect(front)

    def say(self, parts: list[bytes]) -> None:
        """Send a frame."""
        self.socket.send_multipart(parts)

    def touch(self, what: str) -> None:
        """Nothing happens to it."""

    def notice(self, source: Any) -> None:
        """Something came in."""
        while source.inbox and not self.socket.stalled:
            self.heard.append(source.inbox.popleft())
