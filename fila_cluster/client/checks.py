"""Arguments of callers, checked and turned into the wire's units: an error here costs no round trip.

Each function takes a value of any type and returns the wire's value, or raises :class:`InvalidArgumentError` with the
argument's name, the value and a remedy. The broker checks again what it depends on.
"""

import math
import os
import re
import struct
from collections.abc import Iterable
from datetime import datetime
from functools import lru_cache
from numbers import Integral, Real
from pathlib import Path
from reprlib import Repr
from typing import Any

from zmq.utils import z85

from fila_cluster.client.requests.endpoints import ENDPOINT_DEFAULT
from fila_proto_zmq.errors import InvalidArgumentError
from fila_proto_zmq.limits import (
    COST_MILLI_MAX,
    DEDUP_ID_BYTES_MAX,
    DELAY_MS_MAX,
    ERROR_TEXT_BYTES_MAX,
    FAIRNESS_KEY_BYTES_MAX,
    LEASE_MS_MAX,
    MAX_ATTEMPTS_MAX,
    METADATA_BYTES_MAX,
    PRIORITY_MAX,
    PRIORITY_MIN,
    THROTTLE_KEY_BYTES_MAX,
    THROTTLE_KEYS_MAX,
    TTL_MS_MAX,
    WAIT_MS_MAX,
    WEIGHT_MAX,
)
from fila_proto_zmq.names import check_queue_name

_known_name = lru_cache(maxsize=4096)(check_queue_name)

_short = Repr()
_short.maxstring = _short.maxother = 100


def shown(value: object) -> str:
    """Return a caller's value for an error text, cut if it is long."""
    try:
        return _short.repr(value)
    except ValueError:  # an int of thousands of digits
        return f"<a long {type(value).__name__}>"


def queue_name(name: Any) -> str:
    """Return a queue's name, well formed."""
    return _known_name(name) if isinstance(name, str) else check_queue_name(name)


def milliseconds(what: str, seconds: Any, maximum_ms: int) -> int:
    """Return a duration ≥ 0 in whole milliseconds, rounded up so that nothing happens early."""
    if not _is_number(seconds):
        raise InvalidArgumentError(f"{what}={shown(seconds)}: a duration is a number of seconds, not {_kind(seconds)}")
    if not 0 <= seconds <= maximum_ms / 1000:
        raise InvalidArgumentError(f"{what}={shown(seconds)}: use 0 to {maximum_ms / 1000:.15g} seconds")
    return math.ceil(float(seconds) * 1000 - 1e-6)


def positive_milliseconds(what: str, seconds: Any, maximum_ms: int) -> int:
    """Return a duration > 0 in whole milliseconds."""
    if _is_number(seconds) and not 0 < seconds <= maximum_ms / 1000:
        raise InvalidArgumentError(f"{what}={shown(seconds)}: use more than 0, up to {maximum_ms / 1000:.15g} seconds")
    return max(1, milliseconds(what, seconds, maximum_ms))


def delay_ms(seconds: Any) -> int:
    """Return how long a message waits before its first delivery."""
    return milliseconds("delay", seconds, DELAY_MS_MAX)


def lease_ms(seconds: Any) -> int:
    """Return a message's own visibility timeout; 0 on the wire: the queue's."""
    return 0 if seconds is None else positive_milliseconds("lease", seconds, LEASE_MS_MAX)


def ttl_ms(seconds: Any) -> int:
    """Return how long a message may wait to be delivered; 0 on the wire: the queue's time to live."""
    return 0 if seconds is None else positive_milliseconds("ttl", seconds, TTL_MS_MAX)


def wait_ms(seconds: Any) -> int:
    """Return how long a receive may wait."""
    return milliseconds("wait", seconds, WAIT_MS_MAX)


