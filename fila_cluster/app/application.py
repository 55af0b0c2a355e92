"""The app that users make, with its handlers, middleware and dependencies."""

import asyncio
import inspect
import signal
import threading
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import AsyncExitStack, asynccontextmanager, contextmanager
from typing import Any, Final, TypeVar

from fila_cluster.app.calling import Overrides, Threads, make_shared
from fila_cluster.app.decisions import Backoff
from fila_cluster.app.handlers import Handler, Middleware, handler_of
from fila_cluster.app.serving import Stop, is_made_later, serve
from fila_cluster.app.work import Work
from fila_cluster.client.asynchronous.client import AsyncClient
from fila_cluster.client.blocking.client import Client
from fila_proto_zmq.errors import QueueNotFoundError

GRACE_S: Final = 25.0
"""How long handlers may run after a SIGTERM: a little less than the 30 s that container platforms give by default."""

DELIVERIES_MAX: Final = 10_000
"""Of one ``run_until_idle``."""

F = TypeVar("F", bound=Callable[..., Any])
M = TypeVar("M", bound=Middleware)


class App:
    """Handlers by queue. ``endpoint`` and the rest are those of :class:`~fila_cluster.AsyncClient`.

    The constructor does not connect; ``fila-cluster work module:app`` and :meth:`run` do.
    """

    def __init__(
        self,
        endpoint: str | None = None,
        *,
        api_key: str | None = None,
        server_key: str | None = None,
        timeout: float = 5.0,
        direct: bool | None = None,
    ) -> None:
        self.endpoint = endpoint
        self._client_options: dict[str, Any] = {
            "api_key": api_key,
            "server_key": server_key,
            "timeout": timeout,
            "direct": direct,
        }
        self._handlers: dict[str, Handler] = {}
        self._middleware: list[Middleware] = []
        self._overrides: dict[Callable[..., Any], Callable[..., Any]] = {}

    # --- declaring ----------------------------------------------------------------------------------------------------

    def handler(
        self,
        queue: str,
        *,
        concurrency: int = 1,
        retry: Backoff | None = None,
        timeout: float | None = None,
        prefetch: int | None = None,
    ) -> Callable[[F], F]:
        """Make a function or coroutine the handler of a queue. It stays callable as it is.

        ``concurrency``: how many messages a process works on at once; functions run in as many threads. ``retry``: the
        :func:`backoff` after an exception; without it the message is nacked, and the queue decides. ``timeout`` in seconds: a
        coroutine is cancelled then. A function cannot be stopped: its message is nacked (or retried), and the function keeps
        its slot until it ends. ``prefetch``: how many messages are leased to a process; more than ``concurrency`` saves a
        round trip.
        """

        def register(function: F) -> F:
            made = handler_of(function, queue, concurrency, retry, timeout, prefetch)
            if made.queue in self._handlers:
                raise ValueError(f"queue {made.queue!r} has a handler already: {self._handlers[made.queue].name}")
            self._handlers[made.queue] = made
            return function

        return register

    def middleware(self, function: M) -> M:
        """Wrap every call of a handler in ``await function(call, call_next)``; the first one registered is the outermost.

        It gets the handler's exceptions, and may raise or return something else.
        """
        is_coroutine: bool = inspect.iscoroutinefunction(function)
        if not is_coroutine:
            raise TypeError(f"middleware {function!r} is not a coroutine: async def middleware(call, call_next)")
        self._middleware.append(function)
        return function

    @contextmanager
    def override(self, make: Callable[..., Any], replacement: Callable[..., Any]) -> Iterator[None]:
        """Within the block, make a dependency by another function: for tests. Enter it before the app is opened."""
        before = self._overrides.get(make)
        self._overrides[make] = replacement
        try:
            yield
        finally:
            if before is None:
                del self._overrides[make]
            else:
                self._overrides[make] = before

    @property
    def handlers(self) -> tuple[Handler, ...]:
        """The handlers, in the order of their registration."""
        return tuple(self._handlers.values())

    @property
    def queues(self) -> tuple[str, ...]:
        """The queues that have handlers."""
        return tuple(self._handlers)

    # --- working ------------------------------------------------------------------------------------------------------

    def run(self, *, grace: float = GRACE_S) -> None:
        """Work in this process until SIGTERM or Ctrl-C; then drain for ``grace`` seconds at most. A second signal stops it at
        once.

        Signals arrive in the main thread only: elsewhere use :meth:`work` with a :class:`Stop`.
        """
        asyncio.run(self._run(grace))

    async def _run(self, grace: float) -> None:
        stop = Stop()
        if threading.current_thread() is threading.main_thread():
            for number in (signal.SIGTERM, signal.SIGINT):
                asyncio.get_running_loop().add_signal_handler(number, stop.ask)
        await self.work(stop=stop, grace=grace)

    async def work(
        self,
        *,
        client: AsyncClient | None = None,
        stop: Stop | None = None,
        grace: float = GRACE_S,
        ready: Callable[[], None] = lambda: None,
        end_when_stuck: bool = False,
    ) -> None:
        """Consume the queues until ``stop`` is asked, then drain: give back messages without a handler, and finish the
        others.

        Calls are cancelled after ``grace`` seconds; their messages go back when the client closes. A client that is passed
        stays open: close it soon, it may hold such messages. ``ready`` is called once the broker has answered for all queues.
        Raises lasting errors at the start: a queue that does not exist, a missing permission, a dependency that cannot be
        made.
        """
        if not self._handlers:
            raise ValueError("this app has no handlers: register functions with @app.handler(queue)")
        async with self.opened(threads=True) as work:
            own = client is None
            used = self.connect() if client is None else client
            try:
                left = await serve(
                    used,
                    self.handlers,
                    work,
                    Stop() if stop is None else stop,
                    grace_s=grace,
                    ready=ready,
                    end_when_stuck=end_when_stuck,
                )
            finally:
                if own:
                    await used.close()
            del left  # given back by now, if the client is ours

    def connect(self) -> AsyncClient:
        """Return a client of the app's endpoint, with its options; close it."""
        return AsyncClient(self.endpoint, **self._client_options)

    @asynccontextmanager
    async def opened(self, *, threads: bool = False) -> AsyncIterator[Work]:
        """Make the app-wide dependencies; within the context, handle deliveries one by one with ``work.handle(delivery)``.

        ``threads``: call functions in threads, for deliveries of an ``AsyncClient``. Without it they are called in the loop's
        thread.
        """
        pool = Threads() if threads else None
        overrides: Overrides = dict(self._overrides)
        needs = [need for handler in self.handlers for need in handler.recipe.all_needs()]
        try:
            async with AsyncExitStack() as stack:
                shared = await make_shared(stack, needs, overrides)
                yield Work(self._handlers, self._middleware, shared, overrides, pool)
        finally:
            if pool is not None:
                pool.close()

    # --- until idle ---------------------------------------------------------------------------------------------------

    def run_until_idle(self, client: Client, *, most: int = DELIVERIES_MAX) -> int:
        """Handle all messages that are deliverable now, or enqueued meanwhile; return the number of deliveries.

        Functions run in this thread. Messages that are due later stay. :class:`RuntimeError` after ``most`` deliveries.
        """
        if _in_event_loop():
            raise RuntimeError("run_until_idle() blocks, and an event loop runs here: await app.work_until_idle(client)")
        return asyncio.run(self.work_until_idle(client, most=most))

    async def work_until_idle(self, client: Client | AsyncClient, *, most: int = DELIVERIES_MAX) -> int:
        """Do the same as :meth:`run_until_idle` within an event loop. With an ``AsyncClient`` functions run in threads."""
        handled, wanted = 0, dict.fromkeys(self.queues, 1)
        async with self.opened(threads=inspect.iscoroutinefunction(client.receive_any)) as work:
            while wanted:
                try:
                    found = client.receive_any(wanted)
                    deliveries = await found if inspect.isawaitable(found) else found
                except QueueNotFoundError as error:
                    if not is_made_later(error):
                        raise
                    del wanted[error.details["queue"]]
                    continue
                if not deliveries:
                    break
                wanted = dict.fromkeys(self.queues, 1)  # a handler may have made one
                for delivery in deliveries:
                    await work.handle(delivery)
                handled += len(deliveries)
                if handled >= most:
                    raise RuntimeError(
                        f"{handled} deliveries, and there are more: do handlers enqueue for each other without end, or is a "
                        "failing message nacked for ever? Give the queue max_attempts, or pass a larger most="
                    )
        return handled


def _in_event_loop() -> bool:
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return False
    return True
