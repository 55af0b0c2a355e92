"""The workers that serve the shards, for clients that connect to workers directly.

A client gets the placement with its welcome and after each change. A push may be dropped like any other: a client that is
refused by a worker asks for the placement.
"""

from typing import Final

from fila_proto_zmq.codec import encode_body
from fila_proto_zmq.commands import PLACEMENT, DoorView, GetPlacement, Placement
from fila_proto_zmq.frames import pack_header
from fila_router.core.feature import EACH_TICK, RouterFeature, RouterState

PUSHES_MAX: Final = 1000
"""Clients that get a change in one tick. A router with many clients forwards frames between the ticks."""

UNKNOWN_MS_MAX: Final = 3000
"""How long a new router waits for all workers. Those that live register again within a fraction of that."""

_HEADER: Final = pack_header(PLACEMENT)


class Placements(RouterFeature):
    """The placement of the shards, and the clients that have yet to get its last change."""

    def __init__(self, state: RouterState) -> None:
        super().__init__(state)
        self.commands = {GetPlacement: lambda request, command: self.current()}
        self._known = False
        self._body = encode_body(self.current())
        self._outdated: list[bytes] = []

    def current(self) -> Placement:
        """Return the addresses of the workers that serve, with their shards.

        A new router has them when each shard has a worker, or after a while. Until then clients keep the placement that they
        have, because their direct connections outlive a router.
        """
        table = self.state.table
        self._known = self._known or None not in table.owners
        if not self._known:
            return Placement(None)
        return Placement(
            [
                DoorView(worker.name, worker.door, worker.endpoints, [(s, table.epochs[s]) for s in table.shards_of(worker)])
                for worker in sorted(table.workers.values(), key=lambda worker: worker.identity)
                if worker.routable and worker.door
            ]
        )

    def tick(self, now_ms: int) -> int:
        """Push a change to some of the clients."""
        began_ms = self.state.table.began_ms
        self._known = self._known or (began_ms is not None and now_ms - began_ms >= UNKNOWN_MS_MAX)
        body = encode_body(self.current())
        if body != self._body:
            self._body = body
            self._outdated = [session.client for session in self.state.sessions.by_client.values() if session.direct]
        step, self._outdated = self._outdated[:PUSHES_MAX], self._outdated[PUSHES_MAX:]
        self.state.outgoing.to_clients += ([client, _HEADER, b"", body] for client in step)
        return EACH_TICK
