"""Fields and dialogs of forms: a message, its headers, the choice of a queue, a dialog that stays open until it succeeds."""

import json
from collections.abc import Awaitable, Callable, Iterator, Mapping
from dataclasses import fields, replace
from typing import Final

from nicegui import ui
from nicegui.events import ValueChangeEventArguments

from fila_cluster import Message
from fila_cluster.errors import FilaError
from fila_cluster.figures import duration_s, sized, written_ms
from fila_cluster.ops.dashboard.shell.context import Context
from fila_proto_zmq.limits import PRIORITY_MAX, PRIORITY_MIN


def read_headers(text: str) -> dict[str, str]:
    """Return the headers in lines of ``name=value``. :class:`ValueError` names a line that is not a header."""
    lines = [line for line in text.splitlines() if line.strip()]
    for line in lines:
        if "=" not in line:
            raise ValueError(f"{line!r} is not a header: write it as name=value")
    return {name.strip(): value.strip() for name, _, value in (line.partition("=") for line in lines)}


def written_headers(headers: Mapping[str, str]) -> str:
    """Return headers as lines for :func:`read_headers`."""
    return "\n".join(f"{name}={value}" for name, value in headers.items())


KINDS: Final = {"text": "Text", "json": "JSON"}

EDITED_BYTES_MAX: Final = 64 * 1024
"""A larger payload is not shown in a browser's field. It can be replaced."""

_SHOWN: Final = {"payload", "headers", "fairness_key", "priority", "delay"}


class MessageFields:
    """Payload, headers, fairness key, priority and delay. Fields that are not edited stay as in ``message``, to the byte."""

    def __init__(self, title: str, *, mark: str, message: Message | None = None) -> None:
        """``mark``: the beginning of its test ids."""
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
    """Return a payload as a text to edit, or an empty one and the reason."""
    if len(payload) > EDITED_BYTES_MAX:
        return "", f"{sized(len(payload))}, too much to show here: kept, unless you type another one"
    try:
        return payload.decode(), ""
    except UnicodeDecodeError:
        return "", f"{sized(len(payload))} that are not text: kept, unless you type another one"


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
        raise ValueError("The payload is not JSON that can be read: it is nested too deeply") from None
    except ValueError as error:
        raise ValueError(f"The payload is not JSON: {error}") from None


class FormDialog:
    """Fields (widgets made within ``fields``), the error of the last try, two buttons. A click beside it does not close it."""

    def __init__(self, title: str, yes: str, *, mark: str, width: str = "44rem") -> None:
        """``yes``: the button that tries; ``mark``: the beginning of its test ids; ``width``: a CSS length."""
        with ui.dialog() as self._dialog, ui.card().classes("p-4 gap-3 no-wrap") as card:
            card.style(f"width: {width}; max-width: 95vw")
            self._dialog.props(f"persistent data-testid={mark}-dialog")
            self._dialog.props["aria-label"] = title
            ui.label(title).classes("text-lg font-semibold break-all shrink-0")
            self.fields = ui.column().classes("w-full gap-3 py-1 no-wrap min-h-0 overflow-y-auto")
            self._trouble = ui.label().classes("text-negative whitespace-pre-line break-words w-full shrink-0")
            self._trouble.props(f"data-testid={mark}-trouble")
            with ui.row().classes("w-full justify-end shrink-0"):
                ui.button("Cancel", on_click=lambda: self._dialog.submit(False)).props("flat no-caps")
                self._yes = ui.button(yes).props(f"no-caps data-testid={mark}-submit")

    async def ask(self, do: Callable[[], Awaitable[object]]) -> bool:
        """Show it until ``do`` succeeds, or the user leaves it. Return whether ``do`` succeeded."""

        async def submit() -> None:
            self._trouble.text = ""
            try:
                await do()
            except (FilaError, ValueError) as error:
                self._trouble.text = str(error)
            else:
                self._dialog.submit(True)

        self._yes.on_click(submit)
        is_done = await self._dialog
        self._dialog.delete()
        return bool(is_done)


OFFERED_MAX: Final = 2000
"""More are not offered, but any name can be typed."""


class QueueChoice:
    """A field that offers the names of all queues."""

    def __init__(
        self,
        context: Context,
        name: str,
        chosen: Callable[[str], None],
        *,
        mark: str,
        wanted: Callable[[str], bool] = lambda _: True,
    ) -> None:
        """``chosen`` is called with a name when another one is picked; ``wanted``: whether to offer a name."""
        self._context = context
        self._wanted = wanted
        self.select = ui.select(
            [name] if name else [],
            label="Queue",
            value=name or None,
            new_value_mode="add-unique",
            on_change=lambda event: self._picked(event, chosen),
        )
        self.select.props(f"dense outlined data-testid={mark}").classes("w-80")
        ui.timer(0.05, self._offer, once=True)

    @property
    def name(self) -> str:
        """The chosen name, or an empty one."""
        return self.select.value or ""

    def _picked(self, event: ValueChangeEventArguments[str | None], chosen: Callable[[str], None]) -> None:
        if event.value:
            chosen(event.value)

    async def _offer(self) -> None:
        try:
            infos = await self._context.client.list_queues()
        except FilaError:
            return  # the page shows why nothing works
        names = [info.name for info in infos if self._wanted(info.name)][:OFFERED_MAX]
        self.select.set_options(sorted({*names, *([self.name] if self.name else [])}))
