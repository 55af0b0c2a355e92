"""A call that goes to a worker and back while its client has nothing else to do: the usual case of sequential calls.

Then nothing of the general code applies: no retry, no other way, no timer, no other call. :meth:`ShortCalls.frame` makes the
frame and :meth:`ShortCalls.answer` reads the answer; no :class:`~fila_cluster.client.requests.call.PendingCall` is kept in
between. When anything else happens, the shell lets :meth:`ShortCalls.widen` make it one of the usual calls, as if it had
been sent as one, and the general code goes on. So errors, timeouts, retries and lost links are handled in one place.
"""

import math
from collections.abc import Iterable, Sized
from typing import Any, Final, Protocol

from fila_cluster.client.protocol.consuming import Consumption
from fila_cluster.client.protocol.timers import Timers
from fila_cluster.client.requests.call import PendingCall
from fila_cluster.client.requests.connection import BrokerConnection
from fila_cluster.client.requests.routes import DirectWay
from fila_proto_zmq.codec import decode_body, encode_body
from fila_proto_zmq.commands import Command
from fila_proto_zmq.errors import InvalidFrameError
from fila_proto_zmq.frames import REPLY, VERSION, Header
from fila_proto_zmq.stream import pack_request, split_answer

SHORT_BYTES_MAX: Final = 64 * 1024
"""The largest body: it usually fits into a socket at once, and a copy of it costs little."""


class AfterShort(Protocol):
    """What follows a short call before its caller is told: one of both is called, as a part of the session."""

    def answered(self, reply: Any, /) -> None:
        """Take in its reply."""

    def widened(self, call: PendingCall, /) -> None:
        """Follow the usual call that it becomes."""


class ShortCalls:
    """The short call of a session, if one is under way: ``way`` is where it was sent, else None. ``request``: its number.

    ``due_at`` is when the session has something else to do, or the call's time is over: then it is to be widened. Of the last
    one, ``reply`` is the answer, if that came, and ``usual`` the call that it became, if so.
    """

    def __init__(
        self,
        connection: BrokerConnection,
        consumption: Consumption,
        timers: Timers,
        collected: Iterable[Sized],
        timeout_s: float,
    ) -> None:
        """``collected``: what waits for the next flush of the session."""
        self.way: DirectWay | None = None
        self.request = 0
        self.due_at = math.inf
        self.reply: Any = None
        self.usual: PendingCall | None = None
        self.consumption = consumption
        self._connection, self._calls, self._routes = connection, connection.calls, connection.routes
        self._timers = timers
        self._singles, self._settlements, self._forgotten, self._abandoned = collected
        self._timeout_s = timeout_s
        self._key = ""
        self._command: Command
        self._now = 0.0
        self._then: AfterShort | None = None

    def way_of(self, key: str, now: float) -> DirectWay | None:
        """Return the way of a short call for a queue; None if now is no time for one."""
        calls, connection, routes = self._calls, self._connection, self._routes
        shard = routes.names.get(key)
        if (
            shard is None
            or self.way is not None
            or calls.by_request
            or self._singles
            or self._settlements
            or self._forgotten
            or self._abandoned
            or (way := shard.direct) is None
            or not way.open
            or shard.used is not way  # it would change ways
            or shard.routed
            or way.held
            or connection.pipe_bytes
            or connection.welcome is None
            or connection.refusal is not None
            or calls.farewell is not None
            or routes.due_at < math.inf
            or now < shard.stay_until
            or self._timers.heap
            or calls.due_at <= now
            or self.consumption.due_at <= now
        ):
            return None
        return way

    def frame(self, way: DirectWay, key: str, command: Command, now: float, then: AfterShort | None) -> bytes | None:
        """Return the frame of a short call, which is under way now; None if it is too large."""
        body = encode_body(command)
        if len(body) > SHORT_BYTES_MAX:
            return None
        calls = self._calls
        calls.requests = self.request = calls.requests + 1
        self._key, self._command, self._now, self._then = key, command, now, then
        self.due_at = min(now + self._timeout_s, calls.due_at, self.consumption.due_at)
        self.reply = self.usual = None
        tag = way.tags.get(self._routes.names[key].number, 0)
        frame = pack_request(command.opcode, self.request, tag, key.encode(), body)
        self.way = way
        return frame

    def take(self, data: bytes) -> bytes:
        """Take in the answer, if what came begins with it; return the frames that are left."""
        answer = split_answer(data, self.request)
        return answer[1] if answer is not None and self._answered(answer[0]) else data

    def answered_with(self, header: Header, body: bytes | memoryview) -> bool:
        """Take in a frame if it is the answer; return whether it is."""
        is_reply = header.request == self.request and header.flags == REPLY and header.version == VERSION
        return is_reply and self._answered(body)

    def _answered(self, body: bytes | memoryview) -> bool:
        try:
            reply = decode_body(self._command.reply, body)
        except InvalidFrameError:
            return False
        self.way = None
        if self._then is not None:
            self._then.answered(reply)
        self.reply = reply
        return True

    def widen(self) -> PendingCall:
        """Make the short call under way a usual one, and return it."""
        assert self.way is not None
        call = PendingCall(self._key, self._command, self._now, self._timeout_s)
        if self._then is not None:
            self._then.widened(call)
        self._connection.take_over(call, self.request, self.way)
        self.usual = call
        self.way = None  # last: after an interrupt it is widened once more
        return call