def due_ms(moment: Any) -> int:
    """Return an absolute time in Unix milliseconds; 0 on the wire: none."""
    if moment is None:
        return 0
    if not isinstance(moment, datetime):
        raise InvalidArgumentError(f"deliver_at={shown(moment)}: pass a timezone-aware datetime, not {_kind(moment)}")
    if moment.utcoffset() is None:
        raise InvalidArgumentError(
            f"deliver_at={shown(moment)} has no timezone: pass an aware datetime, for example datetime.now(timezone.utc)"
        )
    return max(1, math.ceil(moment.timestamp() * 1000 - 1e-3))


def weight_units(weight: Any) -> int:
    """Return a key's weight; 0 on the wire: unchanged. Below 1 counts as 1, fractions are cut."""
    if weight is None:
        return 0
    if not _is_number(weight) or weight != weight:  # noqa: PLR0124 - NaN; math.isnan overflows with a huge int
        raise InvalidArgumentError(f"weight={shown(weight)}: a weight is a whole number from 1 to {WEIGHT_MAX}")
    if weight > WEIGHT_MAX:
        raise InvalidArgumentError(f"weight={shown(weight)}: more than {WEIGHT_MAX} would starve the other keys")
    return int(max(1, weight))


def cost_milli(cost: Any) -> int:
    """Return what a delivery costs, in thousandths: rounded half up, one at least."""
    if not _is_number(cost) or not 0 < cost <= COST_MILLI_MAX / 1000:  # NaN fails this comparison, too
        raise InvalidArgumentError(f"cost={shown(cost)}: a cost is a number above 0, at most {COST_MILLI_MAX // 1000}")
    return max(1, math.floor(float(cost) * 1000 + 0.5 + 1e-6))


def actual_cost_milli(cost: Any) -> int:
    """Return what a delivery really cost, in thousandths: 0 for no work at all."""
    if not _is_number(cost) or not 0 <= cost <= COST_MILLI_MAX / 1000:
        raise InvalidArgumentError(f"cost={shown(cost)}: a cost is a number from 0 to {COST_MILLI_MAX // 1000}")
    return math.floor(float(cost) * 1000 + 0.5 + 1e-6)


def per_second(rate: Any) -> float:
    """Return a rate, a second."""
    if not _is_number(rate) or not 0 < rate < math.inf:
        raise InvalidArgumentError(f"rate={shown(rate)}: a rate is a number above 0, a second")
    return float(rate)


def priority_units(priority: Any) -> int:
    """Return a place in the line of a fairness key, int32."""
    if not _is_whole(priority):
        raise InvalidArgumentError(f"priority={shown(priority)}: a priority is an int, not {_kind(priority)}")
    if not PRIORITY_MIN <= priority <= PRIORITY_MAX:
        raise InvalidArgumentError(f"priority={shown(priority)}: use {PRIORITY_MIN} to {PRIORITY_MAX}, lower is served first")
    return int(priority)


def fairness_key(key: Any) -> str:
    """Return the group of a message; the default one if None."""
    if key is None:
        return "default"
    return _text("fairness_key", key, FAIRNESS_KEY_BYTES_MAX, "name the group, or leave it out for the default one")


def only_fairness_key(key: Any) -> str | None:
    """Return the fairness key that a call is about; None: all of the queue."""
    return None if key is None else fairness_key(key)


def dedup_id(text: Any) -> str:
    """Return a producer's own name for a message; empty on the wire: none."""
    if text is None:
        return ""
    return _text("dedup_id", text, DEDUP_ID_BYTES_MAX, "give each message its own, or leave it out")


def dedup_last(mode: Any, dedup_id: Any) -> bool:
    """Return whether a message replaces an earlier one with its dedup id."""
    if mode not in _DEDUP_MODES:
        raise InvalidArgumentError(f"dedup_mode={shown(mode)}: pass 'first' (the default) or 'last'")
    last: bool = mode == _DEDUP_MODES[1]
    if last and dedup_id is None:
        raise InvalidArgumentError("dedup_mode='last' needs a dedup_id: it says which message is to be replaced")
    return last


_DEDUP_MODES = ("first", "last")


