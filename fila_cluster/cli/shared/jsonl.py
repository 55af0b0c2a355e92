"""Messages as JSON: the input of ``enqueue --file``, and the output of ``consume``, ``queue browse`` and ``check --salvage``.

A line to enqueue has ``Message``'s fields; the payload is text in ``payload``, or any bytes in ``payload_base64``.
"""

import base64
import binascii
import json
from collections.abc import Mapping
from datetime import datetime
from typing import Any

from fila_cluster.client.message import Message, MessageView
from fila_cluster.client.protocol.delivery import Delivery

_OPTIONS = sorted(set(Message.__dataclass_fields__) - {"payload"})

_PRINTED = ("fairness_key", "weight", "throttle_keys", "priority", "cost", "attempts", "max_attempts", "error", "enqueued_at")
_PRINTED_OF_LEASES = ("leased_at", "lease_expires_at")
_PRINTED_OF_VIEWS = ("state", "due_at", "leased_at", "lease_expires_at", "consumer")
_PRINTED_OF_DEAD_LETTERS = ("reason", "source_queue", "dead_lettered_at")


class BadLineError(ValueError):
    """An error in a line."""


def read_message(line: bytes) -> Message:
    """Return the message of a line; :class:`ValueError` describes an error in it."""
    try:
        fields = json.loads(line.decode("utf-8-sig"))
    except UnicodeDecodeError as error:
        raise BadLineError(f"not UTF-8: {error.reason} at byte {error.start + 1}") from None
    except (ValueError, RecursionError) as error:
        raise BadLineError(f"not JSON: {error}") from None
    if not isinstance(fields, dict):
        raise BadLineError(f"a message is a JSON object, this is a {type(fields).__name__}")
    payload = _take_payload(fields)
    if unknown := sorted(fields.keys() - set(_OPTIONS)):
        raise BadLineError(f"unknown field {unknown[0]!r}; known: payload, payload_base64, {', '.join(_OPTIONS)}")
    if isinstance(fields.get("deliver_at"), str):
        fields["deliver_at"] = _read_time(fields["deliver_at"])
    return Message(payload, **fields)


def _take_payload(fields: dict[str, Any]) -> bytes:
    text, encoded = fields.pop("payload", None), fields.pop("payload_base64", None)
    if (text is None) == (encoded is None):
        raise BadLineError("give either payload or payload_base64")
    if not isinstance(text if encoded is None else encoded, str):
        raise BadLineError("the payload is a string; write other JSON into it as text, bytes as payload_base64")
    if encoded is None:
        return _encode(text)
    try:
        return base64.b64decode(encoded, validate=True)
    except binascii.Error as error:
        raise BadLineError(f"payload_base64: {error}") from None


def _encode(text: str) -> bytes:
    try:
        return text.encode()
    except UnicodeEncodeError as error:  # JSON can spell half of a surrogate pair
        raise BadLineError(f"the payload cannot be encoded as UTF-8: {error.reason}; use payload_base64") from None


def _read_time(text: str) -> datetime:
    try:
        return datetime.fromisoformat(text)
    except ValueError:
        raise BadLineError(f"deliver_at={text!r} is not a time: write it as 2030-12-31T23:59:00+00:00") from None


def write_message(message: Message) -> str:
    """Return the line that :func:`read_message` reads as this message."""
    return json.dumps(message_fields(message), default=_plain, ensure_ascii=False)


def message_fields(message: Message) -> dict[str, Any]:
    """Return the fields of a message that differ from the usual ones."""
    fields = _payload_field("payload", bytes(message.payload))
    plain = Message(b"")
    for name in _OPTIONS:
        value = getattr(message, name)
        if value != getattr(plain, name):
            fields[name] = value
    return fields


def _plain(value: Any) -> Any:
    return value.isoformat() if isinstance(value, datetime) else dict(value) if isinstance(value, Mapping) else list(value)


def write_delivery(delivery: Delivery) -> str:
    """Return the line of a delivery."""
    return json.dumps(_fields(delivery, _PRINTED_OF_LEASES), default=datetime.isoformat, ensure_ascii=False)


def view_fields(message: MessageView) -> dict[str, Any]:
    """Return the fields of a message that was browsed."""
    return _fields(message, _PRINTED_OF_VIEWS)


def _fields(message: Delivery | MessageView, more: tuple[str, ...]) -> dict[str, Any]:
    fields: dict[str, Any] = {"id": message.id, "queue": message.queue, "headers": message.headers}
    fields |= _payload_field("payload", message.payload)
    fields |= {name: getattr(message, name) for name in _PRINTED + more}
    if message.metadata:
        fields |= _payload_field("metadata", message.metadata)
    if message.reason is not None:
        fields |= {name: getattr(message, name) for name in _PRINTED_OF_DEAD_LETTERS}
    return fields


def _payload_field(name: str, content: bytes) -> dict[str, Any]:
    try:
        return {name: content.decode()}
    except UnicodeDecodeError:
        return {f"{name}_base64": base64.b64encode(content).decode()}
