"""Checks of queue options."""

from typing import Any

from fila_proto_zmq.commands import QUEUE_OPTIONS, Option, QueueOptions
from fila_proto_zmq.errors import InvalidArgumentError
from fila_proto_zmq.limits import SCRIPT_BYTES_MAX
from fila_proto_zmq.names import check_new_queue_name
from fila_worker.core.model.queues import DISCARD, OWN


def check_options(name: str, options: QueueOptions) -> None:
    """Raise :class:`InvalidArgumentError` for options that can never work for a queue called ``name``."""
    for option in QUEUE_OPTIONS.values():
        value = getattr(options, option.field)
        if value is not None:
            _check(option, value)
    _check_dead_letter(name, options.dead_letter)


def _check(option: Option, value: Any) -> None:
    if option.kind == "script" and len(value.encode()) > SCRIPT_BYTES_MAX:
        raise InvalidArgumentError(f"a script of {len(value.encode())} bytes: use at most {SCRIPT_BYTES_MAX}")
    if option.kind == "choice" and value not in option.choices:
        raise InvalidArgumentError(f"{option.name}={value!r}: use {' or '.join(map(repr, option.choices))}")
    if option.bounds is not None and not option.bounds[0] <= value <= option.bounds[1]:
        name = option.name if option.kind == "count" else option.name.replace("_", " ")
        least, most = option.bounds
        raise InvalidArgumentError(f"{name} of {value} {option.unit}: use {least} to {most}, or leave it out for the default")


def _check_dead_letter(name: str, dead_letter: str | None) -> None:
    if dead_letter in {None, OWN, DISCARD}:
        return
    if dead_letter == name:
        raise InvalidArgumentError(
            f"dead_letter={name!r}: a queue can't take its own dead letters; leave it out for {name}.dlq"
        )
    try:
        check_new_queue_name(dead_letter or "")
    except InvalidArgumentError as cause:
        raise InvalidArgumentError(
            f"dead_letter={dead_letter!r}: use 'dlq', 'discard' or the name of a queue ({cause})"
        ) from None
