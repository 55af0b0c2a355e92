"""Brokers in this process, and the link to one of them: ``memory://NAME`` instead of a socket.

:mod:`fila_cluster.testing` and :mod:`fila_cluster.embedded` enter their brokers here by name. A client finds its broker by
the name of its endpoint whenever it exchanges frames. So it may be made before the broker, and continues with the next
broker of the same name, as with a broker that was restarted: it greets, and its leases of the old one are lost.

A broker may have a clock of its own (``keeps_time``). Then all times of its clients are of that clock, and the clock
itself calls their :meth:`Inhabitant.tick`. A wait of the thread that keeps the clock moves it to the next date. Waits of
other threads and of event loops let it run as fast as real time. Rejected: a second shell for such brokers (it would be
the shell that no production has); a clock that always runs with real time (a test that is slow would get other
results).
"""

import math
import os
import threading
import time
import weakref
from collections import deque
from typing import TYPE_CHECKING, Final, Protocol

from fila_cluster.client.io.link import Bell
from fila_cluster.client.protocol.session import ClientSession
from fila_proto_zmq.errors import InvalidArgumentError, RequestTimeoutError, ShardUnavailableError
from fila_proto_zmq.frames import HEADER_BYTES

if TYPE_CHECKING:
    import select

FRAMES_PER_EXCHANGE = 256
"""The most frames that an exchange reads before it sends."""
PATIENCE_S: Final = 600.0
"""How far one call may move a broker's own clock. For a call that would wait for ever, such as a consumer of an empty
queue, this is the end: a test that hangs says nothing."""

GRACE_MS: Final = 5
"""How long a call waits before it moves a broker's own clock, if there are other threads that may use the broker."""


class InsideConnection(Protocol):
    """A client's connection to a broker in this process."""

    arrived: deque[list[bytes]]
    """Frames for the client. The client takes them out, in any thread."""

    def put(self, frames: list[bytes]) -> None:
        """Send a frame. It is carried out in :meth:`InsideBroker.serve` at the latest."""

    def close(self) -> None:
        """End the connection."""


class Inhabitant(Protocol):
    """The shell of a client: a pump, or a reactor."""

    def tick(self) -> None:
        """Read the frames that have come, and do the work that is due. Called in any thread, without a lock of the broker."""

    def due_at(self) -> float:
        """Return when it has something to do by itself, by its broker's clock; infinity: never."""


class InsideBroker(Protocol):
    """A broker in this process, as its clients see it. All methods may be called in any thread."""

    keeps_time: bool
    """Whether it has a clock of its own."""

    def now(self) -> float:
        """Return monotonic seconds. Of several brokers of one name no later one begins before an earlier one has ended."""

    def connect(self, link: "InsideLink") -> InsideConnection:
        """Open a connection. ``link.ring`` is called when frames have arrived."""

    def serve(self) -> None:
        """Carry out the frames that were sent, now or soon."""

    def rest(self, until: float) -> bool:
        """Move the clock to the next date, at most to ``until``; return False if this thread does not keep it."""

    def reach(self, until: float) -> None:
        """Move the clock to ``until``, because so much time has passed, unless another thread moves it."""


_lock = threading.RLock()  # a finalizer may come in between, and use a client
_brokers: dict[str, InsideBroker] = {}
_inhabitants: "weakref.WeakKeyDictionary[Inhabitant, str]" = weakref.WeakKeyDictionary()
"""All clients of brokers in this process, with the names of their brokers."""
_ended_at = -math.inf
"""The latest time of any broker with a clock of its own that has ended."""


def enter(name: str, broker: InsideBroker) -> None:
    """Enter a broker as ``memory://NAME``, for clients to find. Raise :class:`InvalidArgumentError` if the name is taken."""
    with _lock:
        if name in _brokers:
            raise InvalidArgumentError(
                f"memory://{name}: there is a broker of this name in this process; close it, or choose another name"
            )
        _brokers[name] = broker
    tick_all(name)


def leave(name: str, broker: InsideBroker) -> None:
    """Remove a broker: clients find it no more, and calls that wait for its answers end now."""
    global _ended_at  # noqa: PLW0603
    with _lock:
        if _brokers.get(name) is not broker:
            return
        del _brokers[name]
        if broker.keeps_time:
            _ended_at = max(_ended_at, broker.now())
    tick_all(name)


def find(name: str) -> InsideBroker | None:
    """Return the broker of a name, if there is one now."""
    return _brokers.get(name)


def earliest() -> float:
    """Return the time at which the clock of a new broker may begin."""
    return _ended_at


def inhabitants(name: str) -> list[Inhabitant]:
    """Return the clients of a broker."""
    with _lock:
        return [inhabitant for inhabitant, home in list(_inhabitants.items()) if home == name]


def tick_all(name: str) -> None:
    """Call :meth:`Inhabitant.tick` of all clients of a broker."""
    for inhabitant in inhabitants(name):
        inhabitant.tick()


def forget_parent() -> None:
    """Remove all brokers in the child of a fork: their threads are the parent's."""
    global _lock  # noqa: PLW0603
    _lock = threading.RLock()
    _brokers.clear()


os.register_at_fork(after_in_child=forget_parent)


