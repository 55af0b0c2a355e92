"""One message in full: its fields, headers, payload, and the actions on it."""

from collections.abc import Awaitable, Callable, Mapping, Sequence
from datetime import UTC, datetime
from typing import Final, NamedTuple

from nicegui import ui

from fila_cluster.client.message import MessageView
from fila_cluster.errors import FilaError
from fila_cluster.figures import counted, distance, moment, sized
from fila_cluster.ops.dashboard.shell.links import link, queue_page
from fila_cluster.ops.dashboard.widgets.payload_view import payload_view

STATE_COLOURS: Final = {"pending": "primary", "delayed": "secondary", "leased": "warning"}

STATE_SLOT: Final = f'<q-badge :color="({STATE_COLOURS!r})[props.value]">{{{{ props.value }}}}</q-badge>'
"""The inside of a table's cell."""


class MessageAction(NamedTuple):
    """A button; ``act`` is awaited with the message."""

    title: str
    icon: str
    mark: str
    act: Callable[[MessageView], Awaitable[None]]
    is_danger: bool = False


class MessageDialog:
    """The dialog over a page. ``closed`` is called when the user closes it."""

    def __init__(self, actions: Sequence[MessageAction], closed: Callable[[], None]) -> None:
        self._actions = actions
        with ui.dialog() as self._dialog, ui.card().classes("p-4 gap-3 w-[62rem]").style("max-width: 95vw") as self._card:
            pass
        self._card.props("data-testid=message")
        self._dialog.on("hide", closed)

    def show(self, message: MessageView) -> None:
        """Open it."""
        self._card.clear()
        with self._card:
            self._head(message)
            try:
                _facts(message_facts(message, datetime.now(UTC)))
                _headers(message.headers)
                payload_view(message.payload, message.id)
                if message.metadata:
                    payload_view(
                        message.metadata, f"{message.id}-metadata", title="Metadata of the last attempt", mark="metadata"
                    )
            except FilaError as error:  # a malformed record of a foreign producer
                ui.label(str(error)).classes("text-negative").props("data-testid=message-trouble")
        self._dialog.open()

    def close(self) -> None:
        """Close it."""
        self._dialog.close()

    def _head(self, message: MessageView) -> None:
        with ui.row().classes("w-full items-center gap-3"):
            ui.label(message.id).classes("fila-mono text-base font-semibold").props("data-testid=message-id")
            ui.badge(message.state, color=STATE_COLOURS[message.state]).props("data-testid=message-state")
            ui.space()
            ui.link("Why?", link("/why", queue=message.queue, id=message.id))
            for action in self._actions:
                self._button(action, message)
            ui.button(icon="close", on_click=self.close).props(
                'flat round dense aria-label="Close" data-testid=message-close'
            )

    def _button(self, action: MessageAction, message: MessageView) -> None:
        colour = "negative" if action.is_danger else "primary"
        button = ui.button(action.title, icon=action.icon, on_click=lambda: action.act(message), color=colour)
        button.props(f"outline dense no-caps data-testid={action.mark}").classes("px-2")


def message_facts(message: MessageView, now: datetime) -> dict[str, str]:
    """Return the fields of a message that apply, by name, without its id, state, headers and payload."""
    at = {
        "Enqueued": message.enqueued_at,
        "Due": message.due_at,
        "Leased": message.leased_at,
        "Lease ends": message.lease_expires_at,
        "Dead-lettered": message.dead_lettered_at,
    }
    facts = {
        "Queue": message.queue,
        "Fairness key": message.fairness_key,
        "Weight": counted(message.weight),
        "Priority": str(message.priority),
        "Cost": f"{message.cost:g}",
        "Throttle keys": ", ".join(message.throttle_keys),
        "Attempts": counted(message.attempts),
        "Reason": message.reason,
        "Came from": message.source_queue,
        **{name: f"{moment(it)} ({distance(it, now)})" for name, it in at.items() if it is not None},
        "Consumer": message.consumer,
        "Error": message.error,
        "Size": sized(len(message.payload)),
    }
    return {name: text for name, text in facts.items() if text}


def _facts(facts: Mapping[str, str]) -> None:
    with (
        ui.grid(columns="auto 1fr auto 1fr")
        .classes("w-full gap-x-4 gap-y-1 items-baseline")
        .props("data-testid=message-facts")
    ):
        for name, text in facts.items():
            if name == "Error":
                continue
            ui.label(name).classes("fila-quiet")
            if name in {"Queue", "Came from"}:
                ui.link(text, queue_page(text)).classes("break-all")
            else:
                ui.label(text).classes("break-all")
    if "Error" in facts:
        ui.label("Error").classes("font-semibold")
        ui.label(facts["Error"]).classes("fila-mono fila-text whitespace-pre-wrap w-full").props("data-testid=message-error")


def _headers(headers: Mapping[str, str]) -> None:
    if not headers:
        ui.label("Headers: none").classes("fila-quiet")
        return
    ui.label("Headers").classes("font-semibold")
    with (
        ui.grid(columns="auto 1fr").classes("gap-x-6 gap-y-0 fila-mono fila-text w-full").props("data-testid=message-headers")
    ):
        for name, text in sorted(headers.items()):
            ui.label(name).classes("opacity-70 break-all")
            ui.label(text).classes("whitespace-pre-wrap break-all")
