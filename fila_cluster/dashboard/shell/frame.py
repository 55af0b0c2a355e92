"""The frame of all pages: a header, the navigation, and one clear sentence instead of old numbers when the broker is down."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

from nicegui import ui

from fila_cluster.dashboard.shell import theme
from fila_cluster.dashboard.shell.context import Context
from fila_cluster.dashboard.shell.links import NAVIGATION

LOOK_S: Final = 0.5
"""How often a page checks whether the broker is there."""


@contextmanager
def frame(context: Context, title: str, here: str) -> Iterator[ui.column]:
    """Draw everything around a page; widgets made within are its content.

    ``here`` is the path of its entry in the navigation.
    """
    theme.paint()
    ui.page_title(f"{title} · fila-cluster")
    drawer = ui.left_drawer(bordered=True).props("width=190 breakpoint=900").classes("p-2 gap-1")
    with ui.header().classes("items-center px-4 py-2 gap-3"):
        ui.button(icon="menu", on_click=drawer.toggle).props("flat round dense")
        ui.label("fila-cluster").classes("text-lg font-semibold")
        ui.label(context.endpoint).classes("fila-quiet fila-mono max-sm:hidden")
        ui.space()
        state = ui.badge("").props("rounded").classes("px-3 py-1").props("data-testid=state")
        theme.switch()
    with drawer:
        for place in NAVIGATION:
            _entry(place.path, place.title, place.icon, is_here=place.path == here)
    down = _down()
    content = ui.column().classes("w-full max-w-[1500px] mx-auto p-2 gap-4")
    _keep_honest(context, state, down, content)
    with content:
        yield content


def _entry(path: str, title: str, icon: str, *, is_here: bool) -> None:
    with ui.link(target=path).classes("w-full fila-way"):
        with ui.row().classes("items-center gap-3 px-3 py-2 w-full no-wrap" + (" fila-here" if is_here else "")):
            ui.icon(icon).classes("text-lg")
            ui.label(title)


def _down() -> ui.card:
    with ui.card().classes("w-full max-w-3xl mx-auto mt-16 items-center").props("data-testid=down") as card:
        ui.icon("cloud_off", color="negative").classes("text-6xl")
        ui.label("The broker is down").classes("text-2xl font-semibold")
        ui.label().classes("text-center").props("data-testid=down-reason")
        ui.label("Nothing is shown because nothing is known. This page comes back by itself.").classes("fila-quiet")
    card.set_visibility(False)
    return card


def _keep_honest(context: Context, state: ui.badge, down: ui.card, content: ui.column) -> None:
    """Show the content only while the broker answers."""
    reason = [it for it in down.descendants() if isinstance(it, ui.label)][1]

    def look() -> None:
        is_up = context.watch.latest is not None
        obstacles = context.watch.obstacles()
        content.set_visibility(is_up)
        down.set_visibility(not is_up)
        reason.text = context.watch.why_not
        state.text = "down" if not is_up else "serving" if not obstacles else "partly down"
        state.props(f"color={'negative' if not is_up else 'positive' if not obstacles else 'warning'}")

    look()
    ui.timer(LOOK_S, look)
