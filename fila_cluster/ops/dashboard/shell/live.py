"""Keeps a page up to date without keeping the broker busy.

A page asks again after a second, or after forty times as long as the last answer took: watching costs the broker at most a
fortieth of its time, however large the queue is, and however many keys it has.
"""

import time
from collections.abc import Awaitable, Callable
from typing import Final

from nicegui import ui

from fila_cluster.errors import FilaError
from fila_cluster.ops.dashboard.shell.context import Context
from fila_cluster.ops.dashboard.shell.knowledge import known_here, unknown_here

REFRESH_S: Final = 1.0
REST: Final = 40
"""The wait for the next answer, as a multiple of the time that the last one took."""
WAIT_S_MAX: Final = 30.0

Look = Callable[[], Awaitable[bool | None]]
"""Asks for the content of a page. False: there was no answer, and the error is shown already."""


def keep_live(context: Context, look: Look, trouble: ui.label | None = None) -> Look:
    """Call ``look`` again and again, while the page is open and the broker is there; return it, to be called in between.

    An error of the broker is written into ``trouble``, which is cleared by the next success.
    """

    async def look_once() -> None:
        if context.latest is None:
            if context.why_not:
                unknown_here(context.why_not)
            return
        started = time.monotonic()
        try:
            is_answered = await look() is not False
        except FilaError as error:
            is_answered = False
            _say(trouble, str(error))
            unknown_here(str(error))
        else:
            _say(trouble, "")
            if is_answered:
                known_here()
        # without an answer the time is a wait for a shard, not work of the broker
        rest_s = REST * (time.monotonic() - started) if is_answered else 0
        timer.interval = min(WAIT_S_MAX, max(REFRESH_S, rest_s))

    timer = ui.timer(REFRESH_S, look_once, immediate=True)
    return look_once


def _say(trouble: ui.label | None, text: str) -> None:
    if trouble is not None:
        trouble.text = text
        trouble.set_visibility(bool(text))
