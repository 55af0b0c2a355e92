"""A registered handler, and a call of it for middleware."""

import inspect
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from typing import Any, TypeAlias

from fila_cluster.app.decisions import Backoff
from fila_cluster.app.dependencies import Manner, Recipe, name_of, recipe_of_handler
from fila_cluster.app.telemetry import Tally
from fila_cluster.client import checks
from fila_cluster.client.calls.messages import prefetch_count
from fila_cluster.client.protocol.delivery import Delivery

CONCURRENCY_MAX = 10_000
"""Of one handler in one process. More is a mistake: each is a task, or a thread."""


@dataclass(frozen=True, slots=True)
class Handler:
    """The handler of one queue. ``timeout`` in seconds; ``prefetch``: the messages that are leased to a process at a time."""

    queue: str
    name: str
    recipe: Recipe
    concurrency: int
    retry: Backoff | None
    timeout: float | None
    prefetch: int
    tally: Tally = field(default_factory=Tally, compare=False)

    @property
    def labels(self) -> dict[str, str]:
        """The attributes of its metrics."""
        return {"queue": self.queue, "handler": self.name}

    @property
    def is_coroutine(self) -> bool:
        """Whether it is awaited; else it is called in a thread."""
        return self.recipe.making.manner is Manner.COROUTINE


def handler_of(
    function: Callable[..., Any],
    queue: str,
    concurrency: int,
    retry: Backoff | None,
    timeout: float | None,
    prefetch: int | None,
) -> Handler:
    """Return a handler of checked options. :class:`ValueError` or :class:`TypeError` says which one is wrong."""
    name = name_of(function)
    if inspect.isgeneratorfunction(function) or inspect.isasyncgenfunction(function):
        raise TypeError(f"handler {name} is a generator: a handler returns, it does not yield")
    if isinstance(concurrency, bool) or not isinstance(concurrency, int) or not 1 <= concurrency <= CONCURRENCY_MAX:
        raise ValueError(f"concurrency={concurrency!r} of handler {name}: pass a whole number from 1 to {CONCURRENCY_MAX}")
    if retry is not None and not isinstance(retry, Backoff):
        raise TypeError(f"retry={retry!r} of handler {name}: pass backoff(first=…, factor=…, most=…, attempts=…), or None")
    if timeout is not None:
        checks.timeout_seconds(timeout)
    count = prefetch_count(concurrency if prefetch is None else prefetch)
    if count < concurrency:
        raise ValueError(
            f"prefetch={count} of handler {name}: with concurrency={concurrency} it is at least {concurrency}, "
            "or some of it would never have a message"
        )
    return Handler(checks.queue_name(queue), name, recipe_of_handler(function), concurrency, retry, timeout, count)


@dataclass(frozen=True, slots=True)
class Call:
    """One delivery on its way to its handler, for middleware."""

    handler: Handler
    delivery: Delivery
    """Of a coroutine: its verbs are awaited."""

    @property
    def queue(self) -> str:
        """The queue of the message."""
        return self.handler.queue


CallNext: TypeAlias = Callable[[Call], Awaitable[Any]]
Middleware: TypeAlias = Callable[[Call, CallNext], Awaitable[Any]]
