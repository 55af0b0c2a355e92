"""One event loop, one socket: the calls of an :class:`AsyncClient` in a tick of the loop go out at the tick's end.

The socket's descriptor is watched by the loop itself (``add_reader``), on asyncio's own loop and on uvloop. All of it runs
in the loop's thread; nothing here blocks.

:func:`run` runs programs on uvloop where it is installed: it takes a third off what asyncio costs per message.
"""

import asyncio
import math
import threading
import time
from collections.abc import Callable, Collection, Coroutine
from contextlib import suppress
from functools import partial
from typing import Any, Final, TypeVar

from fila_cluster.client.io.inside import InsideTime
from fila_cluster.client.io.link import leave_to_the_parent
from fila_cluster.client.io.links import ClientLinks
from fila_cluster.client.io.wire import Wire
from fila_cluster.client.protocol.receiving import Receiving
from fila_cluster.client.protocol.session import ClientSession
from fila_cluster.client.protocol.short_calls import AfterShort
from fila_cluster.client.requests.call import Pending
from fila_cluster.client.requests.endpoints import EndpointRounds
from fila_proto_zmq.commands import Command
from fila_proto_zmq.errors import FilaError

T = TypeVar("T")

JUMP_S = 0.005
JUMP_ROUNDS = 10
"""How long a receive waits for other tasks before it moves the clock of a broker in this process: at first, and in rounds
of the loop before it moves the clock further."""
TICK_S = 1.0
"""How long a tick of such a broker's clock waits for a loop that runs in another thread."""


