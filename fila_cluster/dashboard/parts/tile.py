"""One number, large, with its name and a word on it."""

from nicegui import ui


class Tile:
    """A number in a card. ``mark`` is its ``data-testid`` in the page."""

    def __init__(self, name: str, mark: str) -> None:
        with ui.card().classes("px-4 py-3 gap-0 min-w-[7.6rem] basis-0 grow"):
            ui.label(name).classes("fila-quiet")
            self._number = ui.label("–").classes("fila-number").props(f"data-testid={mark}")
            self._note = ui.label("").classes("fila-quiet")

    def show(self, number: str, note: str = "", *, alarming: bool = False) -> None:
        """Change what it says."""
        self._number.text = number
        self._note.text = note
        self._number.classes(add="text-negative" if alarming else "", remove="" if alarming else "text-negative")
