"""The bytes that a client was sent and may not have read, and the limits on them.

Bytes that a client does not read stay in this process: in its connection's pipe, which libzmq bounds in frames but not in
bytes. libzmq does not report which frames have left a pipe. But a pipe takes only ``pipe_frames`` frames: whenever this many
more were accepted, the earlier ones are gone. So frames are counted in generations of that size, and at most the latest two
generations can be in the pipe. Their bytes are the connection's *unread* ones: an upper bound, and nothing that a client
sends can lower it.

A connection with much unread that has no further traffic is *probed*: it is sent empty frames (MARK, to be ignored) until two
generations were accepted, or until the pipe is full, which shows that its client does not read.

A frame that a pipe does not take is held back here, in order, as long as the client is within its bounds:

- beyond ``client_unread_refused`` its requests are refused, except those that relieve a worker;
- beyond ``client_unread_max`` frames for it are dropped, as for a client that is gone: it asks again, and leases that it
  never saw end by themselves;
- a *page* is a large answer to a small request, so it counts as unread from the moment of the request. A client whose unread
  bytes are the size of ``client_pages_max`` pages, or all that is free of half of ``unread_max``, has further pages refused
  before a worker sees them;
- all together may have ``unread_max``. Once half of that is taken, each may have as much as is still free (the dynamic
  threshold of Choudhury & Hahne 1998); so those with the most are limited first. This is for clients whose pipe has stayed
  full for a while: a client that reads may have as much again, up to twice ``unread_max``. Beyond that each may have its part
  of ``unread_max``, for the largest possible number of clients.
"""

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Final

from fila_admission.keys import Key
from fila_proto_zmq.commands import MARK
from fila_proto_zmq.frames import pack_header
from fila_proto_zmq.ids import TAG_BYTES
from fila_router.core.limits import RouterLimits

FRAME_BYTES: Final = 256
"""The size of a frame beside its body."""

MARK_FRAME: Final = [pack_header(MARK), b"", b"\x90"]

PAUSE_MS_MAX: Final = 250
"""A pipe that is full is tried again at least so often."""

STUCK_PAUSE_MS: Final = 127
"""A pipe whose pause has grown to this has been full for this long: its client does not read, or is slow."""

NO_TAG: Final = bytes(TAG_BYTES)
"""The tag of requests that name no session: they belong to the session on their connection."""


@dataclass(slots=True, eq=False)
class ClientConnection:
    """A connection of a client, by the name that libzmq has for it. ``session``: the session on it now.

    ``recent``, ``earlier``: bytes of the generation of frames under way and of the one before; ``frames``: the number of
    accepted frames of the former. ``held``: frames that the pipe did not take, of ``held_bytes``. ``in_debt``: it has much
    unread.
    """

    name: bytes
    session: "RouterSession | None" = None
    recent: int = 0
    earlier: int = 0
    frames: int = 0
    held: deque[list[Any]] = field(default_factory=deque)
    held_bytes: int = 0
    in_debt: bool = False
    pause_ms: int = 0
    due_ms: int = 0

    @property
    def unread(self) -> int:
        """Bytes that it may not have read."""
        return self.recent + self.earlier + self.held_bytes

    @property
    def stuck(self) -> bool:
        """Whether its pipe has taken nothing for a while."""
        return self.pause_ms >= STUCK_PAUSE_MS


@dataclass(slots=True, eq=False)
class RouterSession:
    """A client on its connection.

    ``tags``: the session tags that its requests may have. ``direct``: whether it asked for the placement. ``key``: its API
    key, if the cluster has authentication.
    ``name``, ``address`` and ``software`` are for people: empty before it has greeted.
    """

    client: bytes
    connection: ClientConnection
    seen_ms: int
    tags: tuple[bytes, ...] = (NO_TAG,)
    key: Key | None = None
    direct: bool = False
    name: str = ""
    address: str = ""
    software: str = ""
    since_ms: int = 0
    """When it greeted first."""


