"""The frame of all pages: their addresses, the header, the navigation, colours, and a sentence while the broker is down."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final, NamedTuple
from urllib.parse import urlencode

from nicegui import context, ui

from fila_admission.permissions import CONSUME
from fila_cluster.errors import FilaError, UnauthenticatedError
from fila_cluster.ops.analysis.visitor import Visitor
from fila_cluster.ops.dashboard.shell.context import ADMIN, EVERYTHING, Context, visitor_of_page


class NavigationEntry(NamedTuple):
    """A page in the navigation."""

    path: str
    title: str
    icon: str
    needs: tuple[str, str | None] | None = None
    """The permission that the page needs: its kind, and its queue (None: any queue)."""
    of_hosts: bool = False
    """Whether it is for clusters of several hosts only."""


NAVIGATION: Final = (
    NavigationEntry("/", "Overview", "dashboard"),
    NavigationEntry("/hosts", "Hosts", "dns", of_hosts=True),
    NavigationEntry("/queues", "Queues", "view_list"),
    NavigationEntry("/templates", "Templates", "content_copy", (ADMIN, EVERYTHING)),
    NavigationEntry("/messages", "Messages", "mail", (CONSUME, None)),
    NavigationEntry("/dead-letters", "Dead letters", "report", (CONSUME, None)),
    NavigationEntry("/schedules", "Schedules", "schedule"),
    NavigationEntry("/hooks", "Hooks", "code"),
    NavigationEntry("/limits", "Limits", "speed", (ADMIN, EVERYTHING)),
    NavigationEntry("/config", "Config", "tune", (ADMIN, EVERYTHING)),
    NavigationEntry("/connections", "Connections", "cable", (ADMIN, EVERYTHING)),
    NavigationEntry("/audit", "Audit", "history", (ADMIN, EVERYTHING)),
    NavigationEntry("/why", "Why", "help"),
)


def link(path: str, **query: str | None) -> str:
    """Return a page's address with those of ``query`` that are not None."""
    given = {name: text for name, text in query.items() if text is not None}
    return f"{path}?{urlencode(given)}" if given else path


def queue_page(name: str) -> str:
    """Return the address of one queue's page."""
    return link("/queue", name=name)


_LOG_OUT: Final = "fetch('/logout', {method: 'POST'}).then(() => location.assign('/login'))"

LOOK_S: Final = 0.5
"""How often a page checks whether the broker is there."""


@contextmanager
def frame(context: Context, title: str, here: str) -> Iterator[ui.column]:
    """Draw everything around a page, whose widgets are made within. ``here``: the path of its entry in the navigation."""
    visitor = visitor_of_page()
    paint()
    ui.page_title(f"{title} · fila-cluster")
    drawer = ui.left_drawer(bordered=True).props("width=190 breakpoint=900").classes("p-2 gap-1")
    with ui.header().classes("items-center px-4 py-2 gap-3"):
        ui.button(icon="menu", on_click=drawer.toggle).props('flat round dense aria-label="Navigation"')
        ui.label("fila-cluster").classes("text-lg font-semibold")
        ui.label(context.endpoint).classes("fila-quiet fila-mono max-sm:hidden")
        ui.space()
        state = ui.badge("").props("rounded").classes("px-3 py-1").props("data-testid=state")
        switch()
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
    """Show that the visitor's key lacks a permission."""
    with ui.row().classes("items-center gap-2").props("data-testid=lacks"):
        ui.icon("lock").classes("text-xl fila-quiet")
        ui.label(f"Your API key does not have {permission}.")


def may_govern(context: Context, what: str) -> bool:
    """Return whether the visitor may govern the whole cluster. If not, show that ``what`` needs that."""
    may = context.may(ADMIN, EVERYTHING)
    if not may:
        lacks(f"{ADMIN}:{EVERYTHING}, which {what} needs")
    return may


def _who(visitor: Visitor) -> None:
    ui.label(visitor.key.name).classes("fila-quiet max-sm:hidden").props("data-testid=who")
    with ui.button(icon="logout", on_click=lambda: ui.run_javascript(_LOG_OUT)).props(
        'flat round dense aria-label="Log out" data-testid=logout'
    ):
        ui.tooltip(f"Log out {visitor.key.name}")


def _keep_honest(context: Context, state: ui.badge, down: ui.card, content: ui.column, visitor: Visitor | None) -> None:
    """Show the content only while the broker answers and the login holds."""
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
    except FilaError:  # the login cannot be checked now: the page shows that the broker is down
        return False
    return False


