"""The clients and their connections, and the log of refused clients."""

from collections.abc import Callable, Iterator
from heapq import nsmallest
from operator import attrgetter
from typing import Final

from fila_admission.keys import Key
from fila_proto_zmq.errors import InvalidFrameError, PermissionDeniedError, UnauthenticatedError, UnsupportedVersionError
from fila_proto_zmq.events import ClientRefused
from fila_proto_zmq.ids import SESSION_BYTES, TAG_BYTES, client_name, client_of
from fila_router.core.counters import RouterCounters
from fila_router.core.limits import RouterLimits
from fila_router.core.unread import NO_TAG, ClientConnection, RouterSession, Unread

LOG_AGAIN_MS: Final = 10_000
"""How long one event stands for the refusals of its kind."""

CODES: Final = tuple(
    error.code for error in (InvalidFrameError, PermissionDeniedError, UnauthenticatedError, UnsupportedVersionError)
)


class RefusalLog:
    """The refusals of clients to log, of those that are counted."""

    def __init__(self, counters: RouterCounters) -> None:
        self._counters = counters
        self._logged: dict[str, tuple[int, int]] = {}
        """The number of logged refusals, and when they were logged, by code."""

    def to_log(self, now_ms: int) -> Iterator[ClientRefused]:
        """Yield the refusals to log now."""
        for code in CODES:
            count = self._counters.refused.get(code, 0)
            logged, logged_ms = self._logged.get(code, (0, now_ms - LOG_AGAIN_MS))
            if count > logged and now_ms - logged_ms >= LOG_AGAIN_MS:
                self._logged[code] = count, now_ms
                yield ClientRefused(client_name(self._counters.refused_last[code]), code, count - logged)


_FORGET_SHARE: Final = 16
"""The share of the sessions to forget if there are too many. The search for the oldest ones then costs little for each."""

_seen_ms = attrgetter("seen_ms")


class Sessions:
    """All sessions, and the connections that have a session or unread bytes.

    Invariants: a session is in ``by_client`` if and only if it is its connection's; that connection is in ``by_name``.
    """

    def __init__(self, limits: RouterLimits, silence_ms_max: int, entropy: Callable[[int], bytes], unread: Unread) -> None:
        self.by_name: dict[bytes, ClientConnection] = {}
        self.by_client: dict[bytes, RouterSession] = {}
        self._limits = limits
        self._silence_ms_max = silence_ms_max
        self._entropy = entropy
        self._unread = unread

    def __len__(self) -> int:
        return len(self.by_client)

    def new_secret(self) -> bytes:
        """Return a new secret."""
        return self._entropy(SESSION_BYTES)

    def on(self, name: bytes, now_ms: int) -> RouterSession:
        """Return the session on a connection; without one, a new session that can't be resumed."""
        connection = self.by_name.get(name)
        if connection is None or connection.session is None:
            return self._open(client_of(self.new_secret()), name, (NO_TAG,), now_ms)
        connection.session.seen_ms = now_ms
        return connection.session

    def resume(self, name: bytes, secret: bytes, key: Key | None, now_ms: int) -> RouterSession:
        """Put the client that holds ``secret``, and this API key, on this connection."""
        client = client_of(secret, key.digest if key else b"")
        connection, earlier = self.by_name.get(name), self.by_client.get(client)
        if earlier is not None and earlier.connection is not connection:
            self.forget(earlier)
        if connection is not None and connection.session is not None:
            self.forget(connection.session)
        session = self._open(client, name, (secret[:TAG_BYTES], NO_TAG), now_ms)
        session.key, session.name = key, client_name(client)
        session.since_ms = now_ms if earlier is None else earlier.since_ms
        return session

    def _open(self, client: bytes, name: bytes, tags: tuple[bytes, ...], now_ms: int) -> RouterSession:
        if len(self.by_client) >= self._limits.sessions_max:
            for oldest in nsmallest(1 + len(self.by_client) // _FORGET_SHARE, self.by_client.values(), key=_seen_ms):
                self.forget(oldest)
        connection = self.by_name.get(name)
        if connection is None:
            connection = self.by_name[name] = ClientConnection(name)
        session = connection.session = self.by_client[client] = RouterSession(client, connection, now_ms, tags)
        return session

    def forget(self, session: RouterSession) -> None:
        """End a session in this router. Its connection is kept while it has much unread."""
        connection = session.connection
        if connection.session is session:
            del self.by_client[session.client]
            connection.session = None
            self._unread.drop_held(connection)
            self._drop_settled(connection)

    def ended(self, connection: ClientConnection) -> None:
        """Forget a connection that has ended."""
        if connection.session is not None:
            self.forget(connection.session)
        self._unread.clear(connection)
        self.by_name.pop(connection.name, None)

    def _drop_settled(self, connection: ClientConnection) -> None:
        if connection.session is None and not connection.in_debt:
            self._unread.clear(connection)
            self.by_name.pop(connection.name, None)

    def forget_ended(self, wall_ms: int, answered: bytes = b"") -> list[bytes]:
        """Forget sessions whose API key has ended, but not yet that of ``answered``, which has ended its own key.

        Returns their clients.
        """
        ended = [each for each in self.by_client.values() if each.key is not None and each.key.end_in_time(wall_ms)]
        clients = [session.client for session in ended if session.client != answered]
        for client in clients:
            self.forget(self.by_client[client])
        return clients

    def sweep(self, now_ms: int) -> None:
        """Forget sessions that were silent for too long."""
        for session in list(self.by_client.values()):
            if now_ms - session.seen_ms > self._silence_ms_max:
                self.forget(session)
        for connection in list(self.by_name.values()):
            self._drop_settled(connection)
