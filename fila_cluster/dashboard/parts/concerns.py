"""What needs attention, the most urgent first, each with what to do about it."""

from collections.abc import Sequence
from typing import Final

from nicegui import ui

from fila_cluster.dashboard.links import link, queue_page
from fila_cluster.observing.attention import Concern

SHOWN: Final = 8

_ICONS: Final = {"critical": ("error", "negative"), "warning": ("warning", "warning"), "info": ("info", "info")}
_LETTER_CODES: Final = {"dead_letters", "dead_letters_growing"}


class ConcernFeed:
    """The first :data:`SHOWN` of them; drawn anew only when something changed."""

    def __init__(self) -> None:
        self._shown: Sequence[Concern] | None = None
        self._all = False
        with ui.card().classes("w-full p-3 gap-1").props("data-testid=attention"):
            ui.label("Needs attention").classes("font-semibold")
            self._list = ui.column().classes("w-full gap-0")

    def show(self, concerns: Sequence[Concern]) -> None:
        """Change the list."""
        if concerns == self._shown:
            return
        self._shown = concerns
        self._draw()

    def _draw(self) -> None:
        concerns = self._shown or ()
        self._list.clear()
        with self._list:
            if not concerns:
                with ui.row().classes("items-center gap-2 py-1"):
                    ui.icon("check_circle", color="positive").classes("text-xl")
                    ui.label("Nothing. All shards serve, and nobody waits for a reason that you could remove.")
            for concern in concerns if self._all else concerns[:SHOWN]:
                _entry(concern)
            if len(concerns) > SHOWN:
                text = "Show fewer" if self._all else f"Show {len(concerns) - SHOWN:,} more"
                ui.button(text, on_click=self._turn).props("flat dense no-caps")

    def _turn(self) -> None:
        self._all = not self._all
        self._draw()


def _entry(concern: Concern) -> None:
    icon, colour = _ICONS[concern.severity]
    with ui.row().classes("w-full items-start gap-3 py-1 no-wrap").props(f"data-testid=concern-{concern.code}"):
        ui.icon(icon, color=colour).classes("text-xl mt-[2px]")
        with ui.column().classes("gap-0 grow"):
            ui.label(concern.text)
            ui.label(concern.action).classes("fila-quiet")
        if concern.queue is not None:
            _way(concern.queue, concern.code)


def _way(queue: str, code: str) -> None:
    with ui.row().classes("gap-2 no-wrap"):
        if code in _LETTER_CODES:
            ui.link("Dead letters", link("/letters", queue=queue)).classes("text-sm whitespace-nowrap")
        else:
            ui.link("Why?", link("/why", queue=queue)).classes("text-sm whitespace-nowrap")
        ui.link("Open", queue_page(queue)).classes("text-sm")
