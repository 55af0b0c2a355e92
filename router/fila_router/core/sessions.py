"""Which client speaks on which connection.

A client is known by the hash of a secret that it was given in its Welcome (:mod:`fila_proto_zmq.clients`). Its connection's name is
the router's own affair: workers never see it, and what a peer chose for itself means nothing. A client that comes back, on another
connection or to another router, brings its secret and so is the same client; nothing has to be kept for that. Of two connections with
one secret the later one has the session.

A connection that speaks without a greeting gets a session whose secret nobody has. It ends with the connection.

Requests may carry the *tag* of their session. ZeroMQ sends what waits in a socket as soon as the socket is connected again, so in front
of the greeting: such requests would be taken for those of somebody without a session. Their tag tells, and they are refused.

Nothing tells when a connection ends, except that a frame can't be sent to it. So sessions are forgotten when they are silent.
"""

from collections.abc import Callable
from dataclasses import dataclass
from heapq import nsmallest
from operator import attrgetter
from typing import Final

from fila_proto_zmq.clients import SESSION_BYTES, TAG_BYTES, client_of
from fila_router.core.limits import RouterLimits

NO_TAG: Final = bytes(TAG_BYTES)

_FORGET_SHARE: Final = 16
"""When there are too many sessions, one in so many is forgotten at once, so that looking for the oldest costs little for each."""

_heard_ms = attrgetter("heard_ms")


@dataclass(slots=True, eq=False)
class Session:
    """A client on its connection. ``tags``: what its requests may carry."""

    client: bytes
    connection: bytes
    heard_ms: int
    tags: tuple[bytes, ...] = (NO_TAG,)


class Sessions:
    """All sessions. Invariant: both tables have the same ones, each under its connection and under its client."""

    def __init__(self, limits: RouterLimits, silence_ms_max: int, entropy: Callable[[int], bytes]) -> None:
        self.by_connection: dict[bytes, Session] = {}
        self.by_client: dict[bytes, Session] = {}
        self._limits = limits
        self._silence_ms_max = silence_ms_max
        self._entropy = entropy

    def __len__(self) -> int:
        return len(self.by_client)

    def new_secret(self) -> bytes:
        """A secret that nobody has."""
        return self._entropy(SESSION_BYTES)

    def nameless(self, connection: bytes, now_ms: int) -> Session:
        """A session for a connection that has not greeted; nobody can resume it."""
        return self._open(Session(client_of(self.new_secret()), connection, now_ms))

    def resume(self, connection: bytes, secret: bytes, now_ms: int) -> Session:
        """Let the client that holds ``secret`` be the one on this connection."""
        client, tag = client_of(secret), secret[:TAG_BYTES]
        for earlier in (self.by_connection.get(connection), self.by_client.get(client)):
            if earlier is not None:
                self.forget(earlier)
        return self._open(Session(client, connection, now_ms, (tag, NO_TAG)))

    def _open(self, session: Session) -> Session:
        if len(self.by_client) >= self._limits.sessions_max:
            for oldest in nsmallest(1 + len(self.by_client) // _FORGET_SHARE, self.by_client.values(), key=_heard_ms):
                self.forget(oldest)
        self.by_connection[session.connection] = self.by_client[session.client] = session
        return session

    def forget(self, session: Session) -> None:
        """End a session, as far as this router is concerned. Twice does no harm."""
        if self.by_client.get(session.client) is session:
            del self.by_client[session.client]
            del self.by_connection[session.connection]

    def sweep(self, now_ms: int) -> None:
        """Forget those that were silent for too long."""
        for session in list(self.by_client.values()):
            if now_ms - session.heard_ms > self._silence_ms_max:
                self.forget(session)
