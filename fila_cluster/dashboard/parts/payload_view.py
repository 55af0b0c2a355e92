"""A payload on the screen, in the view that fits it or another one, and all of it as a file."""

from typing import Final

from nicegui import ui

from fila_cluster.dashboard.payloads import VIEWS, View, extension, fitting, rendered
from fila_cluster.figures import counted, sized

_WRAPPED: Final = "white-space: pre-wrap; overflow-wrap: anywhere"


def payload_view(payload: bytes, file_name: str, *, title: str = "Payload", mark: str = "payload") -> None:
    """Show it. ``file_name`` is without its extension."""
    if not payload:
        ui.label(f"{title}: empty").classes("fila-quiet").props(f"data-testid={mark}-note")
        return
    view = fitting(payload)
    with ui.row().classes("w-full items-center gap-3"):
        ui.label(title).classes("font-semibold")
        ui.label(sized(len(payload))).classes("fila-quiet")
        ui.space()
        choice = ui.toggle(_offered(view), value=view).props(
            f'dense no-caps unelevated padding="2px 10px" data-testid={mark}-view'
        )
        ui.button(icon="download", on_click=lambda: _download(payload, f"{file_name}.{extension(view)}")).props(
            f'flat round dense data-testid={mark}-download aria-label="Download"'
        )
    text = ui.label().classes("fila-mono fila-text w-full").props(f"data-testid={mark}")
    note = ui.label().classes("fila-quiet").props(f"data-testid={mark}-note")

    def show() -> None:
        shown = rendered(payload, choice.value)
        text.text = shown.text
        text.style(replace="white-space: pre" if choice.value == "hex" else _WRAPPED)
        note.text = f"{counted(shown.left_out_bytes)} of {counted(len(payload))} bytes are not shown: download all of it"
        note.set_visibility(shown.left_out_bytes > 0)

    choice.on_value_change(show)
    show()


def _download(payload: bytes, file_name: str) -> None:
    ui.download.content(payload, file_name, "application/octet-stream")


def _offered(view: View) -> dict[View, str]:
    """JSON only of what is JSON."""
    return {each: each.upper() if each == "json" else each.capitalize() for each in VIEWS if each != "json" or view == "json"}