def max_attempts(number: Any) -> int:
    """Return how many deliveries a message may have; 0 on the wire: as many as its queue says."""
    return 0 if number is None else whole_number("max_attempts", number, 1, MAX_ATTEMPTS_MAX)


def throttle_keys(keys: Any) -> list[str]:
    """Return the token buckets that a message draws on: distinct, in the order given."""
    if keys is None:
        return []
    if isinstance(keys, (str, bytes)) or not isinstance(keys, Iterable):
        raise InvalidArgumentError(f"throttle_keys={shown(keys)}: pass a list of str, for example ['provider']")
    hint = "name the token bucket, or leave it out"
    distinct = list(dict.fromkeys(_text("throttle key", key, THROTTLE_KEY_BYTES_MAX, hint) for key in keys))
    if len(distinct) > THROTTLE_KEYS_MAX:
        raise InvalidArgumentError(f"{len(distinct)} throttle keys: a message may draw on {THROTTLE_KEYS_MAX} at most")
    return distinct


def _text(what: str, text: Any, bytes_max: int, if_empty: str) -> str:
    """Return a short text that names something, checked."""
    if not isinstance(text, str):
        raise InvalidArgumentError(f"{what}={shown(text)}: pass a str, not {_kind(text)}")
    if not text:
        raise InvalidArgumentError(f"{what}='': {if_empty}")
    if len(text) * 4 > bytes_max or not text.isascii():
        length = len(encodable(what, text))
        if length > bytes_max:
            raise InvalidArgumentError(f"{what} of {length} bytes ({text[:40]!r}…): at most {bytes_max}; use a hash of it")
    return str.__str__(text)  # the value of an enum's member


def encodable(what: str, text: str) -> bytes:
    """Return a text as UTF-8; lone surrogates can't be encoded."""
    try:
        return text.encode()
    except UnicodeEncodeError as cause:
        raise InvalidArgumentError(f"{what}={text[:40]!r} cannot be encoded as UTF-8: {cause.reason}") from None


def whole_number(what: str, number: Any, minimum: int, maximum: int) -> int:
    """Return an int within bounds."""
    if not _is_whole(number) or not minimum <= number <= maximum:
        raise InvalidArgumentError(f"{what}={shown(number)}: use a whole number from {minimum} to {maximum}")
    return int(number)


def error_text(error: Any) -> str:
    """Return an attempt's error text; of a longer text the end is kept, which has the error of a stack trace."""
    if not isinstance(error, str):
        raise InvalidArgumentError(f"error={shown(error)}: pass a str, not {_kind(error)}; for an exception, str(error)")
    data = error.encode(errors="replace")
    return data[-ERROR_TEXT_BYTES_MAX:].decode(errors="ignore")


def metadata_bytes(metadata: Any) -> bytes | None:
    """Return the bytes that one attempt leaves for the next; None keeps the earlier ones."""
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


def plain_text(what: str, text: Any, hint: str) -> str:
    """Return any text that can be encoded."""
    if not isinstance(text, str):
        raise InvalidArgumentError(f"{what} is a str, not {_kind(text)}: pass {hint}")
    encodable(what, text)
    return str.__str__(text)


def config_key(key: Any) -> str:
    """Return a key of the runtime config."""
    return plain_text("key", key, "for example 'throttle:provider:rate'")


def several(what: str, items: Any) -> Iterable[Any]:
    """Return an iterable; its items are not checked here."""
    if not isinstance(items, Iterable):
        raise InvalidArgumentError(f"{what}: pass a list of them, not {_kind(items)}")
    return items


def _is_number(value: Any) -> bool:
    kind = type(value)  # asking only the ABC costs five times as much
    return kind is int or kind is float or (isinstance(value, Real) and kind is not bool)


def _is_whole(value: Any) -> bool:
    kind = type(value)
    return kind is int or (isinstance(value, Integral) and kind is not bool)


def _kind(value: object) -> str:
    return f"a {type(value).__name__}"


TIMEOUT_MS_MAX = 24 * 3600 * 1000