class Reactor:
    """Moves a session's frames in an event loop: the one that is running when it is first used."""

    INTERRUPTION: Final = asyncio.CancelledError
    """The exception that ends a wait early."""

    def __init__(self, session: ClientSession, rounds: EndpointRounds, server_keys: tuple[str, ...]) -> None:
        self._session = session
        self._rounds, self._server_keys = rounds, server_keys
        self._links: ClientLinks | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._scheduled = False
        self._timer: asyncio.TimerHandle | None = None
        self._timer_at = math.inf
        self._refusal: FilaError | None = None
        self.is_alone = False
        """Whether the last tick of the loop with a call had only this one: then the next one may be alone, too."""
        self._wire: Wire | None = None
        self._answered: asyncio.Future[Any]
        """Where the answer to the short call comes, and who waits for it."""
        self._inside = InsideTime(rounds.inside) if rounds.inside else None
        """The time of a broker in this process."""
        self._now = time.monotonic if self._inside is None else self._inside.now
        leave_to_the_parent(self)

    @property
    def closed(self) -> bool:
        """Whether it can't be used any more."""
        return self._refusal is not None

    def prepare(self) -> None:
        """Bind to the running loop, which sends at the end of this tick the requests that the session collects now."""
        if self._refusal is not None:
            return
        loop = asyncio.get_running_loop()
        if loop is not self._loop:
            self._attach(loop)
        if not self._scheduled:
            self._scheduled = True
            loop.call_soon(self._scheduled_exchange)

    def ask(self, start: Callable[[float], T]) -> T:
        """Call ``start(now)``, which asks the session for something, and send it. Does not wait for the answer."""
        self._check_open()
        self.prepare()
        return start(self._now())

    def note(self, start: Callable[[float], T]) -> T:
        """Call ``start(now)``, which notes something in the session that sends nothing by itself."""
        return start(self._now())

    def collect(self, put: Callable[..., T], *arguments: Any) -> T:
        """Call ``put``, which collects something in the session that is sent later."""
        self._check_open()
        if asyncio.get_running_loop() is not self._loop:
            self.prepare()
        return put(*arguments)

    def short(self, key: str, make: Callable[[], Command], then: AfterShort | None = None) -> "asyncio.Future[Any] | None":
        """Carry out a command as a short call, if now is the time for one: not while calls of one tick travel together.

        Return a future of its reply, None if nothing was done. A call that was widened is given itself, when it is done.

        """
        if self._scheduled or self._links is None or self._links.closed or self._refusal is not None:
            return None
        loop = asyncio.get_running_loop()
        if loop is not self._loop:
            return None
        wire = self._links.send_short(self._session, key, make, self._now(), then)
        if wire is None:
            return None
        if self._session.short.due_at < self._timer_at:
            self._set_timer(loop, self._session.short.due_at)
        self._wire = wire
        self._answered = future = loop.create_future()
        return future

    def complete(self, pending: Pending[Any]) -> "asyncio.Future[None]":
        """Return a future for ``pending``, which the session has collected after :meth:`prepare`."""
        self._check_open()
        return self.wait(pending)

    def wait(self, pending: Pending[Any]) -> "asyncio.Future[None]":
        """Return a future for ``pending``. A future and no coroutine: one layer less to go through, twice."""
        future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        if pending.done:
            future.set_result(None)
        else:
            pending.wake = partial(_resolve, future, None)
            if self._inside is not None and isinstance(pending, Receiving):
                asyncio.get_running_loop().call_later(JUMP_S, self._jump, pending, self._inside)
        return future

    async def close(self, error: FilaError) -> None:
        """Take leave of the broker (a second at most), then end every call with ``error`` and close the socket."""
        if self.closed:
            return
        alive = self._loop is not None and not self._loop.is_closed()  # else nothing can be sent, and no one waits
        goodbyes = self.ask(lambda now: self._session.goodbye(now, error)) if alive else []
        try:
            for call in goodbyes:
                await self.wait(call)
        finally:  # a cancellation may end the waiting, not the closing
            self._shut(error)

    def push(self) -> None:
        """Send the requests that a finalizer left in the session. May be called in any thread."""
        if self._loop is not None and not self.closed:
            with suppress(RuntimeError):  # that loop is closed
                self._loop.call_soon_threadsafe(self._exchange)

    def disown(self, error: FilaError) -> None:
        """Leave the socket to the parent, in the child of a fork."""
        self._refusal = self._refusal or error
        if self._links is not None:
            self._links.disown()
        self._session.disown(error)

    def tick(self) -> None:
        """Read the frames that have come, and do the work that is due, for a broker in this process. Called in any thread."""
        loop = self._loop
        if loop is None or loop.is_closed() or self.closed:
            return
        if asyncio._get_running_loop() is loop:
            self._exchange(None)
        elif loop.is_running():
            ticked = threading.Event()
            with suppress(RuntimeError):  # it is closed by now
                loop.call_soon_threadsafe(self._tick, ticked)
                ticked.wait(TICK_S)

    def due_at(self) -> float:
        """Return when the session has something to do by itself; infinity if its loop does not run."""
        runs = self._loop is not None and self._loop.is_running() and not self.closed
        return self._session.next_deadline() if runs else math.inf

    def _tick(self, ticked: threading.Event) -> None:
        try:
            self._exchange(None)
        finally:
            ticked.set()

    def _jump(self, receiving: Receiving, inside: InsideTime, rounds: int = 0) -> None:
        """Move the clock of a broker in this process to the next date, for a receive that waits."""
        if receiving.done or self.closed or self._loop is None:
            return
        if rounds:
            self._loop.call_soon(self._jump, receiving, inside, rounds - 1)
        elif inside.rest(self._session.next_deadline()):
            self._exchange(None)
            self._loop.call_soon(self._jump, receiving, inside, JUMP_ROUNDS)
        else:
            self._loop.call_later(JUMP_S, self._jump, receiving, inside)

    def _check_open(self) -> None:
        if self._refusal is not None:
            raise type(self._refusal)(self._refusal.message)

    def _attach(self, loop: asyncio.AbstractEventLoop) -> None:
        if self._loop is not None:
            raise RuntimeError("this client belongs to another event loop: open one in each loop")
        # Not before now: a client made at import must survive a fork.
        links = self._links = ClientLinks(self._rounds, self._server_keys, self)
        self._loop = loop
        links.connect(self._session, self._now())

    def _shut(self, error: FilaError) -> None:
        if self.closed:
            return
        self._widen()
        self._refusal = error
        self._session.fail_all(error)
        self._detach()

    def _detach(self) -> None:
        if self._links is None:
            return
        if self._loop is not None and not self._loop.is_closed():
            for descriptor, _ in self._links.descriptors:
                self._loop.remove_reader(descriptor)
        if self._timer is not None:
            self._timer.cancel()
        self._links.close()

    def watch(self, descriptor: int, *, writable: bool) -> None:
        """Look at a descriptor from now on."""
        if self._loop is None:
            return
        self._loop.add_reader(descriptor, self._take_in, descriptor)
        if writable:
            self._loop.add_writer(descriptor, self._take_in, descriptor)
        else:
            self._loop.remove_writer(descriptor)

    def unwatch(self, descriptor: int) -> None:
        """Do not look at a descriptor any more."""
        if self._loop is not None and not self._loop.is_closed():
            self._loop.remove_reader(descriptor)
            self._loop.remove_writer(descriptor)

    def _scheduled_exchange(self) -> None:
        self._scheduled = False
        if collected := self._session.collected:
            self.is_alone = collected == 1 and self._session.short.way is None
        self._exchange()

    def _take_in(self, descriptor: int) -> None:
        wire = self._wire
        if wire is not None and wire.descriptor == descriptor and self._links is not None and not self._answered.done():
            reply = self._links.receive_short(self._session, wire, self._now())
            if reply is not None:
                self._wire = None
                self._answered.set_result(reply)
                if self._links.has_news:
                    self._exchange()
                return
        self._exchange((descriptor,))

    def _widen(self) -> None:
        """Let the general code go on with the short call, if one is under way."""
        short = self._session.short
        if short.way is not None:
            short.widen()
        if self._wire is not None and short.usual is not None:
            call = short.usual
            call.wake = partial(_resolve, self._answered, call)
            if call.done:
                call.wake()
        self._wire = None

    def _exchange(self, ready: Collection[int] | None = ()) -> None:
        if self.closed or self._loop is None or self._links is None or self._links.closed:
            return
        self._widen()
        if self._links.exchange(self._session, self._now(), ready):
            self._loop.call_soon(self._exchange, None)  # the descriptors do not report the frames that are left
        due = self._session.next_deadline()
        if due < self._timer_at:
            self._set_timer(self._loop, due)

    def _set_timer(self, loop: asyncio.AbstractEventLoop, due: float) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._timer_at = due
        self._timer = loop.call_later(max(0.0, due - self._now()), self._on_time)

    def _on_time(self) -> None:
        due, self._timer_at = self._timer_at, math.inf
        self._timer = None
        if self._inside is not None:
            self._inside.reach(due)
        self._exchange()

    def __del__(self) -> None:
        links = getattr(self, "_links", None)  # None if it was never used, or the endpoint was refused
        if links is not None:
            self._session.leave_untaken()
            links.close()


def _resolve(future: "asyncio.Future[T]", result: T) -> None:
    if not (future.done() or future.get_loop().is_closed()):
        future.set_result(result)


try:
    from uvloop import new_event_loop
except ImportError:
    _LOOP_FACTORY = None
else:
    _LOOP_FACTORY = new_event_loop


def run(main: Coroutine[Any, Any, T], *, debug: bool | None = None) -> T:
    """Like :func:`asyncio.run`, on uvloop's event loop if there is one."""
    with asyncio.Runner(debug=debug, loop_factory=_LOOP_FACTORY) as runner:
        return runner.run(main)
