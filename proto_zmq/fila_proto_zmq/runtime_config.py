"""Runtime config: the meaning of its keys, and the values that they may have.

Most keys are free text, for hooks to read. These set limits:

====================================================  ===============================================================
``throttle:<key>:rate``                               tokens a second that come into the bucket of a throttle key
``throttle:<key>:burst``                              tokens that it can hold (default: the rate, at least 1)
``throttle.<key>``                                    both in one, ``rate,burst``
``throttle:<key>:concurrency``                        how many messages with the key may be leased at a time
``throttle:<key>:rate_min``                           the least to which deferrals lower the rate
``namespace:<namespace>:max_enqueues_per_minute``     how many messages the queues of a namespace take in together
====================================================  ===============================================================

Keys that begin with ``fila:template:`` are queue templates (:mod:`fila_proto_zmq.templates`), and those that begin with
``fila:partitioned:`` are the options of queues with several partitions (:mod:`fila_proto_zmq.partitions`). Both have commands
of their own.

``<key>`` may be a *pattern*, the beginning of throttle keys and ``*`` (:mod:`fila_proto_zmq.bucket_limits`).

A throttle key may contain colons and dots: ``throttle:`` in front and ``:rate`` behind decide. The two spellings mean the
same. The first one is stored, and :func:`read` and :func:`select` show the spelling that the caller used.

A config is a plain dict of stored keys. Values are checked when they are set. A value that can't be read (a later version
wrote it) limits nothing.
"""

import re
from collections.abc import Iterable, Iterator, Mapping
from decimal import Decimal
from heapq import merge
from itertools import islice
from typing import Final, NamedTuple

from fila_proto_zmq.errors import InvalidConfigError
from fila_proto_zmq.limits import (
    CONFIG_BYTES_MAX,
    CONFIG_KEY_BYTES_MAX,
    CONFIG_KEYS_MAX,
    CONFIG_VALUE_BYTES_MAX,
    IN_FLIGHT_MAX,
    PARTITIONED_QUEUES_MAX,
    TEMPLATE_BYTES_MAX,
    TEMPLATES_MAX,
    THROTTLE_KEY_BYTES_MAX,
)
from fila_proto_zmq.names import check_pattern

Config = Mapping[str, str]

PAGE_KEYS_MAX: Final = 500
PAGE_BYTES_MAX: Final = 256 * 1024
"""Keys, and characters, of a page: a shard takes one over in some milliseconds."""

NUMBER_MAX: Final = 1_000_000_000
"""The highest rate, burst and quota: more is no limit to anything."""

NUMBER_MIN: Final = Decimal("0.001")
"""The smallest above 0. Numbers are kept to a thousandth."""

PER_MINUTE_MIN: Final = Decimal("0.06")
"""The smallest quota: a thousandth a second."""

NUMBER_CHARACTERS_MAX: Final = 64

_COLON, _DOT, _RATE, _BURST, _CONCURRENCY = "throttle:", "throttle.", ":rate", ":burst", ":concurrency"
THROTTLE_LIMITS: Final = ("rate", "burst", "concurrency", "rate_min")
"""The limits that a throttle key may have, in the order in which they are shown."""
_NAMESPACE, _PER_MINUTE = "namespace:", ":max_enqueues_per_minute"
_QUOTA: Final = "\0"
TEMPLATE: Final = "fila:template:"
"""The beginning of the keys that are kept for templates. A pattern follows."""
PARTITIONED: Final = "fila:partitioned:"
"""The beginning of the keys that are kept for queues with several partitions. The queue follows."""
_NUMBER: Final = re.compile(r"[+-]?(?:[0-9]+\.?[0-9]*|\.[0-9]+)(?:[eE][+-]?[0-9]{1,3})?", re.ASCII)
_COUNT: Final = re.compile(r"[0-9]+", re.ASCII)
_CONTROL: Final = re.compile(r"[\x00-\x1f\x7f-\x9f]")
_NAMESPACE_NAME: Final = re.compile(r"[A-Za-z0-9._-]+", re.ASCII)


class Limit(NamedTuple):
    """The limit of a token bucket: thousandths of a token a second (millionths a ms), and millionths it holds."""

    rate_milli: int
    burst_micro: int

    def level_for(self, cost_micro: int) -> int:
        """Return what the bucket holds before a message of a cost is delivered.

        A cost above the burst waits for a full bucket, and leaves a debt. Without rate and burst the bucket is never full.
        """
        return min(cost_micro, self.burst_micro) if self.burst_micro or self.rate_milli else cost_micro


# --- setting and reading ----------------------------------------------------------------------------------------------


