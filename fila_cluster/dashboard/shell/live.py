"""Keeping a page up to date without keeping the broker busy.

A page asks again after a second, or after forty times as long as the last answer took: watching costs the broker at most a
fortieth of its time, however large the queue is, and however many keys it has.
"""

import time
from collections.abc import Awaitable, Callable
from typing import Final

from nicegui import ui

from fila_cluster.dashboard.shell.context import Context
from fila_cluster.errors import FilaError

REFRESH_S: Final = 1.0
REST: Final = 40
"""How many times as long as an answer took to wait for the next one."""
WAIT_S_MAX: Final = 30.0

Look = Callable[[], Awaitable[bool | None]]
"""False: who should have answered did not, and somebody else said so."""


def keep_live(context: Context, look: Look, trouble: ui.label | None = None) -> Look:
    """Call ``look`` now and again and again, while the page is open and the broker is there; returns it, to be called in between.

    An error of the broker is written into ``trouble``, which is cleared by the next success.
    """

    async def look_once() -> None:
        if context.watch.latest is None:
            return
        started = time.monotonic()
        try:
            is_answered = await look() is not False
        except FilaError as error:
            is_answered = False
            _say(trouble, str(error))
        else:
            _say(trouble, "")
        # without an answer the time that it took says how long somebody hung, not how much work it was
        rest_s = REST * (time.monotonic() - started) if is_answered else 0
        timer.interval = min(WAIT_S_MAX, max(REFRESH_S, rest_s))

    timer = ui.timer(REFRESH_S, look_once, immediate=True)
    return look_once


def _say(trouble: ui.label | None, text: str) -> None:
    if trouble is not None:
        trouble.text = text
        trouble.set_visibility(bool(text))
