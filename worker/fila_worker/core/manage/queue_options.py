"""Checks of queue options."""

from typing import Final

from fila_proto_zmq.commands import QueueOptions
from fila_proto_zmq.errors import InvalidArgumentError
from fila_proto_zmq.limits import (
    LEASE_MS_MAX,
    LEASE_MS_MIN,
    LUA_MEMORY_LIMIT_BYTES_MAX,
    LUA_MEMORY_LIMIT_BYTES_MIN,
    LUA_TIMEOUT_MS_MAX,
    MAX_ATTEMPTS_MAX,
    SCRIPT_BYTES_MAX,
    TTL_MS_MAX,
)
from fila_proto_zmq.names import check_new_queue_name
from fila_worker.core.model.queues import AT_MOST_ONCE, DISCARD, OWN

AT_LEAST_ONCE: Final = "at_least_once"
COUNT_MAX: Final = 2**31 - 1

_BOUNDS: Final = {
    "visibility_timeout_ms": ("visibility timeout", "ms", LEASE_MS_MIN, LEASE_MS_MAX),
    "max_attempts": ("max_attempts", "deliveries", 1, MAX_ATTEMPTS_MAX),
    "max_in_flight_per_key": ("max_in_flight_per_key", "messages", 1, COUNT_MAX),
    "default_ttl_ms": ("default ttl", "ms", 1, TTL_MS_MAX),
    "idle_expiry_ms": ("idle expiry", "ms", 1, TTL_MS_MAX),
    "lua_timeout_ms": ("lua timeout", "ms", 1, LUA_TIMEOUT_MS_MAX),
    "lua_memory_limit_bytes": ("lua memory limit", "bytes", LUA_MEMORY_LIMIT_BYTES_MIN, LUA_MEMORY_LIMIT_BYTES_MAX),
}


def check_options(name: str, options: QueueOptions) -> None:
    """Raise :class:`InvalidArgumentError` for options that can never work for a queue called ``name``."""
    for field, (what, unit, least, most) in _BOUNDS.items():
        value = getattr(options, field)
        if value is not None and not least <= value <= most:
            raise InvalidArgumentError(f"{what} of {value} {unit}: use {least} to {most}, or leave it out for the default")
    if options.delivery not in {None, AT_LEAST_ONCE, AT_MOST_ONCE}:
        raise InvalidArgumentError(f"delivery={options.delivery!r}: use {AT_LEAST_ONCE!r} or {AT_MOST_ONCE!r}")
    for script in (options.on_enqueue, options.on_failure):
        if script is not None and len(script.encode()) > SCRIPT_BYTES_MAX:
            raise InvalidArgumentError(f"a script of {len(script.encode())} bytes: use at most {SCRIPT_BYTES_MAX}")
    _check_dead_letter(name, options.dead_letter)


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