COOKIE: Final = "fila_theme"

CHOICES: Final = {"auto": None, "light": False, "dark": True}
"""``auto``: as the user's system."""

ICONS: Final = {"auto": "brightness_auto", "light": "light_mode", "dark": "dark_mode"}

SERIES_COLOURS: Final = (
    "#0d9488",
    "#6366f1",
    "#d97706",
    "#db2777",
    "#0284c7",
    "#65a30d",
    "#9333ea",
    "#dc2626",
    "#78716c",
    "#0891b2",
    "#a16207",
)
"""Readable on light and on dark ground, and neighbours distinct for the colour blind."""

_CSS: Final = """
body { font-feature-settings: "tnum"; }
.body--light { background: #f6f7f9; }
.body--dark { background: #12161c; }
.body--dark .q-card, .body--dark .q-table__card { background: #1b2129; }
.body--dark .q-drawer, .body--dark .q-header { background: #171c23 !important; color: #e6e9ee; }
.body--light .q-drawer, .body--light .q-header { background: #ffffff !important; color: #1c2430; }
.q-header { border-bottom: 1px solid rgba(128, 128, 128, .25); }
.q-card { box-shadow: none; border: 1px solid rgba(128, 128, 128, .22); border-radius: 8px; }
.q-table th { font-weight: 600; opacity: .75; }
.q-table__bottom--nodata .q-icon { display: none; }
.fila-number { font-size: 1.55rem; line-height: 1.9rem; font-weight: 600; }
.fila-quiet { opacity: .65; font-size: .8rem; }
.q-btn--outline.q-btn--dense { padding: .285em .7em; }
.fila-mono { font-family: ui-monospace, "DejaVu Sans Mono", monospace; font-size: .82rem; }
a.nicegui-link { color: var(--q-primary); text-decoration: none; }
a.nicegui-link:hover { text-decoration: underline; }
.fila-way, a.nicegui-link.fila-way { color: inherit; }
.fila-way:hover { text-decoration: none !important; background: rgba(128, 128, 128, .12); border-radius: 6px; }
.fila-here { background: rgba(13, 148, 136, .16); font-weight: 600; border-radius: 6px; }
.fila-text { background: rgba(128, 128, 128, .09); border-radius: 6px; padding: .5rem .75rem; }
.fila-text { max-height: 26rem; overflow: auto; flex-shrink: 0; }
.fila-rows tbody tr { cursor: pointer; }
/* On dark ground colours are bright, and what is written on them is dark. Of important rules those of the first layer win. */
@layer theme {
  .body--dark { --q-primary: #2dd4bf !important; --q-secondary: #a5b4fc !important; --q-positive: #4ade80 !important; }
  .body--dark { --q-negative: #f87171 !important; --q-warning: #fbbf24 !important; --q-info: #38bdf8 !important; }
  .body--dark :is(.q-badge, .q-btn, .q-notification):is(.bg-primary, .bg-secondary, .bg-positive, .bg-negative, .bg-warning, .bg-info, .bg-grey) {
    color: #0b1016 !important;
  }
  .body--light .bg-grey { background: #616161 !important; }
}
"""


def paint() -> None:
    """Give the page its colours: each reads well as text on light ground, and below white text. Call once, first."""
    ui.colors(
        primary="#0f766e", secondary="#4f46e5", positive="#15803d", negative="#b91c1c", warning="#b45309", info="#0369a1"
    )
    ui.add_css(_CSS)


def switch() -> None:
    """Add a button that switches between the choices."""
    request = context.client.request
    chosen = request.cookies.get(COOKIE, "auto") if request else "auto"
    chosen = chosen if chosen in CHOICES else "auto"
    dark = ui.dark_mode(CHOICES[chosen])
    names = list(CHOICES)

    def turn() -> None:
        nonlocal chosen
        chosen = names[(names.index(chosen) + 1) % len(names)]
        dark.set_value(CHOICES[chosen])
        button.props(f"icon={ICONS[chosen]}")
        tip.text = f"Colours: {chosen}"
        ui.run_javascript(f"document.cookie = '{COOKIE}={chosen}; path=/; max-age=31536000; samesite=strict'")

    button = ui.button(icon=ICONS[chosen], on_click=turn).props('flat round dense aria-label="Colours" data-testid=theme')
    with button:
        tip = ui.tooltip(f"Colours: {chosen}")
