"""Both clients behind one face, so that one test runs over both.

What the asyncio client is asked is awaited in an event loop in a thread of its own: for a test it blocks, as the other one does, and
several threads may ask at once. An interrupt of the thread that waits cancels what it waits for.
"""

import asyncio
import inspect
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from queue import SimpleQueue
from typing import Any, Self

from fila_cluster import (
    AsyncBatch,
    AsyncBatchConsumer,
    AsyncClient,
    AsyncConsumer,
    AsyncDelivery,
    AsyncMessageBatch,
    AsyncProducer,
    Client,
)

SHELLS = ("blocking", "asyncio")


class Awaited:
    """A client, consumer or delivery whose methods are awaited in the loop that it belongs to."""

    def __init__(self, loop: asyncio.AbstractEventLoop, thing: Any) -> None:
        self._loop = loop
        self._thing = thing

    def __getattr__(self, name: str) -> Any:
        found = getattr(self._thing, name)
        return partial(self._call, found) if inspect.ismethod(found) else found

    def __enter__(self) -> Self:
        self._call(self._thing.__aenter__)
        return self

    def __exit__(self, *error: Any) -> None:
        self._call(self._thing.__aexit__, *error)

    def __iter__(self) -> Self:
        return self

    def __next__(self) -> Any:
        try:
            return self._call(self._thing.__anext__)
        except StopAsyncIteration:
            raise StopIteration from None

    def __repr__(self) -> str:
        return repr(self._thing)

    def _call(self, method: Callable[..., Any], *arguments: Any, **options: Any) -> Any:
        given = [_bare(argument) for argument in arguments]

        async def call() -> Any:
            result = method(*given, **options)
            return await result if inspect.isawaitable(result) else result

        future = asyncio.run_coroutine_threadsafe(call(), self._loop)
        try:
            return self._dressed(future.result())
        except BaseException:
            future.cancel()
            raise

    def _dressed(self, result: Any) -> Any:
        if isinstance(result, list):
            return [self._dressed(each) for each in result]
        if isinstance(result, AsyncBatch):
            return AwaitedBatch(self._loop, result)
        if isinstance(result, asyncio.Future):
            return AwaitedFuture(self._loop, result)
        return Awaited(self._loop, result) if isinstance(result, DRESSED) else result


DRESSED = AsyncBatchConsumer, AsyncConsumer, AsyncDelivery, AsyncMessageBatch, AsyncProducer


class AwaitedBatch(Awaited):
    """A batch, whose deliveries are dressed, too."""

    def __init__(self, loop: asyncio.AbstractEventLoop, batch: AsyncBatch) -> None:
        super().__init__(loop, batch)
        self._deliveries = [Awaited(loop, each) for each in batch]

    def __len__(self) -> int:
        return len(self._deliveries)

    def __getitem__(self, index: Any) -> Any:
        return self._deliveries[index]

    def __iter__(self) -> Any:
        return iter(self._deliveries)


class AwaitedFuture:
    """A future of a loop in another thread, to be waited for as one of threads."""

    def __init__(self, loop: asyncio.AbstractEventLoop, future: "asyncio.Future[Any]") -> None:
        self._loop = loop
        self._future = future

    def done(self) -> bool:
        return self._future.done()

    def result(self, timeout: float | None = None) -> Any:
        async def wait() -> Any:
            return await asyncio.wait_for(asyncio.shield(self._future), timeout)

        return asyncio.run_coroutine_threadsafe(wait(), self._loop).result()

    def exception(self, timeout: float | None = None) -> BaseException | None:
        async def wait() -> BaseException | None:
            await asyncio.wait([self._future], timeout=timeout)
            return self._future.exception()

        return asyncio.run_coroutine_threadsafe(wait(), self._loop).result()


def _bare(argument: Any) -> Any:
    if type(argument) is list:
        return [_bare(each) for each in argument]
    if type(argument) is dict:
        return {_bare(key): value for key, value in argument.items()}
    return argument._thing if isinstance(argument, Awaited) else argument


@contextmanager
def shell(kind: str) -> Iterator[Callable[..., Any]]:
    """What opens clients of a kind (one of :data:`SHELLS`), with the arguments of both."""
    if kind == "blocking":
        yield Client
        return
    with _loop_in_a_thread() as loop:
        yield lambda *arguments, **options: Awaited(loop, AsyncClient(*arguments, **options))


@contextmanager
def _loop_in_a_thread() -> Iterator[asyncio.AbstractEventLoop]:
    started: SimpleQueue[asyncio.AbstractEventLoop] = SimpleQueue()
    over = asyncio.Event()

    def run() -> None:
        with asyncio.Runner() as runner:
            started.put(runner.get_loop())
            runner.run(over.wait())

    thread = threading.Thread(target=run, name="loop")
    thread.start()
    loop = started.get()
    try:
        yield loop
    finally:
        loop.call_soon_threadsafe(over.set)
        thread.join()
