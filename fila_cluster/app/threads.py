"""Threads for functions that block: daemons, because a process must be able to end while a function hangs.

The standard library's pool waits for its threads at the end of the process, whatever they do.
"""

import asyncio
from collections.abc import Callable
from contextlib import suppress
from contextvars import copy_context
from queue import SimpleQueue
from threading import Semaphore, Thread
from typing import Any


class Threads:
    """Runs functions in threads, one each. There are as many threads as functions that ran at once; who starts them has the bound."""

    def __init__(self) -> None:
        self._jobs: SimpleQueue[Callable[[], None] | None] = SimpleQueue()
        self._idle = Semaphore(0)
        self._count = 0

    def start(self, function: Callable[[], Any]) -> "asyncio.Future[Any]":
        """Run a function in the caller's context (``contextvars``); return the future of its result."""
        loop = asyncio.get_running_loop()
        future: asyncio.Future[Any] = loop.create_future()
        context = copy_context()

        def job() -> None:
            result, raised = None, None
            try:
                result = context.run(function)
            except BaseException as error:  # it is the caller's
                raised = error
            self._idle.release()  # before the caller knows: it may start the next function at once
            with suppress(RuntimeError):  # the loop has ended meanwhile
                loop.call_soon_threadsafe(_resolve, future, result, raised)

        if not self._idle.acquire(blocking=False):
            Thread(target=self._run, name=f"fila-handler-{self._count + 1}", daemon=True).start()
            self._count += 1
        self._jobs.put(job)  # only now: if no thread can be started, the function must not run after its message was given up
        return future

    def close(self) -> None:
        """Let the threads end when their functions have."""
        for _ in range(self._count):
            self._jobs.put(None)

    def _run(self) -> None:
        while (job := self._jobs.get()) is not None:
            job()
            del job  # it has the message, which must not live until the next one


def _resolve(future: "asyncio.Future[Any]", result: Any, error: BaseException | None) -> None:
    if future.done():  # cancelled
        return
    if error is None:
        future.set_result(result)
    else:
        future.set_exception(RuntimeError(f"the function raised {error!r}") if isinstance(error, _OF_THE_LOOP) else error)


_OF_THE_LOOP = (StopIteration, GeneratorExit, KeyboardInterrupt)
"""What would end the coroutine that waits for the function, or the event loop."""
