"""Dependencies of a handler: ``Annotated[Session, Depends(session)]``; and its signature, read once.

A dependency is made by calling ``session``, and closed when the handler has ended, before its message is settled: a commit
that fails there fails the message. The kind of ``session``, never its result, decides whether it is entered as a context:

- a generator function (one ``yield``), or a function with ``@contextmanager`` or ``@asynccontextmanager``: entered;
- a class that is a context manager: an object is made and entered;
- any other function or class: called (awaited), and its value passed on as it is.

Within one message each dependency is made once, for all parameters. With ``scope="app"`` it is made once, before the first
message, and lives as long as the app works."""

import inspect
from collections.abc import Awaitable, Callable, Iterator, Mapping
from contextlib import AsyncExitStack, ExitStack, asynccontextmanager, contextmanager
from dataclasses import dataclass, field
from enum import Enum, auto
from types import UnionType
from typing import Annotated, Any, Final, Literal, NamedTuple, TypeAlias, Union, get_args, get_origin, get_type_hints

from fila_cluster.app.decisions import Backoff
from fila_cluster.app.payloads import Reader, reader_of
from fila_cluster.app.telemetry import Tally
from fila_cluster.client import checks
from fila_cluster.client.calls.messages import prefetch_count
from fila_cluster.client.protocol.delivery import AsyncDelivery, Delivery

Scope: TypeAlias = Literal["message", "app"]


@dataclass(frozen=True, slots=True)
class Depends:
    """Marks a parameter as a dependency: ``Annotated[Session, Depends(session)]``. ``make`` is called for it, with
    dependencies of its own and the Delivery; ``scope``: its lifetime, ``"message"`` or ``"app"``."""

    make: Callable[..., Any]
    scope: Scope = "message"

    def __post_init__(self) -> None:
        if not callable(self.make):
            raise TypeError(f"Depends({self.make!r}): pass a function or a class, without calling it")
        if self.scope not in get_args(Scope):
            raise ValueError(f'Depends(scope={self.scope!r}): use "message" or "app"')


class Manner(Enum):
    """How the result of a call is used."""

    MANAGER = auto()
    ASYNC_MANAGER = auto()
    COROUTINE = auto()
    PLAIN = auto()


ASYNC: Final = frozenset((Manner.ASYNC_MANAGER, Manner.COROUTINE))
"""Those that need an event loop."""


class Making(NamedTuple):
    """How to make a value: the call, and the use of its result. Found once, when a handler is registered."""

    manner: Manner
    call: Callable[..., Any]


def making_of(make: Callable[..., Any]) -> Making:
    """Return how to make a value with this function or class."""
    inner = inspect.unwrap(make)
    if inspect.isgeneratorfunction(make):
        return Making(Manner.MANAGER, contextmanager(make))
    if inspect.isasyncgenfunction(make):
        return Making(Manner.ASYNC_MANAGER, asynccontextmanager(make))
    if inspect.isasyncgenfunction(inner) or (isinstance(make, type) and _is_async_manager(make)):
        return Making(Manner.ASYNC_MANAGER, make)
    if inspect.isgeneratorfunction(inner) or (isinstance(make, type) and hasattr(make, "__enter__")):
        return Making(Manner.MANAGER, make)
    return Making(Manner.COROUTINE if inspect.iscoroutinefunction(make) else Manner.PLAIN, make)


def _is_async_manager(make: type) -> bool:
    return hasattr(make, "__aenter__") and not hasattr(make, "__enter__")


def enter(stack: ExitStack | AsyncExitStack, making: Making, arguments: Mapping[str, Any]) -> Any:
    """Make a value that ``stack`` closes. Not for those in ``ASYNC``."""
    match making.manner:
        case Manner.MANAGER:
            return stack.enter_context(making.call(**arguments))
        case Manner.PLAIN:
            return making.call(**arguments)
    raise TypeError(f"{making.call!r} needs an event loop: make its handler a coroutine (async def)")


async def enter_async(stack: AsyncExitStack, making: Making, arguments: Mapping[str, Any]) -> Any:
    """Make a value of any manner that ``stack`` closes."""
    match making.manner:
        case Manner.ASYNC_MANAGER:
            return await stack.enter_async_context(making.call(**arguments))
        case Manner.COROUTINE:
            return await making.call(**arguments)
    return enter(stack, making, arguments)


_NO_KEYWORD = {inspect.Parameter.POSITIONAL_ONLY}
_COLLECTING = {inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD}


@dataclass(frozen=True, slots=True)
class Need:
    """A dependency that a parameter asks for."""

    parameter: str
    recipe: "Recipe"
    scope: str


