"""An asyncio event loop in virtual time, for the real :class:`~fila_cluster.AsyncClient` and for the programs that use it."""

import asyncio
import math
from asyncio import events
from collections import deque
from collections.abc import Callable, Coroutine
from heapq import heappop, heappush
from typing import Any

from tests.simulation.world.world import World

ROUND_US = 20
"""What a round of callbacks takes."""


class VirtualLoop(asyncio.AbstractEventLoop):
    """Runs callbacks when the world lets it. One for each client, as each is a process of its own."""

    def __init__(self, world: World, owner: Any, work_us: tuple[int, int]) -> None:
        """``work_us``: how long it takes to notice that something came in."""
        self._work_min_us, self._work_span_us = work_us[0], work_us[1] - work_us[0]
        self._draw = world.random("clients' loops").random
        self._world = world
        self._owner = owner
        self._ready: deque[asyncio.Handle] = deque()
        self._timers: list[tuple[int, int, asyncio.TimerHandle]] = []
        self._made = 0
        self._readers: dict[int, tuple[Callable[..., object], tuple[Any, ...]]] = {}
        self._round_due_us: int | None = None
        self._noticed: set[int] = set()
        """Descriptors whose reader is about to be called: however much comes until then, it is called once."""
        self.stopped = False
        self.errors: list[str] = []

    # --- asyncio's side -----------------------------------------------------------------------------------------------

    def time(self) -> float:
        return self._world.now_us / 1e6

    def get_debug(self) -> bool:
        return False

    def is_closed(self) -> bool:
        return False

    def is_running(self) -> bool:
        return True

    def create_future(self) -> "asyncio.Future[Any]":
        return asyncio.Future(loop=self)

    def create_task(self, coroutine: Coroutine[Any, Any, Any], **options: Any) -> "asyncio.Task[Any]":
        return asyncio.Task(coroutine, loop=self, **options)

    def call_soon(self, callback: Callable[..., object], *arguments: Any, context: Any = None) -> asyncio.Handle:
        handle = asyncio.Handle(callback, arguments, self, context)
        self._ready.append(handle)
        self._want_round(self._world.now_us)
        return handle

    call_soon_threadsafe = call_soon

    def call_later(self, delay: float, callback: Callable[..., object], *arguments: Any, context: Any = None) -> Any:
        return self.call_at(self.time() + delay, callback, *arguments, context=context)

    def call_at(self, when: float, callback: Callable[..., object], *arguments: Any, context: Any = None) -> Any:
        handle = asyncio.TimerHandle(when, callback, arguments, self, context)
        self._made += 1
        when_us = max(math.ceil(when * 1e6), self._world.now_us + 1)
        heappush(self._timers, (when_us, self._made, handle))
        self._want_round(self._timers[0][0])
        return handle

    def _timer_handle_cancelled(self, handle: asyncio.TimerHandle) -> None:
        """It is dropped when its time comes."""

    def add_reader(self, fd: Any, callback: Callable[..., object], *arguments: Any) -> None:
        self._readers[fd] = (callback, arguments)

        if self._is_ready(fd):
            self.readable(fd)

    def remove_reader(self, fd: Any) -> bool:
        return self._readers.pop(fd, None) is not None

    def add_writer(self, fd: Any, callback: Callable[..., object], *arguments: Any) -> None:
        """A socket's reader is called for whatever happens to it."""

    def remove_writer(self, fd: Any) -> bool:
        return False

    def _is_ready(self, fd: int) -> bool:
        return any(getattr(socket, "fd", None) == fd and getattr(socket, "events", 0) & 1 for socket in self._owner.sockets)

    def call_exception_handler(self, context: dict[str, Any]) -> None:
        error = context.get("exception")
        self.errors.append(f"{context.get('message')}: {error!r}")

    # --- the world's side ---------------------------------------------------------------------------------------------

    def readable(self, fd: int) -> None:
        """Something came in at a descriptor."""
        if fd in self._readers and fd not in self._noticed and not self.stopped:
            self._noticed.add(fd)
            when_us = self._world.now_us + self._work_min_us + int(self._work_span_us * self._draw())
            self._world.at(when_us, self._read, fd)

    def _read(self, fd: int) -> None:
        self._noticed.discard(fd)
        reader = self._readers.get(fd)
        if reader is not None and not self.stopped:
            self.call_soon(reader[0], *reader[1])

    def stop_for_good(self) -> None:
        """The process is gone: nothing runs any more."""
        self.stopped = True
        self._ready.clear()
        self._timers.clear()
        self._readers.clear()

    def _want_round(self, when_us: int) -> None:
        if self.stopped or (self._round_due_us is not None and self._round_due_us <= when_us):
            return
        self._round_due_us = when_us
        self._world.at(when_us, self._round, when_us)

    def _round(self, when_us: int) -> None:
        if self.stopped or self._round_due_us != when_us:
            return
        self._round_due_us = None
        now_us = self._world.now_us
        if self._owner.paused_until_us > now_us:
            self._want_round(self._owner.paused_until_us)
            return
        self._run_all(now_us)
        if self._ready:
            self._want_round(now_us + ROUND_US)
        elif self._timers:
            self._want_round(max(self._timers[0][0], now_us))

    def _run_all(self, now_us: int) -> None:
        while self._timers and (self._timers[0][0] <= now_us or self._timers[0][2].cancelled()):
            handle = heappop(self._timers)[2]
            if not handle.cancelled():
                self._ready.append(handle)
        previous, self._world.current = self._world.current, self._owner
        events._set_running_loop(self)
        try:
            for _ in range(len(self._ready)):
                handle = self._ready.popleft()
                if not handle.cancelled():
                    handle._run()
                if self.stopped:
                    return
        finally:
            events._set_running_loop(None)
            self._world.current = previous
