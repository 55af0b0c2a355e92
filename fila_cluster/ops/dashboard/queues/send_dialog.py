"""The dialog that sends a test message. It keeps what was typed, to be sent again."""

from collections.abc import Awaitable, Callable

from nicegui import ui

from fila_cluster import AsyncClient
from fila_cluster.errors import FilaError
from fila_cluster.ops.dashboard.shell.feedback import notify
from fila_cluster.ops.dashboard.widgets.forms import MessageFields


class SendDialog:
    """``sent`` is awaited after each message."""

    def __init__(self, client: AsyncClient, queue: str, sent: Callable[[], Awaitable[None]]) -> None:
        self._client, self._queue, self._sent = client, queue, sent
        with ui.dialog() as self._dialog, ui.card().classes("p-4 gap-3 w-[44rem]").style("max-width: 95vw"):
            self._dialog.props("data-testid=send-dialog")
            self._fields = MessageFields(f"Send a message to {queue}", mark="send")
            self._fields.payload.props("autofocus")
            self._trouble = ui.label().classes("text-negative whitespace-pre-line").props("data-testid=send-trouble")
            with ui.row().classes("w-full justify-end"):
                ui.button("Close", on_click=self._dialog.close).props("flat no-caps")
                ui.button("Send", icon="send", on_click=self._send).props("no-caps data-testid=send-submit")

    def open(self) -> None:
        """Show it."""
        self._trouble.text = ""
        self._dialog.open()

    async def _send(self) -> None:
        self._trouble.text = ""
        try:
            message = self._fields.read()
            message_id = await self._client.enqueue(
                self._queue,
                message.payload,
                message.headers,
                fairness_key=message.fairness_key,
                priority=message.priority,
                delay=message.delay,
            )
        except (FilaError, ValueError) as error:
            self._trouble.text = str(error)
        else:
            notify(f"message {message_id} is in {self._queue}")
            self._dialog.close()
            await self._sent()
