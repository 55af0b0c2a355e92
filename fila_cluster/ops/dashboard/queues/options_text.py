"""The options of a queue as facts to read, and as texts in a form and back. An empty text is the broker's default."""

from collections.abc import Iterator, Mapping
from typing import Any, Final, cast

from fila_cluster.client.calls.queues import QueueOptions
from fila_cluster.figures import aged, counted, duration_s, sized, written_ms
from fila_proto_zmq import commands
from fila_proto_zmq.commands import QUEUE_OPTIONS, Option

FIELDS: Final = [option for option in QUEUE_OPTIONS.values() if not option.of_hooks]
"""The options besides hooks, which have a page of their own."""
_OF_HOOKS: Final = [option for option in QUEUE_OPTIONS.values() if option.of_hooks]


def facts(options: commands.QueueOptions) -> Iterator[tuple[str, str | None]]:
    """Yield each option and its value for people; None: the default. Limits of hooks come only where they are set."""
    for option in (*FIELDS, *_OF_HOOKS):
        value = getattr(options, option.field)
        if value is not None or not option.of_hooks or option.kind == "script":
            yield option.label, None if value is None else _fact(option, value)


def _fact(option: Option, value: Any) -> str:
    match option.kind:
        case "duration":
            return aged(value / 1000) if value >= 1000 else f"{value} ms"
        case "size":
            return sized(value)
        case "script":
            return f"{sized(len(value.encode()))} of Lua"
        case "count":
            return counted(value)
    return str(value)


def title_of(field: Option) -> str:
    """Return the label of an option's field."""
    return field.label[0].upper() + field.label[1:]


def texts_of(options: commands.QueueOptions) -> dict[str, str]:
    """Return the text of each option."""
    return {field.name: _text(field, getattr(options, field.field)) for field in FIELDS}


def _text(field: Option, value: Any) -> str:
    if value is None:
        return field.choices[0] if field.kind == "choice" else ""
    return written_ms(value) if field.kind == "duration" else str(value)


def changed_options(before: Mapping[str, str], texts: Mapping[str, str]) -> QueueOptions:
    """Return the options whose texts are others than before. :class:`ValueError` names the option that is none."""
    options: dict[str, Any] = {}
    for field in FIELDS:
        text = texts[field.name].strip()
        if text != before[field.name]:
            options[field.name] = _value(field, text) if text else None
    return cast(QueueOptions, options)


def _value(field: Option, text: str) -> Any:
    try:
        if field.kind == "duration":
            return duration_s(text)
        return int(text) if field.bounds is not None else text
    except ValueError as error:
        reason = str(error) if field.kind == "duration" else f"{text!r} is not a whole number"
        raise ValueError(f"{title_of(field)}: {reason}") from None