def changes_for(key: str, value: str | None, config: Config) -> dict[str, str | None]:
    """Return the changes to ``config`` in stored keys when ``key`` is set (None: deleted); None: that key goes.

    Raises :class:`InvalidConfigError` for a bad key or a bad value. Deleting a key that is not there changes nothing.
    """
    _check_key(key)
    if value is None:
        return {stored: None for stored in _stored(key) if stored in config}
    _check_length(f"the value of {key!r}", value, CONFIG_VALUE_BYTES_MAX)
    texts = _split(key, value)
    changes: dict[str, str | None] = {
        stored: _checked(stored, text) for stored, text in zip(_stored(key), texts, strict=True)
    }
    _check_room(changes, config)
    return changes


def template_changes_for(pattern: str, value: str | None, config: Config) -> dict[str, str | None]:
    """Return the changes when the template of a pattern is put (``value``: its options, encoded; None: deleted).

    Raises :class:`InvalidArgumentError` for a bad pattern, or :class:`InvalidConfigError` if there is no room.
    """
    key = TEMPLATE + check_pattern(pattern)
    if value is None:
        return {key: None} if key in config else {}
    _check_length(f"the template of {pattern!r}", value, TEMPLATE_BYTES_MAX)
    if key not in config and sum(map(is_template, config)) >= TEMPLATES_MAX:
        raise InvalidConfigError(f"there are {TEMPLATES_MAX} queue templates already: delete some, or use shorter patterns")
    changes: dict[str, str | None] = {key: value}
    _check_room(changes, config)
    return changes


def partitioned_changes_for(queue: str, value: str | None, config: Config) -> dict[str, str | None]:
    """Return the changes when the options of a queue with several partitions are put (None: the queue is deleted).

    Raises :class:`InvalidConfigError` if there is no room.
    """
    key = PARTITIONED + queue
    if value is None:
        return {key: None} if key in config else {}
    _check_length(f"the options of {queue!r}", value, TEMPLATE_BYTES_MAX)
    if key not in config and sum(each.startswith(PARTITIONED) for each in config) >= PARTITIONED_QUEUES_MAX:
        raise InvalidConfigError(f"there are {PARTITIONED_QUEUES_MAX} queues with partitions already: delete some")
    changes: dict[str, str | None] = {key: value}
    _check_room(changes, config)
    return changes


def is_kept(key: str) -> bool:
    """Return whether a key is kept for templates or partitioned queues, which have commands of their own."""
    return key.startswith((TEMPLATE, PARTITIONED))


def is_template(key: str) -> bool:
    """Return whether a key is kept for a template."""
    return key.startswith(TEMPLATE)


def read(key: str, config: Config) -> str | None:
    """Return the value of ``key``, in either spelling; None if it has no value."""
    return _composed(key[len(_DOT) :], config) if key.startswith(_DOT) else config.get(key)


def throttle_entry(throttle_key: str, limit: str) -> str:
    """Return the key of one of the :data:`THROTTLE_LIMITS` of a throttle key."""
    return f"{_COLON}{throttle_key}:{limit}"


def throttle_entries(throttle_key: str) -> list[str]:
    """Return the keys of all limits of a throttle key."""
    return [throttle_entry(throttle_key, limit) for limit in THROTTLE_LIMITS]


def throttle_key_of(key: str) -> str | None:
    """Return the throttle key of which a stored key is a limit; None: it is something else."""
    for limit in THROTTLE_LIMITS:
        if (name := _between(_COLON, key, f":{limit}")) is not None:
            return name
    return None


def share_values(key: str, other: str) -> bool:
    """Return whether two keys, of either spelling, are about the same value."""
    return not set(_stored(key)).isdisjoint(_stored(other))


def select(prefix: str, config: Config) -> dict[str, str]:
    """Return all keys that start with ``prefix``, sorted; in the dotted spelling if ``prefix`` begins with it."""
    return {key: value for piece in selecting(prefix, config, len(config) + 1) for key, value in piece.items()}


def selecting(prefix: str, config: Config, at_once: int) -> Iterator[dict[str, str]]:
    """Yield the same in pieces of ``at_once`` keys: first the search, then what is found. ``config`` must not change."""
    stored, runs = iter(config), []
    while some := list(islice(stored, at_once)):
        runs.append(sorted(_spelled(prefix, some)))
        yield {}
    found = merge(*runs)
    while some := list(islice(found, at_once)):
        yield {key: value for key in some if (value := read(key, config)) is not None}


def _spelled(prefix: str, stored: list[str]) -> list[str]:
    """Return stored keys that start with ``prefix``, in its spelling, without those that are kept."""
    if not prefix.startswith(_DOT):
        return [key for key in stored if key.startswith(prefix) and not is_kept(key)]
    begin = _COLON + prefix[len(_DOT) :]
    names = [_between(_COLON, key, _RATE) for key in stored if key.startswith(begin)]
    return [_DOT + name for name in names if name is not None and (_DOT + name).startswith(prefix)]


