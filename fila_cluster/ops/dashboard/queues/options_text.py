"""The options of a queue as facts to read, and as texts in a form and back. An empty text is the broker's default."""

from collections.abc import Iterator, Mapping
from typing import Any, Final, NamedTuple, cast

from fila_cluster.client.calls.queues import QueueOptions
from fila_cluster.figures import aged, counted, duration_s, sized, written_ms
from fila_proto_zmq import commands


class OptionField(NamedTuple):
    """An option in the form: its name for the client, the field on the wire, its label, and what it means."""

    name: str
    wire: str
    label: str
    meaning: str
    kind: str
    """``duration``, ``count``, ``text``, or ``choice``."""
    default: str


FIELDS: Final = (
    OptionField(
        "visibility_timeout",
        "visibility_timeout_ms",
        "Visibility timeout",
        "how long a delivery is leased",
        "duration",
        "30s",
    ),
    OptionField(
        "max_attempts", "max_attempts", "Max attempts", "deliveries before a message fails for good", "count", "no limit"
    ),
    OptionField(
        "dead_letter", "dead_letter", "Dead letter", "dlq, discard, or the queue that takes the dead letters", "text", "dlq"
    ),
    OptionField("delivery", "delivery", "Delivery", "at most once: nothing to settle, no retry", "choice", "at_least_once"),
    OptionField(
        "max_in_flight_per_key",
        "max_in_flight_per_key",
        "Max in flight per key",
        "1 keeps each fairness key in strict order",
        "count",
        "no limit",
    ),
    OptionField("default_ttl", "default_ttl_ms", "Default TTL", "how long a message may wait", "duration", "for ever"),
    OptionField("idle_expiry", "idle_expiry_ms", "Idle expiry", "an unused queue is deleted after this", "duration", "never"),
)
"""The options besides hooks, which have a page of their own."""

DELIVERIES: Final = ("at_least_once", "at_most_once")


def facts(options: commands.QueueOptions) -> Iterator[tuple[str, str | None]]:
    """Yield each option and its value for people; None: the default. Limits of hooks come only where they are set."""
    for field in FIELDS:
        yield field.label.lower(), _fact(field.kind, getattr(options, field.wire))
    for name in ("on_enqueue", "on_failure"):
        script: str | None = getattr(options, name)
        yield name, None if script is None else f"{sized(len(script.encode()))} of Lua"
    if options.lua_timeout_ms is not None:
        yield "time limit of hooks", f"{counted(options.lua_timeout_ms)} ms"
    if options.lua_memory_limit_bytes is not None:
        yield "memory limit of hooks", sized(options.lua_memory_limit_bytes)


def _fact(kind: str, value: Any) -> str | None:
    if value is None:
        return None
    if kind == "duration":
        return aged(value / 1000)
    return counted(value) if kind == "count" else str(value)


def texts_of(options: commands.QueueOptions) -> dict[str, str]:
    """Return the text of each option."""
    return {field.name: _text(field, getattr(options, field.wire)) for field in FIELDS}


def _text(field: OptionField, value: Any) -> str:
    if value is None:
        return field.default if field.kind == "choice" else ""
    return written_ms(value) if field.kind == "duration" else str(value)


def changed_options(before: Mapping[str, str], texts: Mapping[str, str]) -> QueueOptions:
    """Return the options whose texts are others than before. :class:`ValueError` names the option that is none."""
    options: dict[str, Any] = {}
    for field in FIELDS:
        text = texts[field.name].strip()
        if text != before[field.name]:
            options[field.name] = _value(field, text) if text else None
    return cast(QueueOptions, options)


def _value(field: OptionField, text: str) -> Any:
    try:
        if field.kind == "duration":
            return duration_s(text)
        return int(text) if field.kind == "count" else text
    except ValueError as error:
        reason = str(error) if field.kind == "duration" else f"{text!r} is no whole number"
        raise ValueError(f"{field.label}: {reason}") from None
