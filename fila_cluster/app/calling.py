"""One call of a handler with its arguments, within its time limit, in a thread or awaited.

A coroutine that is out of time is cancelled. A function cannot be stopped: its message is settled as timed out, and the
caller keeps its slot taken until it ends (``going_on``). The same holds for a coroutine that does not end when it is
cancelled, and for a call that middleware no longer awaits, whatever middleware does with the exception.
"""

import asyncio
import inspect
from collections.abc import Awaitable, Callable, Mapping
from contextlib import AsyncExitStack, ExitStack, suppress
from contextvars import copy_context
from functools import partial
from queue import SimpleQueue
from threading import Semaphore, Thread
from typing import Any, TypeAlias

from fila_cluster.app.handlers import Handler, Need, Recipe, enter, enter_async, name_of, recipe_of_dependency
from fila_cluster.client.protocol.delivery import Delivery


class Threads:
    """Runs functions that block, each in a thread; the caller bounds their number.

    The threads are daemons, because a process must be able to end while a function hangs. The standard library's pool waits
    for its threads at the end of the process.
    """

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
            except BaseException as error:  # the caller handles it
                raised = error
            self._idle.release()  # before the result: the caller may start the next function at once
            with suppress(RuntimeError):  # the loop has ended meanwhile
                loop.call_soon_threadsafe(_resolve, future, result, raised)

        if not self._idle.acquire(blocking=False):
            Thread(target=self._run, name=f"fila-handler-{self._count + 1}", daemon=True).start()
            self._count += 1
        self._jobs.put(job)  # only now: if no thread can be started, the function must not run after its message was given up
        return future

    def close(self) -> None:
        """End the threads when their functions have ended."""
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
"""Exceptions that would end the coroutine that waits for the function, or the event loop."""


CANCEL_S = 5.0
"""How long a coroutine may take to end after it was cancelled."""

Function: TypeAlias = Callable[..., Any]
Values: TypeAlias = dict[Function, Any]
Overrides: TypeAlias = Mapping[Function, Function]


class HandlerTimeoutError(TimeoutError):
    """A handler did not end within its ``timeout``. ``still_running``: its call, if it could not be cancelled."""

    def __init__(self, seconds: float, still_running: "asyncio.Future[Any] | None") -> None:
        goes_on = "" if still_running is None else ": it goes on, because it could not be stopped"
        super().__init__(f"did not end within {seconds:g} s{goes_on}")
        self.still_running = still_running


class HandlerExitError(RuntimeError):
    """A handler, or a dependency of it, called ``sys.exit``. The process goes on: one message could end all processes."""


async def call(
    handler: Handler,
    delivery: Delivery,
    shared: Values,
    overrides: Overrides,
    threads: Threads | None,
    going_on: "list[asyncio.Future[Any]]",
) -> Any:
    """Call a handler for one delivery; ``threads`` None: functions are called here. ``going_on`` gets the call if it goes on
    when this one has ended."""
    work: Awaitable[Any]
    if handler.is_coroutine:
        work = _awaited(handler.recipe, delivery, shared, overrides)
        if handler.timeout is None:
            return await work
    elif threads is None:
        return _called(handler.recipe, delivery, shared, overrides)
    else:
        work = threads.start(partial(_called, handler.recipe, delivery, shared, overrides))
    running = asyncio.ensure_future(work)
    try:
        if handler.timeout is None:
            return await asyncio.shield(running)  # whoever stops waiting does not stop the thread
        return await _within(handler.timeout, running, is_coroutine=handler.is_coroutine)
    finally:
        if not running.done():
            running.add_done_callback(_look)
            going_on.append(running)


async def make_shared(stack: AsyncExitStack, needs: list[Need], overrides: Overrides) -> Values:
    """Make the app-wide dependencies, for ``stack`` to close."""
    shared: Values = {}
    for need in needs:
        if need.scope == "app":
            await _make_async(stack, need, None, shared, overrides, shared)
    return shared