def pages(config: Config) -> list[dict[str, str]]:
    """Return a whole config in pages of bounded size; at least one."""
    items = iter(config.items())
    pages: list[dict[str, str]] = []
    while some := dict(islice(items, PAGE_KEYS_MAX)):
        pages += _small(some)
    return pages or [{}]


def _small(page: dict[str, str]) -> list[dict[str, str]]:
    """Return a page in as many pages as its size asks for."""
    if len(page) == 1 or sum(map(len, page)) + sum(map(len, page.values())) <= PAGE_BYTES_MAX:
        return [page]
    items = list(page.items())
    middle = len(items) // 2
    return _small(dict(items[:middle])) + _small(dict(items[middle:]))


def _stored(key: str) -> list[str]:
    """Return the keys under which ``key`` is stored."""
    if not key.startswith(_DOT):
        return [key]
    name = key[len(_DOT) :]
    return [_COLON + name + _RATE, _COLON + name + _BURST]


def _split(key: str, value: str) -> list[str]:
    """Return the values of the stored keys."""
    if not key.startswith(_DOT):
        return [value]
    parts = value.split(",")
    if len(parts) != 2:
        raise InvalidConfigError(f"{key!r} = {_shown(value)}: give two numbers, rate,burst, as in 10,20")
    return parts


def _composed(name: str, config: Config) -> str | None:
    rate = config.get(_COLON + name + _RATE)
    if rate is None:
        return None
    burst = config.get(_COLON + name + _BURST)
    if burst is None:
        burst = rate if (_milli(rate) or 0) >= 1000 else "1"
    return f"{rate},{burst}"


# --- limits -----------------------------------------------------------------------------------------------------------


def limit_of(throttle_key: str, config: Config) -> Limit | None:
    """Return the limit of a throttle key by its own entries; None: it has no limit. A burst without a rate is no limit."""
    return throttle_limit(config.get(_COLON + throttle_key + _RATE), config.get(_COLON + throttle_key + _BURST))


def throttle_limit(rate: str | None, burst: str | None) -> Limit | None:
    """Return the limit that the stored values of a rate and a burst make."""
    rate_milli = _milli(rate)
    if rate_milli is None:
        return None
    burst_milli = _milli(burst)
    return Limit(rate_milli, 1000 * (max(rate_milli, 1000) if burst_milli is None else burst_milli))


def number_of(text: str | None) -> float | None:
    """Return the number in a stored value; None: there is none."""
    milli = _milli(text)
    return None if milli is None else milli / 1000


def count_of(text: str | None) -> int | None:
    """Return the whole number in a stored value, such as a concurrency; None: there is none."""
    return int(text) if text is not None and _is_count(text) else None


def is_concurrency(key: str) -> bool:
    """Return whether a stored key is the concurrency of a throttle key, or of a pattern."""
    return _between(_COLON, key, _CONCURRENCY) is not None


def _is_count(text: str) -> bool:
    return len(text) <= NUMBER_CHARACTERS_MAX and bool(_COUNT.fullmatch(text)) and int(text) <= IN_FLIGHT_MAX


