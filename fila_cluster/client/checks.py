"""What callers pass in, checked and turned into the wire's units: an error here costs no round trip.

Each function takes a value of any type and returns the wire's value, or raises :class:`InvalidArgumentError` with the
argument's name, the value and what to pass instead. The broker checks again what it depends on.
"""

import math
from datetime import datetime
from functools import lru_cache
from numbers import Integral, Real
from typing import Any

from fila_proto_zmq.errors import InvalidArgumentError
from fila_proto_zmq.limits import (
    DELAY_MS_MAX,
    ERROR_TEXT_BYTES_MAX,
    FAIRNESS_KEY_BYTES_MAX,
    LEASE_MS_MAX,
    METADATA_BYTES_MAX,
    PRIORITY_MAX,
    PRIORITY_MIN,
    WAIT_MS_MAX,
    WEIGHT_MAX,
)
from fila_proto_zmq.names import check_queue_name

_known_name = lru_cache(maxsize=4096)(check_queue_name)


def queue_name(name: Any) -> str:
    """A queue's name, well formed."""
    return _known_name(name) if isinstance(name, str) else check_queue_name(name)


def milliseconds(what: str, seconds: Any, maximum_ms: int) -> int:
    """A duration ≥ 0 in whole milliseconds, rounded up so that nothing happens early."""
    if not _is_number(seconds):
        raise InvalidArgumentError(f"{what}={seconds!r}: a duration is a number of seconds, not {_kind(seconds)}")
    if not 0 <= seconds <= maximum_ms / 1000:
        raise InvalidArgumentError(f"{what}={seconds!r}: use 0 to {maximum_ms / 1000:g} seconds")
    return math.ceil(float(seconds) * 1000 - 1e-6)


def positive_milliseconds(what: str, seconds: Any, maximum_ms: int) -> int:
    """A duration > 0 in whole milliseconds."""
    value_ms = milliseconds(what, seconds, maximum_ms)
    if value_ms == 0 and seconds == 0:
        raise InvalidArgumentError(f"{what}={seconds!r}: it would be over at once, use more than 0 seconds")
    return max(1, value_ms)


def delay_ms(seconds: Any) -> int:
    """How long a message waits before its first delivery."""
    return milliseconds("delay", seconds, DELAY_MS_MAX)


def lease_ms(seconds: Any) -> int:
    """A message's own visibility timeout; 0 on the wire: the queue's."""
    return 0 if seconds is None else positive_milliseconds("lease", seconds, LEASE_MS_MAX)


def wait_ms(seconds: Any) -> int:
    """How long a receive may wait."""
    return milliseconds("wait", seconds, WAIT_MS_MAX)


def due_ms(moment: Any) -> int:
    """An absolute time in Unix milliseconds; 0 on the wire: none."""
    if moment is None:
        return 0
    if not isinstance(moment, datetime):
        raise InvalidArgumentError(f"deliver_at={moment!r}: pass a timezone-aware datetime, not {_kind(moment)}")
    if moment.utcoffset() is None:
        raise InvalidArgumentError(
            f"deliver_at={moment!r} has no timezone: pass an aware datetime, for example datetime.now(timezone.utc)"
        )
    return max(1, math.ceil(moment.timestamp() * 1000 - 1e-3))


def weight_units(weight: Any) -> int:
    """A key's share; 0 on the wire: leave it. Below 1 counts as 1, fractions are cut."""
    if weight is None:
        return 0
    if not _is_number(weight) or math.isnan(weight):
        raise InvalidArgumentError(f"weight={weight!r}: a weight is a whole number from 1 to {WEIGHT_MAX}")
    if weight > WEIGHT_MAX:
        raise InvalidArgumentError(f"weight={weight!r}: more than {WEIGHT_MAX} would starve the other keys")
    return int(max(1, weight))


def priority_units(priority: Any) -> int:
    """A place in the line of a fairness key, int32."""
    if not _is_whole(priority):
        raise InvalidArgumentError(f"priority={priority!r}: a priority is an int, not {_kind(priority)}")
    if not PRIORITY_MIN <= priority <= PRIORITY_MAX:
        raise InvalidArgumentError(f"priority={priority!r}: use {PRIORITY_MIN} to {PRIORITY_MAX}, lower is served first")
    return int(priority)


def fairness_key(key: Any) -> str:
    """The group of a message; the default one if None."""
    if key is None:
        return "default"
    if not isinstance(key, str):
        raise InvalidArgumentError(f"fairness_key={key!r}: a fairness key is a str, not {_kind(key)}")
    if not key:
        raise InvalidArgumentError("fairness_key='': name the group, or leave it out for the default one")
    if len(key) * 4 > FAIRNESS_KEY_BYTES_MAX or not key.isascii():
        _check_key_bytes(key)
    return str(key)


def _check_key_bytes(key: str) -> None:
    length = len(encodable("fairness_key", key))
    if length > FAIRNESS_KEY_BYTES_MAX:
        raise InvalidArgumentError(
            f"fairness_key of {length} bytes ({key[:40]!r}…): at most {FAIRNESS_KEY_BYTES_MAX}; use a hash of it"
        )


def encodable(what: str, text: str) -> bytes:
    """A text as UTF-8; lone surrogates have none."""
    try:
        return text.encode()
    except UnicodeEncodeError as cause:
        raise InvalidArgumentError(f"{what}={text[:40]!r} cannot be encoded as UTF-8: {cause.reason}") from None


def whole_number(what: str, number: Any, minimum: int, maximum: int) -> int:
    """An int within bounds."""
    if not _is_whole(number) or not minimum <= number <= maximum:
        raise InvalidArgumentError(f"{what}={number!r}: use a whole number from {minimum} to {maximum}")
    return int(number)


def error_text(error: Any) -> str:
    """What an attempt reports; of a longer text the end is kept, where a stack trace says what happened."""
    if not isinstance(error, str):
        raise InvalidArgumentError(f"error={error!r}: pass a str, not {_kind(error)}; for an exception, str(error)")
    data = error.encode(errors="replace")
    return data[-ERROR_TEXT_BYTES_MAX:].decode(errors="ignore")


def metadata_bytes(metadata: Any) -> bytes | None:
    """What one attempt leaves for the next; None leaves what is there."""
    if metadata is None:
        return None
    if not isinstance(metadata, (bytes, bytearray, memoryview)):
        raise InvalidArgumentError(f"metadata is bytes-like, not {_kind(metadata)}")
    data = bytes(metadata)
    if len(data) > METADATA_BYTES_MAX:
        raise InvalidArgumentError(
            f"metadata of {len(data)} bytes: at most {METADATA_BYTES_MAX}; enqueue larger results as a message"
        )
    return data


def _is_number(value: Any) -> bool:
    kind = type(value)  # asking the ABC alone costs five times as much
    return kind is int or kind is float or (isinstance(value, Real) and kind is not bool)


def _is_whole(value: Any) -> bool:
    kind = type(value)
    return kind is int or (isinstance(value, Integral) and kind is not bool)


def _kind(value: object) -> str:
    return f"a {type(value).__name__}"
