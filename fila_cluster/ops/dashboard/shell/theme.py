"""Colours, light and dark. The browser remembers the choice in a cookie, so a page comes in the right colours at once."""

from typing import Final

from nicegui import context, ui

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
.fila-text { background: rgba(128, 128, 128, .09); border-radius: 6px; padding: .5rem .75rem; max-height: 26rem; overflow: auto; flex-shrink: 0; }
.fila-rows tbody tr { cursor: pointer; }
"""


def paint() -> None:
    """Give the page its colours. Call once, first."""
    ui.colors(
        primary="#0d9488", secondary="#6366f1", positive="#15803d", negative="#dc2626", warning="#d97706", info="#0284c7"
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

    button = ui.button(icon=ICONS[chosen], on_click=turn).props("flat round dense").props("data-testid=theme")
    with button:
        tip = ui.tooltip(f"Colours: {chosen}")
