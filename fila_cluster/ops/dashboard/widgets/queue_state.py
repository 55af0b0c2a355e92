"""The state of a queue as a coloured word."""

from typing import Final

from nicegui import ui

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
