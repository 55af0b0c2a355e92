"""The connected clients, for operators: a list with what they have at the workers, and how a session is ended.

The router learns that a connection has ended only when it sends something there. So it sends a mark to each client on a page, and
leaves out of the answer those that the mark does not reach. This costs no time, because the answer waits for the workers anyway.
"""

from collections.abc import Iterator
from heapq import nsmallest
from typing import Final

from fila_proto_zmq.codec import decode_body
from fila_proto_zmq.commands import (
    ClientsDescribed,
    ClientWork,
    ConnectionList,
    ConnectionView,
    Done,
    ListConnections,
)
from fila_proto_zmq.errors import InvalidArgumentError
from fila_proto_zmq.limits import CONNECTIONS_LISTED_MAX
from fila_router.core.answers import Frame
from fila_router.core.sessions import Sessions
from fila_router.core.unread import MARK_FRAME, Session

WORK_MS_MAX: Final = 1000
"""How long to wait for the workers. The list is useful without their answers, too."""


class ConnectionPage:
    """A page of the sessions, by name, joined with what their clients have at each worker."""

    strict = False
    ms_max = WORK_MS_MAX

    def __init__(self, sessions: Sessions, asked: ListConnections, ahead_ms: int) -> None:
        """``ahead_ms``: how far the wall clock is ahead of the router's. Raise :class:`InvalidArgumentError`."""
        if not 1 <= asked.limit <= CONNECTIONS_LISTED_MAX:
            raise InvalidArgumentError(f"limit of {asked.limit} connections: use 1 to {CONNECTIONS_LISTED_MAX}")
        named = ((each.name, each.client, each) for each in sessions.by_client.values() if each.name > asked.after)
        found = [session for _, _, session in nsmallest(asked.limit + 1, named)]
        self._more = len(found) > asked.limit
        self._sessions = {session.client: session for session in found[: asked.limit]}
        self._ahead_ms = ahead_ms
        self._work: dict[bytes, list[ClientWork]] = {}

    @property
    def clients(self) -> list[bytes]:
        """The clients on this page, as workers know them."""
        return list(self._sessions)

    def marks(self) -> Iterator[Frame]:
        """Yield a frame for each client on this page. Sending it shows whether the client is still connected."""
        for client in self._sessions:
            yield [client, *MARK_FRAME]

    def add(self, body: bytes) -> None:
        """Take in one worker's answer."""
        for work in decode_body(ClientsDescribed, body).clients:
            self._work.setdefault(work.client, []).append(work)

    def whole(self) -> ConnectionList:
        """Return the clients that are still connected."""
        there = [session for session in self._sessions.values() if session.connection.session is session]
        return ConnectionList([self._view(session) for session in there], self._more and bool(there))

    def _view(self, session: Session) -> ConnectionView:
        work = self._work.get(session.client, [])
        return ConnectionView(
            session.name,
            session.key.name if session.key else "",
            session.address,
            session.software,
            session.since_ms + self._ahead_ms,
            max([session.heard_ms + self._ahead_ms, *(each.heard_ms for each in work)]),
            sorted({queue for each in work for queue in each.consumes}),
            sum(each.subscriptions for each in work),
            sum(each.unsettled for each in work),
        )


class Endings:
    """The workers' answers that a session has ended there. A lost worker need not answer: what it had of the session is gone."""

    strict = False
    ms_max = WORK_MS_MAX

    def add(self, body: bytes) -> None:
        """Take in one worker's answer."""
        decode_body(Done, body)

    def whole(self) -> Done:
        """Return the answer."""
        return Done()


def session_named(name: str, sessions: Sessions) -> Session:
    """Return the session of this name. Raise :class:`InvalidArgumentError` unless there is exactly one."""
    found = [session for session in sessions.by_client.values() if session.name == name] if name else []
    if not found:
        raise InvalidArgumentError(
            f"no client {name!r} is connected to this router: `fila-cluster connections list` shows which are"
        )
    if len(found) > 1:  # names have 32 bits
        raise InvalidArgumentError(
            f"{len(found)} clients have the name {name!r} by chance: revoke the API key of the one to end"
        )
    return found[0]