async def _within(seconds: float, running: "asyncio.Future[Any]", *, is_coroutine: bool) -> Any:
    try:
        done, _ = await asyncio.wait({running}, timeout=seconds)
        if not done and is_coroutine:
            running.cancel()
            done, _ = await asyncio.wait({running}, timeout=CANCEL_S)
            if done and (running.cancelled() or running.exception() is not None):
                raise HandlerTimeoutError(seconds, None)
    except asyncio.CancelledError:  # the caller has gone
        if is_coroutine and not running.done():
            running.cancel()
            await asyncio.wait({running}, timeout=CANCEL_S)
        raise
    if not done:
        raise HandlerTimeoutError(seconds, running)
    return running.result()


def _look(running: "asyncio.Future[Any]") -> None:
    """Retrieve the exception of a call that outlasted its limit: its message was settled before."""
    with suppress(asyncio.CancelledError):
        running.exception()


def _called(recipe: Recipe, delivery: Delivery, shared: Values, overrides: Overrides) -> Any:
    with ExitStack() as stack:
        try:
            arguments = _plain_arguments(recipe, delivery)
            values: Values = {}
            for need in recipe.needs:
                arguments[need.parameter] = _make(stack, need, delivery, shared, overrides, values)
            result = recipe.make(**arguments)
        except SystemExit as error:
            raise HandlerExitError(f"the handler called sys.exit({error.code!r})") from error
        return _ended(recipe, result)


async def _awaited(recipe: Recipe, delivery: Delivery, shared: Values, overrides: Overrides) -> Any:
    async with AsyncExitStack() as stack:
        try:
            arguments = _plain_arguments(recipe, delivery)
            values: Values = {}
            for need in recipe.needs:
                arguments[need.parameter] = await _make_async(stack, need, delivery, shared, overrides, values)
            return _ended(recipe, await recipe.make(**arguments))
        except SystemExit as error:
            raise HandlerExitError(f"the handler called sys.exit({error.code!r})") from error


def _ended(recipe: Recipe, result: Any) -> Any:
    """Return a handler's result. :class:`TypeError` if its work has not begun, because a decorator has hidden its kind."""
    if result is None:  # as usual
        return None
    if inspect.iscoroutine(result):
        result.close()
    elif not inspect.isawaitable(result) and not inspect.isgenerator(result) and not inspect.isasyncgen(result):
        return result
    name, kind = name_of(recipe.make), type(result).__name__
    if inspect.isgenerator(result) or inspect.isasyncgen(result):
        raise TypeError(f"{name} returned a {kind}, which was never run: a handler returns, it does not yield")
    if recipe.is_async:
        raise TypeError(f"{name} returned a {kind}, which nobody awaits: await it in the handler, or in its decorator")
    raise TypeError(f"{name} is not a coroutine function, but returned a {kind}: make it async def")


def _plain_arguments(recipe: Recipe, delivery: Delivery | None) -> dict[str, Any]:
    arguments: dict[str, Any] = dict.fromkeys(recipe.deliveries, delivery)
    if recipe.payload is not None and delivery is not None:
        parameter, read = recipe.payload
        arguments[parameter] = read(delivery.payload)
    return arguments


def _recipe_for(need: Need, overrides: Overrides) -> Recipe:
    replacement = overrides.get(need.recipe.make)
    return need.recipe if replacement is None else recipe_of_dependency(replacement)


def _make(stack: ExitStack, need: Need, delivery: Delivery, shared: Values, overrides: Overrides, values: Values) -> Any:
    known = shared if need.scope == "app" else values
    make = need.recipe.make
    if make not in known:
        recipe = _recipe_for(need, overrides)
        arguments = _plain_arguments(recipe, delivery)
        for inner in recipe.needs:
            arguments[inner.parameter] = _make(stack, inner, delivery, shared, overrides, values)
        known[make] = enter(stack, recipe.making, arguments)
    return known[make]


async def _make_async(
    stack: AsyncExitStack, need: Need, delivery: Delivery | None, shared: Values, overrides: Overrides, values: Values
) -> Any:
    known = shared if need.scope == "app" else values
    make = need.recipe.make
    if make not in known:
        recipe = _recipe_for(need, overrides)
        arguments = _plain_arguments(recipe, delivery)
        for inner in recipe.needs:
            arguments[inner.parameter] = await _make_async(stack, inner, delivery, shared, overrides, values)
        known[make] = await enter_async(stack, recipe.making, arguments)
    return known[make]
