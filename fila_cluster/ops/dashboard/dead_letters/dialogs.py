"""The dialog of one dead letter, and the questions before many of them move."""

from collections.abc import Awaitable, Callable
from typing import Final, NamedTuple

from nicegui import ui

from fila_cluster import AsyncClient
from fila_cluster.client.calls.backlog import redrive_selected
from fila_cluster.client.message import MessageView
from fila_cluster.ops.dashboard.messages import MessageAction, MessageDialog, find_message
from fila_cluster.ops.dashboard.shell.feedback import attempt, confirm, notify, notify_error

RATE_DEFAULT: Final = 50.0
RATE_MIN: Final = 0.1
RATE_MAX: Final = 100_000.0


class Speed(NamedTuple):
    """Messages a second; None: at once."""

    rate: float | None


async def ask_speed(question: str) -> Speed | None:
    """Return the chosen speed; None: do nothing."""
    with ui.dialog() as dialog, ui.card().classes("max-w-lg").props("data-testid=speed"):
        ui.label(question).classes("whitespace-pre-line")
        ui.label("They are enqueued like new messages: hooks run again, attempts start at 0.").classes("fila-quiet")
        with ui.row().classes("items-center gap-3"):
            mode = ui.toggle({"rate": "At a rate", "at_once": "At once"}, value="rate").props("no-caps unelevated")
            rate = (
                ui.number(
                    "Messages a second",
                    value=RATE_DEFAULT,
                    min=RATE_MIN,
                    max=RATE_MAX,
                    validation={f"from {RATE_MIN:g} to {RATE_MAX:,.0f}": _is_rate},
                )
                .props("dense outlined data-testid=rate")
                .classes("w-44")
            )
            rate.bind_enabled_from(mode, "value", backward=lambda it: it == "rate")
        with ui.row().classes("w-full justify-end"):
            ui.button("Cancel", on_click=lambda: dialog.submit(None)).props("flat")
            ui.button("Redrive", on_click=lambda: _submit(dialog, mode.value, rate)).props("data-testid=start-redrive")
    answer = await dialog
    dialog.delete()
    return answer if isinstance(answer, Speed) else None


def _submit(dialog: ui.dialog, mode: str, rate: ui.number) -> None:
    if mode == "at_once":
        dialog.submit(Speed(None))
    elif _is_rate(rate.value):
        dialog.submit(Speed(float(rate.value)))


def _is_rate(value: float | None) -> bool:
    return value is not None and RATE_MIN <= value <= RATE_MAX


TellAddress = Callable[[str | None, str | None], None]


class LetterDialog:
    """``changed`` is awaited when the letter is gone; ``tell_address`` gets the open letter's id and its predecessor's."""

    def __init__(
        self,
        client: AsyncClient,
        dlq: str,
        changed: Callable[[], Awaitable[None]],
        tell_address: TellAddress,
        *,
        may_change: bool,
    ) -> None:
        self._client, self._dlq, self._changed, self._tell_address = client, dlq, changed, tell_address
        actions = [
            MessageAction("Redrive", "replay", "redrive", self._redrive),
            MessageAction("Delete", "delete", "delete", self._delete, is_danger=True),
        ]
        self._dialog = MessageDialog(actions if may_change else [], lambda: tell_address(None, None))

    async def open(self, message_id: str, after: str | None) -> None:
        """Show one letter as it is now; ``after`` is the id of the one before it, if known."""
        found = await attempt(find_message(self._client, self._dlq, message_id, after=after))
        if found is None:
            return
        if found.message is None:
            notify_error(found.why_not)
            return
        self._dialog.show(found.message)
        self._tell_address(message_id, after)

    async def _redrive(self, message: MessageView) -> None:
        count = await attempt(redrive_selected(self._client, self._dlq, [message.id]))
        if count is None:
            return
        if count:
            notify(f"{message.id} went back to {message.source_queue}")
        else:
            notify_error(f"{message.id} stayed: it is leased or gone, or {message.source_queue} is not there any more")
        await self._close()

    async def _delete(self, message: MessageView) -> None:
        if not await confirm(f"Delete dead letter {message.id} for good?\nThis can't be undone.", yes="Delete it"):
            return
        removed = await attempt(self._client.cancel(self._dlq, message.id))
        if removed is None:
            return
        if removed:
            notify(f"{message.id} was deleted")
        else:
            notify_error(f"{message.id} stayed: it is leased")
        await self._close()

    async def _close(self) -> None:
        self._dialog.close()
        await self._changed()
