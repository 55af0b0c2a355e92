"""The fields of a message, in forms that enqueue one or have one enqueued."""

import json
from collections.abc import Iterator
from dataclasses import fields, replace
from typing import Final

from nicegui import ui

from fila_cluster import Message
from fila_cluster.figures import duration_s, sized, written_ms
from fila_cluster.ops.dashboard.widgets.header_lines import read_headers, written_headers
from fila_proto_zmq.limits import PRIORITY_MAX, PRIORITY_MIN

KINDS: Final = {"text": "Text", "json": "JSON"}

EDITED_BYTES_MAX: Final = 64 * 1024
"""A larger payload is not brought into a browser's field. It can be replaced."""

_SHOWN: Final = {"payload", "headers", "fairness_key", "priority", "delay"}


class MessageFields:
    """Payload, headers, fairness key, priority and delay. What is not touched stays as it is in ``message``, to the byte."""

    def __init__(self, title: str, *, mark: str, message: Message | None = None) -> None:
        """``mark``: what its test ids begin with."""
        self._message = Message(b"") if message is None else message
        self._payload_text, left_out = payload_text(bytes(self._message.payload))
        self._header_text = written_headers(self._message.headers or {})
        with ui.row().classes("w-full items-center"):
            ui.label(title).classes("text-lg font-semibold break-all")
            ui.space()
            self._kind = ui.toggle(KINDS, value="text").props('dense no-caps unelevated padding="2px 10px"')
        self.payload = ui.textarea("Payload", value=self._payload_text, placeholder=left_out)
        self.payload.props(f"outlined {'stack-label ' if left_out else ''}input-class=fila-mono data-testid={mark}-payload")
        self.payload.classes("w-full")
        self._build_options(mark)
        if kept := ", ".join(others(self._message)):
            ui.label(f"Kept as they are: {kept}").classes("fila-quiet break-all").props(f"data-testid={mark}-kept")

    def _build_options(self, mark: str) -> None:
        message = self._message
        with ui.row().classes("w-full items-start gap-4 sm:flex-nowrap"):
            self._headers = ui.textarea(
                "Headers, a name=value on each line", value=self._header_text, placeholder="tenant=acme"
            )
            self._headers.props(f"outlined stack-label rows=5 input-class=fila-mono data-testid={mark}-headers")
            self._headers.classes("grow min-w-[14rem]")
            with ui.column().classes("gap-2 w-56"):
                self._key = ui.input("Fairness key", value=message.fairness_key or "", placeholder="default")
                self._key.props(f"dense outlined stack-label data-testid={mark}-key").classes("w-full")
                self._priority = ui.number(
                    "Priority", value=message.priority, min=PRIORITY_MIN, max=PRIORITY_MAX, precision=0
                )
                self._priority.props(f"dense outlined data-testid={mark}-priority").classes("w-full")
                delay = written_ms(round(message.delay * 1000)) if message.delay else ""
                self._delay = ui.input("Delay", value=delay, placeholder="none; or 500ms, 30s, 5m")
                self._delay.props(f"dense outlined stack-label data-testid={mark}-delay").classes("w-full")

    def read(self) -> Message:
        """Return the message. :class:`ValueError` names a field that can't be read."""
        text, headers, delay = (str(field.value or "") for field in (self.payload, self._headers, self._delay))
        payload = self._message.payload if text == self._payload_text else text.encode()
        if self._kind.value == "json":
            _check_json(bytes(payload))
        return replace(
            self._message,
            payload=payload,
            headers=self._message.headers if headers == self._header_text else read_headers(headers),
            fairness_key=str(self._key.value or "") or None,
            priority=int(self._priority.value or 0),
            delay=duration_s(delay) if delay.strip() else 0.0,
        )


def payload_text(payload: bytes) -> tuple[str, str]:
    """Return a payload as a text to edit, and, if it has none, what to say instead."""
    if len(payload) > EDITED_BYTES_MAX:
        return "", f"{sized(len(payload))}, too much to show here: kept, unless you type another one"
    try:
        return payload.decode(), ""
    except UnicodeDecodeError:
        return "", f"{sized(len(payload))} that are no text: kept, unless you type another one"


def others(message: Message) -> Iterator[str]:
    """Yield the options of a message that have no field here and are not the defaults."""
    usual = Message(b"")
    for field in fields(message):
        value = getattr(message, field.name)
        if field.name not in _SHOWN and value != getattr(usual, field.name):
            yield f"{field.name} {value if isinstance(value, (str, int, float)) else ' '.join(value)}"


def _check_json(payload: bytes) -> None:
    try:
        json.loads(payload)
    except RecursionError:
        raise ValueError("The payload is no JSON that can be read: it is nested too deeply") from None
    except ValueError as error:
        raise ValueError(f"The payload is no JSON: {error}") from None
