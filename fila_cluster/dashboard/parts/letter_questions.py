"""What is asked before many dead letters move: how fast they go back, and whether somebody means to delete all of them."""

from typing import Final, NamedTuple

from nicegui import ui

RATE_DEFAULT: Final = 50.0
RATE_MIN: Final = 0.1
RATE_MAX: Final = 100_000.0


class Speed(NamedTuple):
    """Messages a second; None: at once."""

    rate: float | None


async def ask_speed(question: str) -> Speed | None:
    """How fast; None: not at all."""
    with ui.dialog() as dialog, ui.card().classes("max-w-lg").props("data-testid=speed"):
        ui.label(question).classes("whitespace-pre-line")
        ui.label("They take the normal way: hooks run again, attempts start at 0.").classes("fila-quiet")
        with ui.row().classes("items-center gap-3"):
            mode = ui.toggle({"rate": "At a rate", "at_once": "At once"}, value="rate").props("no-caps unelevated")
            rate = ui.number(
                "Messages a second", value=RATE_DEFAULT, min=RATE_MIN, max=RATE_MAX,
                validation={f"from {RATE_MIN:g} to {RATE_MAX:,.0f}": _is_rate},
            ).props("dense outlined data-testid=rate").classes("w-44")  # fmt: skip
            rate.bind_enabled_from(mode, "value", backward=lambda it: it == "rate")
        with ui.row().classes("w-full justify-end"):
            ui.button("Cancel", on_click=lambda: dialog.submit(None)).props("flat")
            ui.button("Redrive", on_click=lambda: _submit(dialog, mode.value, rate)).props("data-testid=start-redrive")
    answer = await dialog
    dialog.delete()
    return answer if isinstance(answer, Speed) else None


def _submit(dialog: ui.dialog, mode: str, rate: ui.number) -> None:
    if mode == "at_once":
        dialog.submit(Speed(None))
    elif _is_rate(rate.value):
        dialog.submit(Speed(float(rate.value)))


def _is_rate(value: float | None) -> bool:
    return value is not None and RATE_MIN <= value <= RATE_MAX


async def confirm_by_name(question: str, name: str, *, yes: str) -> bool:
    """Ask for something that hits everything: ``name`` has to be typed."""
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