class Unread:
    """The unread bytes of all connections.

    Invariants: ``total`` is their sum; ``debtors`` are those that are ``in_debt``: those with more than ``unread_little``,
    and those that were refused a frame; those with frames held back are in ``waiting``.
    """

    def __init__(self, limits: RouterLimits) -> None:
        self.total = 0
        self.debtors: dict[ClientConnection, None] = {}
        self.waiting: dict[ClientConnection, None] = {}
        """Connections to be tried again at their ``due_ms``."""
        self.due_ms: int | None = None
        """When the first of them is due, or earlier."""
        self._limits = limits
        self._generation = limits.pipe_frames
        self._little = limits.unread_little
        self._probed = limits.unread_probed
        self._half = limits.unread_max // 2
        self._quarter = limits.unread_max // 4

    @property
    def _free(self) -> int:
        """Bytes that all connections together may still take."""
        return self._limits.unread_max - self.total

    # --- sending ------------------------------------------------------------------------------------------------------

    def take(self, connection: ClientConnection, body_bytes: int, now_ms: int) -> bool:
        """Note a frame that is about to be sent; False: it must be dropped."""
        size = body_bytes + FRAME_BYTES
        # Before the size is compared: what has certainly left the pipe must not count against the client.
        if connection.frames >= self._generation:
            self._turn_over(connection)
        unread = connection.recent + connection.earlier + connection.held_bytes + size
        if unread > self._little or self.total > self._half:
            fits = self._fits(connection, unread - size, size)
            self._owes(connection, unread, now_ms, must_read=not fits)
            if not fits:
                return False
        connection.frames += 1
        connection.recent += size
        self.total += size
        return True

    def _fits(self, connection: ClientConnection, unread: int, size: int) -> bool:
        limits, total = self._limits, self.total + size
        # From the hardest limit to the softest: the first one that applies decides.
        if total > 2 * limits.unread_max:
            return unread + size <= limits.unread_max // limits.sessions_max
        if unread <= self._little:
            return True
        if unread + size > limits.client_unread_max:
            return False
        if total <= self._half or unread + size <= self._free:
            return True
        return not connection.stuck and unread + size <= limits.client_unread_refused

    def _owes(self, connection: ClientConnection, unread: int, now_ms: int, *, must_read: bool) -> None:
        if (must_read or unread > self._little) and not connection.in_debt:
            connection.in_debt = True
            self.debtors[connection] = None
        asks = must_read or unread > self._probed or (connection.in_debt and unread > self._free // 4)
        if asks and connection not in self.waiting:
            self._try_soon(connection, now_ms)

    def _turn_over(self, connection: ClientConnection) -> None:
        """Start a new generation: the frames before the last one have left the pipe."""
        self.total -= connection.earlier
        connection.earlier, connection.recent, connection.frames = connection.recent, 0, 0
        if connection.in_debt and connection.unread <= self._little:
            connection.in_debt = False
            del self.debtors[connection]

    def hold(self, connection: ClientConnection, frame: list[Any], now_ms: int) -> None:
        """Keep a frame that was noted and that the pipe did not take."""
        size = len(frame[-1]) + FRAME_BYTES
        # take() has counted it as accepted; only accepted frames may push earlier ones out of the pipe.
        connection.frames -= 1
        connection.recent -= size
        connection.held_bytes += size
        connection.held.append(frame)
        if connection not in self.waiting:
            self._try_soon(connection, now_ms)

    def drop_held(self, connection: ClientConnection) -> None:
        """Drop the frames that are held back: their client is gone."""
        self.total -= connection.held_bytes
        connection.held_bytes = 0
        connection.held.clear()

    def clear(self, connection: ClientConnection) -> None:
        """Forget a connection that has ended: its pipe is gone."""
        self.total -= connection.unread
        connection.recent = connection.earlier = connection.held_bytes = 0
        connection.held.clear()
        connection.in_debt = False
        self.debtors.pop(connection, None)
        self.waiting.pop(connection, None)

    # --- asking -------------------------------------------------------------------------------------------------------

    def may_ask(self, connection: ClientConnection) -> bool:
        """Return whether a client may send more requests, or has to read first."""
        if connection.unread > self._limits.client_unread_refused:
            return False
        if self.total <= self._half or not connection.stuck:
            return True
        return connection.unread <= max(self._little, self._free)

    def may_ask_page(self, connection: ClientConnection, own_pages: int, all_pages: int, now_ms: int) -> bool:
        """Return whether a client may ask for one more page beside those that are open, its own ones and all.

        It is probed in time, so that one that reads page after page is never refused for those that it has read.
        """
        limits = self._limits
        own_max = limits.client_pages_max * limits.page_bytes
        unread = connection.unread + own_pages * limits.page_bytes
        bound = min(own_max, self._half - self.total - all_pages * limits.page_bytes)
        fits = unread <= self._little or unread + limits.page_bytes <= bound
        if not fits or connection.unread > own_max // 4:
            self._probe(connection, now_ms)
        return fits

    def page_sent(self, connection: ClientConnection, now_ms: int) -> None:
        """Note that a page was sent. Where pages are scarce, the next one is refused until this one has been read."""
        if self.total > self._quarter:
            self._probe(connection, now_ms)

    # --- trying again -------------------------------------------------------------------------------------------------

    def _probe(self, connection: ClientConnection, now_ms: int) -> None:
        if connection.in_debt and connection not in self.waiting:
            self._try_soon(connection, now_ms)

    def _try_soon(self, connection: ClientConnection, now_ms: int) -> None:
        self.waiting[connection] = None
        connection.due_ms = now_ms
        self.due_ms = now_ms

    def probe_debtors(self, now_ms: int) -> None:
        """Probe the clients with much unread, if much is unread altogether. Called at each tick."""
        if self.total > self._half:
            for connection in self.debtors:
                if connection not in self.waiting:
                    self._try_soon(connection, now_ms)

    def due(self, now_ms: int) -> list[ClientConnection]:
        """Return the connections to try now: send the held frames, then marks while they are ``in_debt``."""
        if self.due_ms is None or now_ms < self.due_ms:
            return []
        due = [connection for connection in self.waiting if connection.due_ms <= now_ms]
        later = [connection.due_ms for connection in self.waiting if connection.due_ms > now_ms]
        self.due_ms = min(later, default=None)
        return due

    def try_again(
        self, now_ms: int, begin: Callable[[ClientConnection], bool], finish: Callable[[ClientConnection, list[Any]], None]
    ) -> None:
        """Send held frames, and marks, to the connections that are due, and note which of them take some.

        ``begin``: begins a frame; returns False if the pipe is full, or if the client is gone, with its held frames.
        ``finish``: sends the frame's parts.
        """
        for connection in self.due(now_ms):
            if self._is_full(connection, begin, finish):
                self.full(connection, now_ms)
            else:
                self.done(connection)

    def _is_full(
        self,
        connection: ClientConnection,
        begin: Callable[[ClientConnection], bool],
        finish: Callable[[ClientConnection, list[Any]], None],
    ) -> bool:
        held = connection.held
        while held:
            if not begin(connection):
                return bool(held)
            finish(connection, held[0])
            self.released(connection)
        while connection.in_debt:
            if not begin(connection):
                return connection.in_debt
            finish(connection, MARK_FRAME)
            self.marked(connection)
        return False

    def released(self, connection: ClientConnection) -> None:
        """Note that the pipe took the first of the frames that are held back."""
        size = len(connection.held.popleft()[-1]) + FRAME_BYTES
        connection.held_bytes -= size
        connection.recent += size
        self.marked(connection)

    def marked(self, connection: ClientConnection) -> None:
        """Note that the pipe took a mark."""
        connection.pause_ms = 0
        connection.frames += 1
        if connection.frames >= self._generation:
            self._turn_over(connection)

    def full(self, connection: ClientConnection, now_ms: int) -> None:
        """Note that the pipe took nothing; it is tried again later."""
        connection.pause_ms = min(PAUSE_MS_MAX, 2 * connection.pause_ms + 1)
        connection.due_ms = now_ms + connection.pause_ms
        self.due_ms = connection.due_ms if self.due_ms is None else min(self.due_ms, connection.due_ms)

    def done(self, connection: ClientConnection) -> None:
        """Note that no frame is held back any more, and no mark is needed."""
        self.waiting.pop(connection, None)
