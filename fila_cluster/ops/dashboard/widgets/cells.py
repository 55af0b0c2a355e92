"""What cells of tables have in common: texts for values, and slots, the Vue templates of a cell's inside.

A template that only one table has stays with that table.
"""

from datetime import UTC, datetime
from typing import Final

from fila_cluster.figures import aged
from fila_cluster.ops.dashboard.shell.timestamps import clock

MONO: Final = '<span class="fila-mono">{{ props.value }}</span>'
"""Text in which each character counts: ids, addresses, keys."""

MONO_BROKEN: Final = '<span class="fila-mono" style="white-space: normal; word-break: break-all">{{ props.value }}</span>'
"""The same, broken into lines anywhere: it has no spaces, and may be long."""


def wrapped(width_min: str, look: str = "") -> str:
    """Return the slot of a column whose text is broken into lines, not narrower than a CSS length, within words if need be.

    ``look``: one more class.
    """
    style = f"white-space: normal; overflow-wrap: anywhere; min-width: {width_min}"
    return f'<div class="{look}" style="{style}">{{{{ props.value }}}}</div>'


def linked(href: str) -> str:
    """Return the slot of a column whose text leads to the address in another column of the row."""
    return f'<a :href="props.row.{href}" class="text-primary">{{{{ props.value }}}}</a>'


def short_time(at: datetime) -> str:
    """Return a time in UTC: the time of day, or, if that is long ago, the day and the minute."""
    return clock(at, datetime.now(UTC))


def ago(seconds: float) -> str:
    """Return how long ago something was."""
    return f"{aged(seconds)} ago"


def origin(address: str) -> str:
    """Return where a client came from. One that uses a socket file of the same host has no address."""
    return address or "local"
