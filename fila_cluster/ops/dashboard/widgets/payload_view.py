"""Payloads for people: as JSON, as text, or as bytes in hex, and the whole of it as a file."""

import json
import re
from collections.abc import Iterator
from typing import Final, Literal, NamedTuple

from nicegui import ui

from fila_cluster.figures import counted, sized

View = Literal["json", "text", "hex"]

VIEWS: Final[tuple[View, ...]] = ("json", "text", "hex")

SHOWN_BYTES: Final = 64 * 1024
"""The part of a text that is shown: more is not read in a browser."""

HEX_BYTES: Final = 4 * 1024
"""256 lines."""

JSON_BYTES_MAX: Final = 1024 * 1024
"""Larger ones are not shown as JSON: parsing them takes the event loop's time."""

INDENT: Final = "  "

_HEX_COLUMNS: Final = 16

_BINARY: Final = re.compile(r"[\x00-\x08\x0b\x0c\x0e-\x1f\x7f]")

_TOKEN: Final = re.compile(r'"(?:[^"\\]|\\.)*"|[{}\[\],:]|[^\s{}\[\],:"]+', re.DOTALL)


class ShownPayload(NamedTuple):
    """The shown part of a payload, and how many bytes are left out."""

    text: str
    left_out_bytes: int


def fitting(payload: bytes) -> View:
    """Return the best view of a payload. A bare number or word is text, even though it is JSON, too."""
    if _is_structured(payload):
        return "json"
    try:
        text = payload[:SHOWN_BYTES].decode()
    except UnicodeDecodeError as error:
        if error.start < min(len(payload), SHOWN_BYTES) - 3 or len(payload) <= SHOWN_BYTES:
            return "hex"
        text = payload[: error.start].decode()  # the cut went through a character
    return "hex" if _BINARY.search(text) else "text"


def rendered(payload: bytes, view: View) -> ShownPayload:
    """Return a payload in this view; invalid JSON is shown as text."""
    if view == "hex":
        return as_hex(payload)
    return as_json(payload) if view == "json" and _is_structured(payload) else as_text(payload)


def as_text(payload: bytes) -> ShownPayload:
    """Return UTF-8 text, with signs for invalid bytes and control characters."""
    text = payload[:SHOWN_BYTES].decode(errors="replace")
    return ShownPayload(_BINARY.sub(_sign, text), max(0, len(payload) - SHOWN_BYTES))


def as_hex(payload: bytes) -> ShownPayload:
    """Return lines of offset, 16 bytes, and their ASCII characters."""
    shown = payload[:HEX_BYTES]
    lines = [_hex_line(at, shown[at : at + _HEX_COLUMNS]) for at in range(0, len(shown), _HEX_COLUMNS)]
    return ShownPayload("\n".join(lines), len(payload) - len(shown))


def as_json(payload: bytes) -> ShownPayload:
    """Return valid JSON with one member a line."""
    written: list[str] = []
    room = SHOWN_BYTES
    for piece, end in _laid_out(payload.decode()):
        written.append(piece)
        room -= len(piece)
        if room <= 0:
            return ShownPayload("".join(written), len(payload.decode()[end:].encode()))
    return ShownPayload("".join(written), 0)


def extension(view: View) -> str:
    """Return the extension of the downloaded file's name."""
    return {"json": "json", "text": "txt", "hex": "bin"}[view]


def _is_structured(payload: bytes) -> bool:
    """Return whether it is a JSON object or array."""
    if len(payload) > JSON_BYTES_MAX or payload.lstrip()[:1] not in {b"{", b"["}:
        return False
    try:
        json.loads(payload.decode(), parse_int=str, parse_float=str)
    except (ValueError, RecursionError):
        return False
    return True


def _laid_out(text: str) -> Iterator[tuple[str, int]]:
    """Yield pieces of the layout, each with its end in ``text``."""
    depth, before = 0, ""
    for found in _TOKEN.finditer(text):
        token = found.group()
        if token in "}]":
            depth -= 1
            gap = "" if before in ("{", "[") else _line(depth)
        elif before in ("{", "[", ","):
            gap = _line(depth)
        else:
            gap = " " if before == ":" else ""
        depth += token in "{["
        before = token
        yield gap + token, found.end()


def _line(depth: int) -> str:
    return "\n" + INDENT * depth


def _hex_line(at: int, line: bytes) -> str:
    left, right = line[:8].hex(" "), line[8:].hex(" ")
    ascii_text = "".join(chr(byte) if 32 <= byte < 127 else "." for byte in line)
    return f"{at:08x}  {left:<23}  {right:<23}  {ascii_text}"


def _sign(found: re.Match[str]) -> str:
    """Return the sign of a control character."""
    code = ord(found.group())
    return "\u2421" if code == 0x7F else chr(0x2400 + code)


_WRAPPED: Final = "white-space: pre-wrap; overflow-wrap: anywhere"


def payload_view(payload: bytes, file_name: str, *, title: str = "Payload", mark: str = "payload") -> None:
    """Show a payload. ``file_name`` is without its extension."""
    if not payload:
        ui.label(f"{title}: empty").classes("fila-quiet").props(f"data-testid={mark}-note")
        return
    view = fitting(payload)
    with ui.row().classes("w-full items-center gap-3"):
        ui.label(title).classes("font-semibold")
        ui.label(sized(len(payload))).classes("fila-quiet")
        ui.space()
        choice = ui.toggle(_offered(view), value=view).props(
            f'dense no-caps unelevated padding="2px 10px" data-testid={mark}-view'
        )
        ui.button(
            icon="download",
            on_click=lambda: ui.download.content(payload, f"{file_name}.{extension(view)}", "application/octet-stream"),
        ).props(f'flat round dense data-testid={mark}-download aria-label="Download"')
    text = ui.label().classes("fila-mono fila-text w-full").props(f"data-testid={mark}")
    note = ui.label().classes("fila-quiet").props(f"data-testid={mark}-note")

    def show() -> None:
        shown = rendered(payload, choice.value)
        text.text = shown.text
        text.style(replace="white-space: pre" if choice.value == "hex" else _WRAPPED)
        note.text = f"{counted(shown.left_out_bytes)} of {counted(len(payload))} bytes are not shown: download all of it"
        note.set_visibility(shown.left_out_bytes > 0)

    choice.on_value_change(show)
    show()


def _offered(view: View) -> dict[View, str]:
    """Return the views to offer; JSON only for JSON."""
    return {each: each.upper() if each == "json" else each.capitalize() for each in VIEWS if each != "json" or view == "json"}
