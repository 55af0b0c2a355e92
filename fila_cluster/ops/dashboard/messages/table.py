"""A page of a queue's messages, in line order.

It is the broker's answer at one moment: nothing is sorted, because it is not complete.
"""

from collections.abc import Callable, Sequence
from datetime import UTC, datetime
from typing import Any, Final

from nicegui import ui
from nicegui.events import GenericEventArguments

from fila_cluster.client.message import MessageView
from fila_cluster.errors import FilaError
from fila_cluster.figures import counted, distance, sized
from fila_cluster.ops.dashboard.messages.dialog import STATE_SLOT
from fila_cluster.ops.dashboard.shell.links import link
from fila_cluster.ops.dashboard.shell.live import LOADING
from fila_cluster.ops.dashboard.widgets.cells import ago

ID_SLOT: Final = """<a :href="props.row.href" class="fila-mono text-primary" :title="props.row.key"
 @click.exact.prevent>{{ props.value }}</a>"""
"""A link to the message, for clicks with a key held. A plain click goes to the row."""

_COLUMNS: Final = {
    "id": "Id",
    "fairness_key": "Fairness key",
    "state": "State",
    "priority": "Priority",
    "attempts": "Attempts",
    "enqueued": "Enqueued",
    "next": "Next",
    "size": "Size",
    "consumer": "Consumer",
}

_NUMBERS: Final = {"priority", "attempts", "size"}


def short(message_id: str) -> str:
    """Return the part of an id that differs from its neighbours."""
    return f"{message_id[:8]}…{message_id[-8:]}"


class MessageTable:
    """``opened`` is called with the id of the clicked row."""

    def __init__(self, opened: Callable[[str], Any]) -> None:
        columns = [
            {"name": name, "label": label, "field": name, "align": "right" if name in _NUMBERS else "left"}
            for name, label in _COLUMNS.items()
        ]
        self._table = ui.table(rows=[], columns=columns, row_key="key")
        self._table.props("flat bordered dense").props(f'no-data-label="{LOADING}"').classes("w-full fila-rows")
        self._table.props("data-testid=messages")
        self._table.add_slot("body-cell-id", f'<q-td :props="props">{ID_SLOT}</q-td>')
        self._table.add_slot("body-cell-state", f'<q-td :props="props">{STATE_SLOT}</q-td>')

        async def click(event: GenericEventArguments) -> None:
            await opened(event.args[1]["key"])

        self._table.on("rowClick", click)

    def unknown(self, reason: str) -> None:
        """Show that the messages are unknown."""
        self._table.rows = []
        self._say(f"Unknown: {reason}")

    def _say(self, text: str) -> None:
        self._table.props["no-data-label"] = text
        self._table.update()

    def show(self, messages: Sequence[MessageView], before: str | None) -> None:
        """Replace the page; ``before`` is the id of the message before its first one."""
        now = datetime.now(UTC)
        self._say("No such message here.")
        befores = [before, *(message.id for message in messages)]
        self._table.rows = [_row(message, it, now) for message, it in zip(messages, befores, strict=False)]


def _row(message: MessageView, before: str | None, now: datetime) -> dict[str, Any]:
    return {
        "key": message.id,
        "href": link("/messages", queue=message.queue, id=message.id, after=before),
        "id": short(message.id),
        "fairness_key": message.fairness_key,
        "state": message.state,
        "priority": message.priority,
        "attempts": counted(message.attempts),
        "enqueued": ago((now - message.enqueued_at).total_seconds()),
        "next": next_of(message, now),
        "size": _size(message),
        "consumer": (message.consumer or "")[:12],
    }


def next_of(message: MessageView, now: datetime) -> str:
    """Return its next change without an action, and the time."""
    if message.due_at is not None:
        return f"due {distance(message.due_at, now)}"
    if message.lease_expires_at is not None:
        return f"lease ends {distance(message.lease_expires_at, now)}"
    return ""


def _size(message: MessageView) -> str:
    try:
        return sized(len(message.payload))
    except FilaError:  # a malformed record of a foreign producer
        return "unreadable"