class InsideTime:
    """The time of a client of a broker in this process."""

    def __init__(self, name: str) -> None:
        self._name = name

    @property
    def _keeper(self) -> InsideBroker | None:
        broker = _brokers.get(self._name)
        return broker if broker is not None and broker.keeps_time else None

    @property
    def is_kept(self) -> bool:
        """Whether the broker has a clock of its own: then the client needs no timers."""
        return self._keeper is not None

    def now(self) -> float:
        """Return monotonic seconds."""
        broker = _brokers.get(self._name)
        return max(time.monotonic(), _ended_at) if broker is None else broker.now()

    def poll(self, poller: "select.poll", sleep_ms: int, began: float, *, ends: bool) -> list[tuple[int, int]]:
        """Wait for descriptors as ``poller.poll(sleep_ms)`` does. ``began``: when the call began that waits; ``ends``:
        whether it ends by itself."""
        broker = self._keeper
        if broker is None:
            return poller.poll(sleep_ms)
        others = threading.active_count() > 1 and broker.now() == began
        if ready := poller.poll(GRACE_MS if others else 0):
            return ready
        until = broker.now() + sleep_ms / 1000
        if broker.rest(until):
            if not ends and broker.now() - began > PATIENCE_S:
                raise _out_of_patience(broker.now() - began)
            return poller.poll(0)
        ready = poller.poll(sleep_ms)
        if not ready:
            broker.reach(until)
        return ready

    def rest(self, until: float) -> bool:
        """Move the clock to the next date, at most to ``until``; return False if another thread moves it."""
        broker = self._keeper
        return broker is not None and broker.rest(until)

    def reach(self, until: float) -> None:
        """Move the clock to ``until``, because so much real time has passed."""
        broker = self._keeper
        if broker is not None:
            broker.reach(until)


class InsideLink:
    """The link of a client to a broker in this process: the interface of :class:`~fila_cluster.client.io.link.RouterLink`."""

    dead = lost = accepted = False
    refused: str | None = None

    def __init__(self, name: str, inhabitant: Inhabitant) -> None:
        """``inhabitant``: the client's shell."""
        self._name = name
        self._broker: InsideBroker | None = None
        self._pipe: InsideConnection | None = None
        self._bell = Bell()
        self._ringing = threading.RLock()
        self.closed = False
        self.descriptors = (self._bell.descriptor,)
        with _lock:
            _inhabitants[inhabitant] = name

    def ring(self) -> None:
        """Wake the client: frames have arrived, or its broker has come or gone."""
        with self._ringing:
            if not self.closed:
                self._bell.ring()

    def exchange(self, session: ClientSession, now: float, *, arrived: bool) -> bool:
        """Send the outgoing frames and read arrived ones; True if there are more than were read."""
        with self._ringing:
            self._bell.silence()
        broker = _brokers.get(self._name)
        if broker is not self._broker:
            self._move(broker, session, now)
        pipe = self._pipe
        if broker is None or pipe is None:
            session.flush(now)
            session.fail_all(_no_broker(self._name))
            return False
        while True:
            more = self._take_in(pipe, session, now)
            session.flush(now)
            if not session.outgoing:
                return more
            while session.outgoing:
                pipe.put(session.outgoing.popleft())
            broker.serve()

    def _move(self, broker: InsideBroker | None, session: ClientSession, now: float) -> None:
        """Continue with another broker, or without one. Frames under way count as lost."""
        first = self._broker is None and self._pipe is None and broker is not None
        if self._pipe is not None:
            self._pipe.close()
        self._broker = broker
        self._pipe = None if broker is None else broker.connect(self)
        if not first or session.has_refusal:
            session.disconnected(now)

    def _take_in(self, pipe: InsideConnection, session: ClientSession, now: float) -> bool:
        arrived = pipe.arrived
        for _ in range(FRAMES_PER_EXCHANGE):
            if not arrived:
                return False
            header, key, body = arrived.popleft()
            if len(header) == HEADER_BYTES:
                session.arrived((header, key, body), now)
        return bool(arrived)

    def disown(self) -> None:
        """Leave the connection to the parent, in the child of a fork."""
        self._ringing = threading.RLock()
        self._pipe = None
        self._shut()

    def close(self) -> None:
        """Close the connection."""
        pipe, self._pipe = self._pipe, None
        if pipe is not None:
            pipe.close()
        self._shut()

    def _shut(self) -> None:
        with self._ringing:
            self.closed = True
            self._bell.close()


def _no_broker(name: str) -> ShardUnavailableError:
    return ShardUnavailableError(
        f"no broker memory://{name} in this process: open one by `with fila_cluster.testing.broker()`, "
        "by the pytest fixture `fila`, or by fila_cluster.embedded.Broker, and use its `endpoint`",
        details={"endpoint": f"memory://{name}"},
    )


def _out_of_patience(waited_s: float) -> RequestTimeoutError:
    """Return the error of a call that would wait for ever."""
    return RequestTimeoutError(
        f"nothing came for {waited_s:g} s of the broker's own clock: a real broker would let this call wait on; "
        "enqueue first, or receive with a `wait`",
        details={"waited": waited_s},
    )
