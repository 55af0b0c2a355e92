"""Concerns as a list: each with its remedy, and a link to its queue or throttle key."""

from collections.abc import Sequence
from typing import Final

from nicegui import ui

from fila_cluster.ops.analysis.attention import Concern
from fila_cluster.ops.dashboard.shell.frame import link, queue_page

SHOWN: Final = 8

_ICONS: Final = {"critical": ("error", "negative"), "warning": ("warning", "warning"), "info": ("info", "info")}
_LETTER_CODES: Final = {"dead_letters", "dead_letters_growing"}


class ConcernFeed:
    """The first :data:`SHOWN` concerns; drawn again only after changes. ``all_well``: the text without concerns."""

    def __init__(self, title: str, all_well: str) -> None:
        self._all_well = all_well
        self._shown: Sequence[Concern] | None = None
        self._all = False
        with ui.card().classes("w-full p-3 gap-1").props("data-testid=attention"):
            ui.label(title).classes("font-semibold")
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
                    ui.label(self._all_well)
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
        if concern.throttle_key is not None:
            ui.link("Who?", link("/limits", key=concern.throttle_key)).classes("text-sm whitespace-nowrap")


def _way(queue: str, code: str) -> None:
    with ui.row().classes("gap-2 no-wrap"):
        if code in _LETTER_CODES:
            ui.link("Dead letters", link("/dead-letters", queue=queue)).classes("text-sm whitespace-nowrap")
        else:
            ui.link("Why?", link("/why", queue=queue)).classes("text-sm whitespace-nowrap")
        ui.link("Open", queue_page(queue)).classes("text-sm")
