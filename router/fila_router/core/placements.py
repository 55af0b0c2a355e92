"""Where the shards are, for the clients that reach workers directly.

A client hears of it with its welcome and after each change. A push may be dropped like any other: a client that is refused by
a worker asks again.
"""

from collections.abc import Iterator
from typing import Final

from fila_proto_zmq.codec import encode_body
from fila_proto_zmq.commands import PLACEMENT, DoorView, Placement
from fila_proto_zmq.frames import pack_header
from fila_router.core.answers import Frame
from fila_router.core.routing import RoutingTable
from fila_router.core.sessions import Sessions

PUSHES_MAX: Final = 1000
"""Clients that hear of a change in one step: a router with many clients goes on between the steps."""

UNKNOWN_MS_MAX: Final = 3000
"""How long a new router waits for all workers. Those that live register again within a fraction of that."""

_HEADER: Final = pack_header(PLACEMENT)


class Placements:
    """The placement of the shards, and the clients that have yet to hear of its last change."""

    def __init__(self, table: RoutingTable, sessions: Sessions) -> None:
        self._table = table
        self._sessions = sessions
        self._known = False
        self._body = encode_body(self.current())
        self._to_hear: list[bytes] = []

    def current(self) -> Placement:
        """Return the doors of the workers that serve, with their shards.

        A new router knows them when each shard has a worker, or after a while. Until then clients keep what they know, because
        their direct connections outlive a router.
        """
        table = self._table
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

    def tick(self, now_ms: int) -> Iterator[Frame]:
        """Yield the pushes of a change, a step of them. Call it a few times a second."""
        began_ms = self._table.began_ms
        self._known = self._known or (began_ms is not None and now_ms - began_ms >= UNKNOWN_MS_MAX)
        body = encode_body(self.current())
        if body != self._body:
            self._body = body
            self._to_hear = [session.client for session in self._sessions.by_client.values() if session.direct]
        step, self._to_hear = self._to_hear[:PUSHES_MAX], self._to_hear[PUSHES_MAX:]
        for client in step:
            yield [client, _HEADER, b"", body]