def namespace_limit(namespace: str, config: Config) -> Limit | None:
    """Return the limit of a namespace's enqueues."""
    per_minute_milli = _milli(config.get(_NAMESPACE + namespace + _PER_MINUTE))
    return None if per_minute_milli is None else Limit(per_minute_milli // 60, 1000 * per_minute_milli)


def quota_bucket(namespace: str) -> str:
    """Return the name of the bucket that a namespace's enqueues draw on. A throttle key's bucket has the key's own name."""
    return _QUOTA + namespace


def is_quota_bucket(bucket: str) -> bool:
    """Return whether a bucket is of a namespace's enqueues."""
    return bucket.startswith(_QUOTA)


def bucket_limit(bucket: str, config: Config) -> Limit | None:
    """Return the limit of a bucket of either kind, by its own entries."""
    return namespace_limit(bucket[1:], config) if is_quota_bucket(bucket) else limit_of(bucket, config)


def buckets_of(keys: Iterable[str]) -> set[str]:
    """Return the buckets whose limits the stored ``keys`` decide."""
    return {bucket for key in keys if (bucket := _bucket_of(key)) is not None}


def all_limits(config: Config) -> Iterator[tuple[str, Limit]]:
    """Yield all buckets with their limits."""
    for bucket in sorted(buckets_of(config)):
        limit = bucket_limit(bucket, config)
        if limit is not None:
            yield bucket, limit


def _bucket_of(key: str) -> str | None:
    for suffix in (_RATE, _BURST):
        if (name := _between(_COLON, key, suffix)) is not None:
            return name
    namespace = _between(_NAMESPACE, key, _PER_MINUTE)
    return None if namespace is None else quota_bucket(namespace)


def _between(start: str, key: str, end: str) -> str | None:
    """Return what stands between ``start`` and ``end`` in ``key``; None if it does not begin and end so."""
    if key.startswith(start) and key.endswith(end) and len(key) >= len(start) + len(end):
        return key[len(start) : len(key) - len(end)]
    return None


def _milli(text: str | None) -> int | None:
    """Return a stored number in thousandths; None: there is no number."""
    if text is None or not _NUMBER.fullmatch(text):
        return None
    number = Decimal(text)
    return round(number * 1000) if 0 <= number <= NUMBER_MAX else None


# --- judging ----------------------------------------------------------------------------------------------------------


def _check_key(key: str) -> None:
    if not key:
        raise InvalidConfigError("a config key is empty: give it a name")
    if _CONTROL.search(key):
        raise InvalidConfigError(f"config key {_shown(key)} contains control characters: use printable ones")
    _check_length("a config key", key, CONFIG_KEY_BYTES_MAX)
    if is_kept(key):
        raise InvalidConfigError(
            f"config key {key!r}: keys that begin with {TEMPLATE} or {PARTITIONED} are kept for queues, use put_template() or "
            "create_queue()"
        )
    if key.startswith(_DOT):
        _check_throttle_key(key, key[len(_DOT) :])
    elif key.startswith(_COLON):
        _check_throttle_key(key, throttle_key_of(key))
    elif (namespace := _between(_NAMESPACE, key, _PER_MINUTE)) is not None and not _NAMESPACE_NAME.fullmatch(namespace):
        raise InvalidConfigError(f"config key {key!r}: {namespace!r} can't be a namespace, those are made of [A-Za-z0-9._-]")


def _check_throttle_key(key: str, throttle_key: str | None) -> None:
    if not throttle_key:
        limits = ", ".join(throttle_entries("KEY"))
        raise InvalidConfigError(f"config key {key!r}: use {limits} or throttle.KEY")
    _check_length("a throttle key", throttle_key, THROTTLE_KEY_BYTES_MAX)


def _checked(key: str, value: str) -> str:
    """Return the value as it is stored; :class:`InvalidConfigError` if ``key`` takes a number and ``value`` is not one."""
    namespace = _between(_NAMESPACE, key, _PER_MINUTE)
    if not key.startswith(_COLON) and namespace is None:
        return value
    text = value.strip()
    if is_concurrency(key):
        if not _is_count(text):
            raise InvalidConfigError(f"{key!r} = {_shown(value)}: use a whole number from 0 to {IN_FLIGHT_MAX}")
        return text
    if len(text) > NUMBER_CHARACTERS_MAX or not _NUMBER.fullmatch(text):
        raise InvalidConfigError(f"{key!r} = {_shown(value)}: that is no finite number, give one such as 10 or 0.5")
    number = Decimal(text)
    least = NUMBER_MIN if namespace is None else PER_MINUTE_MIN
    if not (least <= number <= NUMBER_MAX or (number == 0 and namespace is None)):
        zero = "0 or " if namespace is None else ""
        raise InvalidConfigError(f"{key!r} = {_shown(value)}: use {zero}a number from {least} to {NUMBER_MAX}")
    return text


def _check_length(what: str, text: str, bytes_max: int) -> None:
    try:
        length = len(text.encode())
    except UnicodeEncodeError:
        raise InvalidConfigError(f"{what} {_shown(text)} is no valid Unicode") from None
    if length > bytes_max:
        raise InvalidConfigError(f"{what} of {length} bytes ({_shown(text)}): at most {bytes_max}")


def _check_room(changes: Mapping[str, str | None], config: Config) -> None:
    if len(config) + sum(key not in config for key in changes) > CONFIG_KEYS_MAX:
        raise InvalidConfigError(f"the config has {len(config)} keys already, at most {CONFIG_KEYS_MAX}: delete some")
    held_bytes = _bytes_in(config) + sum(len(key) + len(value or "") for key, value in changes.items())
    if held_bytes > CONFIG_BYTES_MAX:
        raise InvalidConfigError(f"the config would have {held_bytes} bytes, at most {CONFIG_BYTES_MAX}: delete some keys")


def _bytes_in(config: Config) -> int:
    characters = sum(map(len, config)) + sum(map(len, config.values()))
    if 4 * characters <= CONFIG_BYTES_MAX // 2:  # no character has more than 4: no need to look closer
        return characters
    return sum(len(key.encode()) + len(value.encode()) for key, value in config.items())


def _shown(text: str) -> str:
    return repr(text) if len(text) <= 60 else f"{text[:57]!r}…"
