"""Feedback on buttons: a question where an action can't be undone, a message about its result, never a traceback."""

from collections.abc import Awaitable
from typing import TypeVar

from nicegui import ui

from fila_cluster.errors import FilaError

Result = TypeVar("Result")


async def confirm(question: str, *, yes: str, danger: bool = True) -> bool:
    """Ask; closing the question means no."""
    with ui.dialog() as dialog, ui.card().classes("max-w-lg"):
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
    with ui.dialog() as dialog, ui.card().classes("max-w-lg"):
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
