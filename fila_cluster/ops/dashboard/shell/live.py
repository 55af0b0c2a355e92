"""Keep a page up to date, show absent answers as unknown, never as empty, and give feedback on buttons.

A page asks again after a second, or after forty times as long as the last answer took, so a page costs the broker at most a
fortieth of its time. Tables, tiles and buttons register; the code that asks the broker reports whether there was an answer.
"""

import time
from collections.abc import Awaitable, Callable
from typing import Final, Protocol, TypeVar
from weakref import WeakKeyDictionary

from nicegui import Client, ui

from fila_cluster.errors import FilaError
from fila_cluster.ops.dashboard.shell.context import Context

Result = TypeVar("Result")


async def confirm(question: str, *, yes: str, danger: bool = True) -> bool:
    """Ask; closing the question means no."""
    with ui.dialog().props('aria-label="Are you sure?"') as dialog, ui.card().classes("max-w-lg"):
        ui.label(question).classes("whitespace-pre-line")
        with ui.row().classes("w-full justify-end"):
            ui.button("Cancel", on_click=lambda: dialog.submit(False)).props("flat")
            ui.button(yes, on_click=lambda: dialog.submit(True), color="negative" if danger else "primary").props(
                "data-testid=confirm"
            )
    answer = await dialog
    dialog.delete()
    return bool(answer)


async def confirm_by_name(question: str, name: str, *, yes: str) -> bool:
    """Ask before an action on everything: the user has to type ``name``."""
    with ui.dialog().props('aria-label="Are you sure?"') as dialog, ui.card().classes("max-w-lg"):
        ui.label(question).classes("whitespace-pre-line")
        typed = ui.input(f"Type {name}").props("dense outlined data-testid=typed-name").classes("w-full")
        with ui.row().classes("w-full justify-end"):
            ui.button("Cancel", on_click=lambda: dialog.submit(False)).props("flat")
            button = ui.button(yes, on_click=lambda: dialog.submit(True), color="negative").props("data-testid=confirm")
            button.bind_enabled_from(typed, "value", backward=lambda text: text == name)
    answer = await dialog
    dialog.delete()
    return bool(answer)


async def attempt(call: Awaitable[Result]) -> Result | None:
    """Await a call to the broker; show an error, and return None then."""
    try:
        return await call
    except FilaError as error:
        notify_error(str(error))
        return None


async def succeeds(call: Awaitable[object], done: str) -> bool:
    """Await a call; show ``done``, or its error. Return whether it succeeded."""
    try:
        await call
    except FilaError as error:
        notify_error(str(error))
        return False
    notify(done)
    return True


def notify(text: str) -> None:
    """Show the success of an action."""
    ui.notify(text, type="positive", position="bottom-right")


def notify_error(text: str) -> None:
    """Show an error, for as long as it takes to read it."""
    ui.notify(text, type="negative", position="bottom-right", multi_line=True, close_button="OK", timeout=15_000)


LOADING: Final = "Loading…"
"""The text before the first answer."""


class PagePart(Protocol):
    """A part of a page that depends on answers of the broker."""

    def unknown(self, reason: str) -> None:
        """Note that the present state is unknown."""
        ...

    def known(self) -> None:
        """Note that the broker has answered."""
        ...


_parts: WeakKeyDictionary[Client, list[PagePart]] = WeakKeyDictionary()


def register(part: PagePart) -> None:
    """Add a part of the page that is being built."""
    _parts.setdefault(ui.context.client, []).append(part)


def unknown_here(reason: str) -> None:
    """Note for all parts of this page that the state is unknown."""
    for part in _parts.get(ui.context.client, ()):
        part.unknown(reason)


def known_here() -> None:
    """Note for all parts of this page that the broker has answered."""
    for part in _parts.get(ui.context.client, ()):
        part.known()


class VerbButton:
    """A button that changes the shown state. It is off while the state is unknown."""

    def __init__(self, button: ui.button) -> None:
        self._button = button
        button.set_enabled(False)
        register(self)

    def unknown(self, reason: str) -> None:
        """Turn the button off."""
        self._button.set_enabled(False)

    def known(self) -> None:
        """Turn the button on."""
        self._button.set_enabled(True)


REFRESH_S: Final = 1.0
REST: Final = 40
"""The wait for the next answer, as a multiple of the time that the last one took."""
WAIT_S_MAX: Final = 30.0

Look = Callable[[], Awaitable[bool | None]]
"""Asks for the content of a page. False: there was no answer, and the error is shown already."""


def keep_live(context: Context, look: Look, trouble: ui.label | None = None) -> Look:
    """Call ``look`` repeatedly, while the page is open and the broker is there; return a function for calls in between.

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