def endpoint_or_default(endpoint: Any) -> str:
    """Return the argument, else ``FILA_ENDPOINT``, else this machine's default port: endpoints with commas between."""
    if endpoint is None:
        return os.environ.get("FILA_ENDPOINT") or ENDPOINT_DEFAULT
    if not isinstance(endpoint, str):
        raise InvalidArgumentError(f"endpoint={shown(endpoint)}: pass a str, for example {ENDPOINT_DEFAULT}")
    encodable("endpoint", endpoint)
    return endpoint


def direct_or_default(direct: Any) -> bool:
    """Return the argument, else ``FILA_DIRECT`` (``0`` or ``1``), else true."""
    if direct is None:
        text = os.environ.get("FILA_DIRECT") or "1"
        if text not in {"0", "1"}:
            raise InvalidArgumentError(f"FILA_DIRECT={text!r}: set it to 0 or 1, or leave it out")
        return text == "1"
    if not isinstance(direct, bool):
        raise InvalidArgumentError(f"direct={shown(direct)}: pass True or False")
    return direct


API_KEY_BYTES_MAX = 512
SERVER_KEY_CHARACTERS = 40
SERVER_KEYS_MAX = 4
"""Two are enough while a key is replaced."""


def api_key_or_default(api_key: Any) -> str:
    """Return the argument, else ``FILA_API_KEY``, else the content of the file ``FILA_API_KEY_FILE``, else nothing."""
    if api_key is None:
        api_key = os.environ.get("FILA_API_KEY") or _from_file(os.environ.get("FILA_API_KEY_FILE"))
    if not isinstance(api_key, str):
        raise InvalidArgumentError(f"api_key is a str, not {type(api_key).__name__}")
    if len(api_key.encode(errors="surrogateescape")) > API_KEY_BYTES_MAX:
        raise InvalidArgumentError(f"api_key has {len(api_key)} characters: no API key has so many")
    return api_key


def _from_file(path: str | None) -> str:
    if not path:
        return ""
    try:
        return Path(path).read_text().strip()
    except (OSError, UnicodeDecodeError) as error:
        raise InvalidArgumentError(f"FILA_API_KEY_FILE={path}: {error}") from None


def server_key_or_default(server_key: Any) -> str | None:
    """Return the argument, else ``FILA_SERVER_KEY``, else None: public keys as ``auth init`` prints them, between commas."""
    if server_key is None:
        server_key = os.environ.get("FILA_SERVER_KEY") or None
    if server_key is None:
        return None
    if not isinstance(server_key, str) or not _are_keys(server_key):
        raise InvalidArgumentError(
            f"server_key is not the {SERVER_KEY_CHARACTERS} characters that `fila-cluster auth init` printed: pass those, "
            f"or up to {SERVER_KEYS_MAX} such keys with commas between, while the server's key is replaced"
        )
    return server_key


_Z85_KEY = rf"[0-9a-zA-Z.\-:+=^!/*?&<>()\[\]{{}}@%$#]{{{SERVER_KEY_CHARACTERS}}}"
"""One key, in the characters of ZeroMQ's RFC 32."""
_SERVER_KEYS = re.compile(rf"{_Z85_KEY}(?:,{_Z85_KEY}){{0,{SERVER_KEYS_MAX - 1}}}")


def _are_keys(text: str) -> bool:
    """Return whether a text is one or several public keys."""
    try:
        return _SERVER_KEYS.fullmatch(text) is not None and all(z85.decode(key.encode()) for key in text.split(","))
    except struct.error:  # five characters that stand for more than 32 bits
        return False


def server_keys(server_key: Any) -> tuple[str, ...]:
    """Return the public keys of :func:`server_key_or_default` in the order to try them. Empty: do not encrypt."""
    keys = server_key_or_default(server_key)
    return () if keys is None else tuple(keys.split(","))


def timeout_seconds(timeout: Any) -> float:
    """Return how long a call may take."""
    return positive_milliseconds("timeout", timeout, TIMEOUT_MS_MAX) / 1000
