"""The connected clients and their administrative acts, for operators.

The router notices that a connection has ended only when it sends a frame there. So it sends a mark to each client on a page,
and leaves out of the answer those that the mark does not reach. This costs no time, because the answer waits for the workers
anyway.
"""

from collections.abc import Iterator
from heapq import nsmallest
from typing import Final

from fila_proto_zmq import commands as wire
from fila_proto_zmq.codec import decode_body, encode_body
from fila_proto_zmq.errors import InvalidArgumentError
from fila_proto_zmq.frames import pack_header
from fila_proto_zmq.limits import ACTS_LISTED_MAX, CONNECTIONS_LISTED_MAX
from fila_router.core.answers import Frame
from fila_router.core.fan_in import FanIns, JoinedPages
from fila_router.core.feature import EACH_TICK, ClientRequest, RouterFeature, RouterState
from fila_router.core.sessions import RefusalLog, Sessions
from fila_router.core.unread import MARK_FRAME, RouterSession
from fila_router.core.worker_state import WorkerState

WORK_MS_MAX: Final = 1000
"""How long to wait for the workers. The list is useful without their answers, too."""

_CLOSED_FRAME: Final = [pack_header(wire.CLOSED), b"", b"\x90"]


class ConnectionPage:
    """A page of the sessions, by name, joined with the leases and subscriptions of their clients at each worker."""

    strict = False
    ms_max = WORK_MS_MAX

    def __init__(self, sessions: Sessions, asked: wire.ListConnections, ahead_ms: int) -> None:
        """``ahead_ms``: how far the wall clock is ahead of the router's. Raise :class:`InvalidArgumentError`."""
        if not 1 <= asked.limit <= CONNECTIONS_LISTED_MAX:
            raise InvalidArgumentError(f"limit of {asked.limit} connections: use 1 to {CONNECTIONS_LISTED_MAX}")
        named = ((each.name, each.client, each) for each in sessions.by_client.values() if each.name > asked.after)
        found = [session for _, _, session in nsmallest(asked.limit + 1, named)]
        self._more = len(found) > asked.limit
        self._sessions = {session.client: session for session in found[: asked.limit]}
        self._ahead_ms = ahead_ms
        self._work: dict[bytes, list[wire.ClientWork]] = {}

    @property
    def clients(self) -> list[bytes]:
        """The ids of the clients on this page."""
        return list(self._sessions)

    def marks(self) -> Iterator[Frame]:
        """Yield a frame for each client on this page. Sending it shows whether the client is still connected."""
        for client in self._sessions:
            yield [client, *MARK_FRAME]

    def add(self, body: bytes) -> None:
        """Take in one worker's answer."""
        for work in decode_body(wire.ClientsDescribed, body).clients:
            self._work.setdefault(work.client, []).append(work)

    def whole(self) -> wire.ConnectionList:
        """Return the clients that are still connected."""
        there = [session for session in self._sessions.values() if session.connection.session is session]
        return wire.ConnectionList([self._view(session) for session in there], self._more and bool(there))

    def _view(self, session: RouterSession) -> wire.ConnectionView:
        work = self._work.get(session.client, [])
        return wire.ConnectionView(
            session.name,
            session.key.name if session.key else "",
            session.address,
            session.software,
            session.since_ms + self._ahead_ms,
            max([session.seen_ms + self._ahead_ms, *(each.heard_ms for each in work)]),
            sorted({queue for each in work for queue in each.consumes}),
            sum(each.subscriptions for each in work),
            sum(each.unsettled for each in work),
        )


def _endings() -> JoinedPages[wire.Done]:
    """Return what joins the answers that a session has ended: a lost worker need not answer, its part of it is lost, too."""
    return JoinedPages(wire.Done, lambda _: wire.Done(), strict=False, ms_max=WORK_MS_MAX)


class ConnectedClients(RouterFeature):
    """The list of clients, the end of a session, and the administrative acts and refusals to log."""

    def __init__(self, state: RouterState, fan_ins: FanIns) -> None:
        super().__init__(state)
        self.commands = {wire.ListConnections: self._list, wire.CloseConnection: self._close, wire.ListActs: self._list_acts}
        self._fan_ins = fan_ins
        self._refusals = RefusalLog(state.counters)

    def _list(self, request: ClientRequest, command: wire.ListConnections) -> wire.Reply | None:
        page = ConnectionPage(self.state.sessions, command, self.state.wall_ahead_ms)
        asked = self._fan_ins.live_workers() if page.clients else set()
        if not asked:
            return page.whole()
        self._fan_ins.ask(request, asked, wire.DescribeClients.opcode, encode_body(wire.DescribeClients(page.clients)), page)
        self.state.outgoing.to_clients += page.marks()
        return None

    def _close(self, request: ClientRequest, command: wire.CloseConnection) -> None:
        """End a session here and at all workers. The answer waits for the workers that are up, but not for the others."""
        sessions, outgoing = self.state.sessions, self.state.outgoing
        session = session_named(command.client, sessions)
        if session is request.session:
            raise InvalidArgumentError(f"{command.client!r} is the client that asks: end its program instead")
        asked = self._fan_ins.live_workers()
        end = wire.EndClient(session.client)
        if asked:
            self._fan_ins.ask(request, asked, wire.EndClient.opcode, encode_body(end), _endings())
            outgoing.note(outgoing.audit.end(request.session.client, request.header))
        else:
            outgoing.answer(request.address, wire.Done())
        outgoing.send([identity for identity in self.state.table.workers if identity not in asked], end)
        sessions.forget(session)
        ungreeted = sessions.on(session.connection.name, request.now_ms)  # the connection's session until it greets again
        outgoing.to_clients.append([ungreeted.client, *_CLOSED_FRAME])

    def _list_acts(self, request: ClientRequest, command: wire.ListActs) -> wire.ActList:
        if not 1 <= command.limit <= ACTS_LISTED_MAX:
            raise InvalidArgumentError(f"limit of {command.limit} acts: use 1 to {ACTS_LISTED_MAX}")
        return wire.ActList(self.state.outgoing.audit.latest(command.limit))

    def on_pulse(self, worker: WorkerState, pulse: wire.Pulse, answer: wire.Pulsed, now_ms: int) -> None:
        """Add the acts of clients that are connected to the worker directly."""
        self.state.outgoing.audit.heard(pulse.acts)

    def tick(self, now_ms: int) -> int:
        """Probe the clients with much unread, and log refusals."""
        self.state.unread.probe_debtors(now_ms)
        self.state.outgoing.notes += self._refusals.to_log(now_ms)
        return EACH_TICK

    def sweep(self, now_ms: int) -> None:
        """Forget acts that no client waits for any more, and sessions that were silent for too long."""
        outgoing = self.state.outgoing
        outgoing.notes += outgoing.audit.forget_overdue(self.state.wall_ms(now_ms))
        self.state.sessions.sweep(now_ms)


def session_named(name: str, sessions: Sessions) -> RouterSession:
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