@dataclass(frozen=True, slots=True)
class Recipe:
    """A handler or a dependency, and its arguments. ``payload``: the parameter and its reader, if it takes the payload."""

    make: Callable[..., Any]
    making: Making
    payload: tuple[str, Reader] | None
    deliveries: tuple[str, ...]
    needs: tuple[Need, ...]

    @property
    def is_async(self) -> bool:
        """Whether it is made by awaiting."""
        return self.making.manner in ASYNC

    def all_needs(self) -> Iterator[Need]:
        """Yield its needs, and theirs."""
        for need in self.needs:
            yield need
            yield from need.recipe.all_needs()


def recipe_of_handler(function: Callable[..., Any]) -> Recipe:
    """Return how to call a handler. :class:`TypeError` if it has parameters that nothing fits."""
    recipe = _recipe(function, f"handler {name_of(function)}", of_handler=True)
    if not recipe.is_async:
        for need in recipe.all_needs():
            if need.scope == "message" and need.recipe.is_async:
                raise TypeError(
                    f"handler {name_of(function)} is a plain function, but its dependency {name_of(need.recipe.make)} is "
                    'async: make the handler a coroutine (async def), or the dependency of scope="app"'
                )
    return recipe


def recipe_of_dependency(make: Callable[..., Any]) -> Recipe:
    """Return how to make a dependency. :class:`TypeError` if it has parameters that nothing fits."""
    return _recipe(make, f"dependency {name_of(make)}", of_handler=False)


def name_of(function: Callable[..., Any]) -> str:
    """Return the name of a function for texts."""
    return getattr(function, "__qualname__", None) or repr(function)


def _recipe(function: Callable[..., Any], what: str, *, of_handler: bool) -> Recipe:
    payload: tuple[str, Reader] | None = None
    deliveries, needs = [], []
    for parameter, annotation in _parameters(function, what):
        depends = _depends_of(annotation)
        if depends is not None:
            needs.append(_need(parameter.name, depends, what))
        elif _is_delivery(annotation):
            deliveries.append(parameter.name)
        elif of_handler and payload is None:
            try:
                payload = parameter.name, reader_of(annotation)
            except TypeError as error:
                raise TypeError(f"{what}, parameter {parameter.name!r}: {error}") from None
        elif parameter.default is inspect.Parameter.empty:
            takes = "one payload, Deliveries and dependencies" if of_handler else "Deliveries and dependencies"
            raise TypeError(
                f"{what} cannot be called: nothing fits its parameter {parameter.name!r}. It may take {takes}: "
                f"{parameter.name}: Annotated[…, Depends(…)]"
            )
    return Recipe(function, making_of(function), payload, tuple(deliveries), tuple(needs))


def _need(parameter: str, depends: Depends, what: str) -> Need:
    recipe = recipe_of_dependency(depends.make)
    if depends.scope == "app":
        wrong = recipe.deliveries or [need.parameter for need in recipe.all_needs() if need.scope != "app"]
        if wrong:
            raise TypeError(
                f'{what}: {name_of(depends.make)} has scope="app", but its parameter {wrong[0]!r} lives for one message '
                'only: give it scope="message", or give what it needs scope="app"'
            )
    return Need(parameter, recipe, depends.scope)


def _parameters(function: Callable[..., Any], what: str) -> Iterator[tuple[inspect.Parameter, Any]]:
    try:
        signature = inspect.signature(function)
    except ValueError:  # a class or function of C without one
        return
    hints = _hints(function, what)
    for parameter in signature.parameters.values():
        if parameter.kind in _NO_KEYWORD:
            raise TypeError(f"{what}: its parameter {parameter.name!r} is positional-only; handlers are called by keyword")
        if parameter.kind not in _COLLECTING:
            yield parameter, hints.get(parameter.name, parameter.annotation)


def _hints(function: Callable[..., Any], what: str) -> dict[str, Any]:
    annotated = function.__init__ if isinstance(function, type) else inspect.unwrap(function)  # type: ignore[misc]
    if not hasattr(annotated, "__annotations__") and callable(function):
        annotated = getattr(type(function), "__call__", annotated)  # noqa: B004  # an object with __call__
    try:
        return get_type_hints(annotated, include_extras=True)
    except NameError as error:
        raise TypeError(
            f"{what}: its annotations cannot be read: {error}; define {error.name!r} at the module's level"
        ) from None
    except TypeError:  # of C: no annotations
        return {}


def _depends_of(annotation: Any) -> Depends | None:
    if get_origin(annotation) is not Annotated:
        return None
    return next((extra for extra in get_args(annotation)[1:] if isinstance(extra, Depends)), None)


def _is_delivery(annotation: Any) -> bool:
    """Return whether this is a delivery, also as ``Delivery | None`` or ``Annotated[Delivery, …]``."""
    if get_origin(annotation) is Annotated:
        return _is_delivery(get_args(annotation)[0])
    if get_origin(annotation) in (Union, UnionType):
        kinds = [kind for kind in get_args(annotation) if kind is not type(None)]
        return all(_is_delivery(kind) for kind in kinds)
    return annotation is Delivery or annotation is AsyncDelivery


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
