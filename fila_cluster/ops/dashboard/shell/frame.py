"""The frame of all pages: a header, the navigation, and one clear sentence instead of old numbers when the broker is down."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

from nicegui import ui

from fila_cluster.errors import FilaError, UnauthenticatedError
from fila_cluster.ops.analysis.visitor import Visitor
from fila_cluster.ops.dashboard.shell import theme
from fila_cluster.ops.dashboard.shell.context import ADMIN, EVERYTHING, Context, visitor_of_page
from fila_cluster.ops.dashboard.shell.links import NAVIGATION, NavigationEntry

_LOG_OUT: Final = "fetch('/logout', {method: 'POST'}).then(() => location.assign('/login'))"

LOOK_S: Final = 0.5
"""How often a page checks whether the broker is there."""


@contextmanager
def frame(context: Context, title: str, here: str) -> Iterator[ui.column]:
    """Draw everything around a page; widgets made within are its content.

    ``here`` is the path of its entry in the navigation.
    """
    visitor = visitor_of_page()
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
        if visitor is not None:
            _who(visitor)
    with drawer:
        for place in NAVIGATION:
            if may_open(context, place):
                _entry(place.path, place.title, place.icon, is_here=place.path == here)
    down = _down()
    content = ui.column().classes("w-full max-w-[1500px] mx-auto p-2 gap-4")
    _keep_honest(context, state, down, content, visitor)
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


def may_open(context: Context, place: NavigationEntry) -> bool:
    """Return whether a page has anything for the visitor, in this cluster."""
    if place.of_hosts and context.hosts() is None:
        return False
    if place.needs is None:
        return True
    kind, queue = place.needs
    return context.may_some(kind) if queue is None else context.may(kind, queue)


def lacks(permission: str) -> None:
    """Say that the visitor's key lacks a permission, instead of what needs it."""
    with ui.row().classes("items-center gap-2").props("data-testid=lacks"):
        ui.icon("lock").classes("text-xl fila-quiet")
        ui.label(f"Your API key does not have {permission}.")


def may_govern(context: Context, what: str) -> bool:
    """Return whether the visitor may govern the whole cluster. If not, say that ``what`` needs that."""
    may = context.may(ADMIN, EVERYTHING)
    if not may:
        lacks(f"{ADMIN}:{EVERYTHING}, which {what} needs")
    return may


def _who(visitor: Visitor) -> None:
    ui.label(visitor.key.name).classes("fila-quiet max-sm:hidden").props("data-testid=who")
    with ui.button(icon="logout", on_click=lambda: ui.run_javascript(_LOG_OUT)).props("flat round dense data-testid=logout"):
        ui.tooltip(f"Log out {visitor.key.name}")


def _keep_honest(context: Context, state: ui.badge, down: ui.card, content: ui.column, visitor: Visitor | None) -> None:
    """Show the content only while the broker answers, and to nobody whose login has ended."""
    reason = [it for it in down.descendants() if isinstance(it, ui.label)][1]

    def show() -> None:
        is_up = context.latest is not None
        obstacles = context.obstacles()
        content.set_visibility(is_up)
        down.set_visibility(not is_up)
        reason.text = context.why_not
        state.text = "down" if not is_up else "serving" if not obstacles else "partly down"
        state.props(f"color={'negative' if not is_up else 'positive' if not obstacles else 'warning'}")

    async def look() -> None:
        if visitor is None or not visitor.key.ended:
            show()
        if visitor is not None and await _has_ended(visitor):
            timer.cancel()
            content.clear()
            ui.navigate.to("/login")

    show()
    timer = ui.timer(LOOK_S, look)


async def _has_ended(visitor: Visitor) -> bool:
    try:
        await visitor.check()
    except UnauthenticatedError:
        return True
    except FilaError:  # nobody can say so now: the page shows that the broker is down
        return False
    return False
