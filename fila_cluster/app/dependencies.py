"""What a handler asks for beside its payload: ``Annotated[Session, Depends(session)]``.

A dependency is made by calling ``session``, and closed when the handler has ended, before its message is settled: a commit that fails
there fails the message. Which calls are entered as contexts is decided by what ``session`` is, never by what it returns:

- a generator function (one ``yield``), or a function with ``@contextmanager`` or ``@asynccontextmanager``: entered;
- a class that is a context manager: an object is made and entered;
- any other function or class: called (awaited), and its value passed on as it is.

Within one message each dependency is made once, whoever asks for it. With ``scope="app"`` it is made once, before the first message,
and lives as long as the app works.
"""

import inspect
from collections.abc import Callable, Mapping
from contextlib import AsyncExitStack, ExitStack, asynccontextmanager, contextmanager
from dataclasses import dataclass
from enum import Enum, auto
from typing import Any, Final, Literal, NamedTuple, TypeAlias, get_args

Scope: TypeAlias = Literal["message", "app"]


@dataclass(frozen=True, slots=True)
class Depends:
    """Marks a handler's parameter as a dependency: ``Annotated[Session, Depends(session)]``.

    ``make``: what is called for it; its own parameters may be dependencies and the Delivery. ``scope``: how long it lives, ``"message"``
    or ``"app"``.
    """

    make: Callable[..., Any]
    scope: Scope = "message"

    def __post_init__(self) -> None:
        if not callable(self.make):
            raise TypeError(f"Depends({self.make!r}): pass a function or a class, without calling it")
        if self.scope not in get_args(Scope):
            raise ValueError(f'Depends(scope={self.scope!r}): use "message" or "app"')


class Manner(Enum):
    """What is done with the result of a call."""

    MANAGER = auto()
    ASYNC_MANAGER = auto()
    COROUTINE = auto()
    PLAIN = auto()


ASYNC: Final = frozenset((Manner.ASYNC_MANAGER, Manner.COROUTINE))
"""Those that need an event loop."""


class Making(NamedTuple):
    """How to make a value: what to call, and what to do with its result. Found once, when a handler is registered."""

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
    """Make a value and have ``stack`` close it. Not for those in ``ASYNC``."""
    match making.manner:
        case Manner.MANAGER:
            return stack.enter_context(making.call(**arguments))
        case Manner.PLAIN:
            return making.call(**arguments)
    raise TypeError(f"{making.call!r} needs an event loop: make its handler a coroutine (async def)")


async def enter_async(stack: AsyncExitStack, making: Making, arguments: Mapping[str, Any]) -> Any:
    """Make a value of any manner and have ``stack`` close it."""
    match making.manner:
        case Manner.ASYNC_MANAGER:
            return await stack.enter_async_context(making.call(**arguments))
        case Manner.COROUTINE:
            return await making.call(**arguments)
    return enter(stack, making, arguments)
