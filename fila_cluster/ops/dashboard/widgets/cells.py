"""Cells that several tables use: texts for values, and slots, the Vue templates of a cell's inside."""

from datetime import UTC, datetime
from typing import Final

from nicegui import ui

from fila_cluster.figures import aged, clock

MONO: Final = '<span class="fila-mono">{{ props.value }}</span>'
"""Text in which each character counts: ids, addresses, keys."""

MONO_BROKEN: Final = '<span class="fila-mono" style="white-space: normal; word-break: break-all">{{ props.value }}</span>'
"""The same, broken into lines anywhere, for long texts without spaces."""


def wrapped(width_min: str, look: str = "") -> str:
    """Return the slot of a column whose text is broken into lines, not narrower than a CSS length, within words if need be.

    ``look``: one more class.
    """
    style = f"white-space: normal; overflow-wrap: anywhere; min-width: {width_min}"
    return f'<div class="{look}" style="{style}">{{{{ props.value }}}}</div>'


def linked(href: str) -> str:
    """Return the slot of a column whose text links to the address in another column of the row."""
    return f'<a :href="props.row.{href}" class="text-primary">{{{{ props.value }}}}</a>'


def short_time(at: datetime) -> str:
    """Return a time in UTC: the time of day, or, if that is long ago, the day and the minute."""
    return clock(at, datetime.now(UTC))


def ago(seconds: float) -> str:
    """Return how long ago something was."""
    return f"{aged(seconds)} ago"


def origin(address: str) -> str:
    """Return the origin of a client. One on a socket file of the same host has no address."""
    return address or "local"


COLOURS: Final = {
    "down": "negative",
    "silent": "negative",
    "breaker": "negative",
    "paused": "warning",
    "unread": "warning",
    "active": "positive",
    "idle": "grey",
}

STATE_SLOT: Final = f'<q-badge :color="({COLOURS!r})[props.value]">{{{{ props.value }}}}</q-badge>'
"""The inside of a table's cell."""


def state_badge() -> ui.badge:
    """Return a badge for :func:`show_state`."""
    return ui.badge("").classes("px-2 py-1").props("data-testid=queue-state")


def show_state(badge: ui.badge, state: str) -> None:
    """Show another state."""
    badge.text = state
    badge.props(f"color={COLOURS.get(state, 'grey')}")
