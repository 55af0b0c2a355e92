"""The dialog that sends a test message. It keeps what was typed, to be sent again."""

import json
from collections.abc import Awaitable, Callable
from typing import Final

from nicegui import ui

from fila_cluster import AsyncClient
from fila_cluster.dashboard.shell.feedback import notify
from fila_cluster.dashboard.widgets.header_lines import read_headers
from fila_cluster.errors import FilaError
from fila_cluster.figures import duration_s
from fila_proto_zmq.limits import PRIORITY_MAX, PRIORITY_MIN

KINDS: Final = {"text": "Text", "json": "JSON"}


class SendDialog:
    """``sent`` is awaited after each message."""

    def __init__(self, client: AsyncClient, queue: str, sent: Callable[[], Awaitable[None]]) -> None:
        self._client, self._queue, self._sent = client, queue, sent
        with ui.dialog() as self._dialog, ui.card().classes("p-4 gap-3 w-[44rem]").style("max-width: 95vw"):
            self._dialog.props("data-testid=send-dialog")
            with ui.row().classes("w-full items-center"):
                ui.label(f"Send a message to {queue}").classes("text-lg font-semibold break-all")
                ui.space()
                self._kind = ui.toggle(KINDS, value="text").props('dense no-caps unelevated padding="2px 10px"')
            self._payload = ui.textarea("Payload").props("outlined autofocus input-class=fila-mono data-testid=send-payload")
            self._payload.classes("w-full")
            self._build_fields()
            self._trouble = ui.label().classes("text-negative whitespace-pre-line").props("data-testid=send-trouble")
            with ui.row().classes("w-full justify-end"):
                ui.button("Close", on_click=self._dialog.close).props("flat no-caps")
                ui.button("Send", icon="send", on_click=self._send).props("no-caps data-testid=send-submit")

    def _build_fields(self) -> None:
        with ui.row().classes("w-full items-start gap-4 no-wrap"):
            self._headers = ui.textarea("Headers, a name=value on each line", placeholder="tenant=acme")
            self._headers.props("outlined stack-label rows=5 input-class=fila-mono data-testid=send-headers").classes("grow")
            with ui.column().classes("gap-2 w-56"):
                self._key = ui.input("Fairness key", placeholder="default")
                self._key.props("dense outlined stack-label data-testid=send-key").classes("w-full")
                self._priority = ui.number("Priority", value=0, min=PRIORITY_MIN, max=PRIORITY_MAX, precision=0)
                self._priority.props("dense outlined data-testid=send-priority").classes("w-full")
                self._delay = ui.input("Delay", placeholder="none; or 500ms, 30s, 5m")
                self._delay.props("dense outlined stack-label data-testid=send-delay").classes("w-full")

    def open(self) -> None:
        """Show it."""
        self._trouble.text = ""
        self._dialog.open()

    async def _send(self) -> None:
        self._trouble.text = ""
        payload, delay = str(self._payload.value or ""), str(self._delay.value or "").strip()
        try:
            if self._kind.value == "json":
                json.loads(payload)
            message_id = await self._client.enqueue(
                self._queue,
                payload.encode(),
                read_headers(self._headers.value or ""),
                fairness_key=str(self._key.value or "") or None,
                priority=int(self._priority.value or 0),
                delay=duration_s(delay) if delay else 0.0,
            )
        except json.JSONDecodeError as error:
            self._trouble.text = f"The payload is no JSON: {error}"
        except RecursionError:
            self._trouble.text = "The payload is no JSON that can be read: it is nested too deeply"
        except (FilaError, ValueError) as error:
            self._trouble.text = str(error)
        else:
            notify(f"message {message_id} is in {self._queue}")
            self._dialog.close()
            await self._sent()
