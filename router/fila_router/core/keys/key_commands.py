"""Commands about API keys, and the requests that a session's key allows.

After a change, workers get all keys again for the clients that are connected to them directly. Sessions whose key has ended are
forgotten here and ended at all workers: what their clients hold goes back, and no receive of theirs takes a message any more.
"""

from collections import deque
from typing import Any, Final

from fila_proto_zmq import commands as wire
from fila_proto_zmq.errors import InvalidArgumentError, UnauthenticatedError
from fila_router.core.feature import EACH_TICK, NEVER, ClientRequest, Registration, RouterFeature, RouterState
from fila_router.core.keys.access import Access
from fila_router.core.keys.key_replication import KeyReplication
from fila_router.core.unread import RouterSession
from fila_router.core.worker_state import WorkerState

ENDED_AT_ONCE: Final = 100
"""Clients that are ended at the workers in one tick: many may have the same key."""


class ApiKeys(RouterFeature):
    """The API keys of the cluster, if it has authentication."""

    def __init__(self, state: RouterState, access: Access | None) -> None:
        """``access``: None without authentication."""
        super().__init__(state)
        self.commands = {
            **dict.fromkeys((wire.CreateKey, wire.ListKeys, wire.GrantKey, wire.RevokeKey), self._change),
            wire.GetOwnKey: lambda request, command: wire.OwnKey(request.session.key.view() if request.session.key else None),
        }
        self._access = access
        self._ended: deque[bytes] = deque()
        """Clients whose key has ended, but not at the workers yet. A worker ends a lost one after its consumer timeout."""
        self._replication: KeyReplication | None = None
        """How the routers agree on the keys; None for an only router."""
        if access is not None and state.settings.several:
            self._replication = KeyReplication(access, state, self._spread)
            self.answers = dict.fromkeys((wire.StoreKeys, wire.FetchKeys), self._replication.answered)

    def check_access(self, session: RouterSession, opcode: int, queue: bytes, body: Any, now_ms: int) -> None:
        """Raise unless the session's API key allows a request."""
        key = session.key
        if key is None:
            raise UnauthenticatedError("this cluster needs an API key: say Hello with one first")
        if self._replication is not None and self._access is not None and not self._access.is_internal(key):
            self._replication.check_known()
        key.check(opcode, str(queue, "utf-8", "replace"), body, self.state.wall_ms(now_ms))

    def _change(self, request: ClientRequest, command: wire.Command) -> wire.Reply | None:
        access, session, now_ms = self._access, request.session, request.now_ms
        if access is None or session.key is None:
            raise InvalidArgumentError(
                "this cluster has no authentication: run `fila-cluster auth init`, and start it with [auth] enabled = true"
            )
        if self._replication is not None:
            return self._replication.change(request, session.key, command)
        reply = access.obey(session.key, command, self.state.wall_ms(now_ms))
        if access.changed:
            access.changed = False
            self.state.outgoing.notes += access.notes
            access.notes = []
            self._spread(now_ms, session.client)
        return reply

    def _spread(self, now_ms: int, changed_by: bytes = b"") -> None:
        """Apply a change of the keys here and at the workers. ``changed_by``: the client that is answered after that."""
        self._send([worker.identity for worker in self.state.table.workers.values() if worker.routable])
        self._end_sessions(now_ms, changed_by)  # after the keys: a client that is ended at a worker can't come back there

    def _end_sessions(self, now_ms: int, answered: bytes = b"") -> None:
        """End the sessions whose key has ended, but not that of ``answered``."""
        self._ended += self.state.sessions.forget_ended(self.state.wall_ms(now_ms), answered)
        for _ in range(min(len(self._ended), ENDED_AT_ONCE)):
            self.state.outgoing.send(list(self.state.table.workers), wire.EndClient(self._ended.popleft()))

    def _send(self, workers: list[bytes]) -> None:
        """Send all keys to workers. Clients can't connect to a worker directly before it has them."""
        if self._access is not None and not (self._replication is not None and self._replication.waiting):
            self.state.outgoing.send(workers, self._access.copies())

    def on_register(self, registration: Registration) -> None:
        """Send all keys."""
        self._send([registration.worker.identity])

    def on_return(self, worker: WorkerState, now_ms: int) -> None:
        """Send all keys."""
        self._send([worker.identity])

    def on_pulse(self, worker: WorkerState, pulse: wire.Pulse, answer: wire.Pulsed, now_ms: int) -> None:
        """Send all keys again if the worker lacks a change, because a frame was lost with its connection."""
        if self._access is not None and not self._access.is_current(pulse.keys_version):
            self._send([worker.identity])
        if self._replication is not None:
            self._replication.pulsed(worker, pulse.stored_keys, now_ms)

    def tick(self, now_ms: int) -> int:
        """End the sessions whose key has ended."""
        if self._access is None:
            return NEVER
        self._access.tick(self.state.wall_ms(now_ms))
        if self._replication is not None:
            self._replication.tick(now_ms)
        self._end_sessions(now_ms)
        return EACH_TICK
