"""A dialog with fields, which stays open until what it asks for succeeds."""

from collections.abc import Awaitable, Callable

from nicegui import ui

from fila_cluster.errors import FilaError


class FormDialog:
    """Fields, below them the error of the last try, and two buttons. It is asked once.

    Widgets that are made within ``fields`` are its fields. A click beside it does not close it: what was typed stays.
    """

    def __init__(self, title: str, yes: str, *, mark: str, width: str = "44rem") -> None:
        """``yes``: the button that tries; ``mark``: what its test ids begin with; ``width``: a CSS length."""
        with ui.dialog() as self._dialog, ui.card().classes("p-4 gap-3 no-wrap") as card:
            card.style(f"width: {width}; max-width: 95vw")
            self._dialog.props(f"persistent data-testid={mark}-dialog")
            ui.label(title).classes("text-lg font-semibold break-all shrink-0")
            self.fields = ui.column().classes("w-full gap-3 py-1 no-wrap min-h-0 overflow-y-auto")
            self._trouble = ui.label().classes("text-negative whitespace-pre-line break-words w-full shrink-0")
            self._trouble.props(f"data-testid={mark}-trouble")
            with ui.row().classes("w-full justify-end shrink-0"):
                ui.button("Cancel", on_click=lambda: self._dialog.submit(False)).props("flat no-caps")
                self._yes = ui.button(yes).props(f"no-caps data-testid={mark}-submit")

    async def ask(self, do: Callable[[], Awaitable[object]]) -> bool:
        """Show it until ``do`` succeeds, or the user leaves it. Return whether ``do`` succeeded."""

        async def submit() -> None:
            self._trouble.text = ""
            try:
                await do()
            except (FilaError, ValueError) as error:
                self._trouble.text = str(error)
            else:
                self._dialog.submit(True)

        self._yes.on_click(submit)
        is_done = await self._dialog
        self._dialog.delete()
        return bool(is_done)
