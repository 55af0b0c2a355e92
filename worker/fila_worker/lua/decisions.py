"""Checks of the values that scripts return: each field alone; an invalid field counts as left out.

A script that sorts messages by tenant and plan returns few different decisions, so checked decisions are cached: a check
takes a microsecond, a cache hit a tenth of that.
"""

from math import ceil, floor, isfinite
from typing import Any, Final

from fila_proto_zmq.limits import (
    COST_MILLI_MAX,
    DELAY_MS_MAX,
    FAIRNESS_KEY_BYTES_MAX,
    PRIORITY_MAX,
    PRIORITY_MIN,
    THROTTLE_KEY_BYTES_MAX,
    THROTTLE_KEYS_MAX,
    WEIGHT_MAX,
)
from fila_worker.core.hooks import EnqueueDecision

REMEMBERED_MAX: Final = 20_000
REMEMBERED_BYTES: Final = 1024
"""The most text in a returned row that is cached. Usually a row has a tenth of that."""

_PLAIN: Final = {str, int, float, type(None)}


class Decisions(dict[tuple[Any, ...], EnqueueDecision]):
    """Decisions by returned values: ``(fairness_key, weight, throttle_keys)``, or all six fields in port order.

    Throttle keys come as one value; see ``flatten`` in ``runs.lua``.
    """

    def __missing__(self, row: tuple[Any, ...]) -> EnqueueDecision:
        """Check a row that is not in the cache, and return its decision."""
        decision = judge(*row)
        if len(self) >= REMEMBERED_MAX:
            self.clear()
        if _PLAIN.issuperset(map(type, row)) and sum(len(value) for value in row if type(value) is str) <= REMEMBERED_BYTES:
            self[row] = decision  # the cache must not hold a table
        return decision


def judge(
    fairness_key: Any, weight: Any, throttle_keys: Any, priority: Any = None, cost: Any = None, delay: Any = None
) -> EnqueueDecision:
    """Return the fields that are valid, in the units of the wire."""
    return EnqueueDecision(
        _text(fairness_key, FAIRNESS_KEY_BYTES_MAX),
        _weight(weight),
        _throttle_keys(throttle_keys),
        _priority(priority),
        _cost_milli(cost),
        delay_ms(delay),
    )


def delay_ms(value: Any) -> int | None:
    """Return a delay, rounded up; None if it is invalid."""
    return ceil(value) if _is_number(value) and 0 <= value <= DELAY_MS_MAX else None


def _is_number(value: Any) -> bool:
    return type(value) is int or (type(value) is float and isfinite(value))


def _text(value: Any, bytes_max: int) -> str | None:
    return value if type(value) is str and 0 < len(value.encode()) <= bytes_max else None


def _weight(value: Any) -> int | None:
    return max(1, floor(value)) if _is_number(value) and value <= WEIGHT_MAX else None


def _throttle_keys(value: Any) -> list[str] | None:
    if type(value) is not str:
        return None
    if not value:
        return []
    several = value[1:].split("\0") if value[0] == "\0" else None
    if several and len(several) == 1:
        return None  # a lone key that begins with NUL, or is empty
    keys = list(dict.fromkeys(several or [value]))
    if len(keys) > THROTTLE_KEYS_MAX or not all(_text(key, THROTTLE_KEY_BYTES_MAX) for key in keys):
        return None
    return keys


def _priority(value: Any) -> int | None:
    if not _is_number(value) or not PRIORITY_MIN <= value <= PRIORITY_MAX or value != int(value):
        return None
    return int(value)


def _cost_milli(value: Any) -> int | None:
    if not _is_number(value) or not 0 < value <= COST_MILLI_MAX:
        return None
    milli = max(1, floor(value * 1000 + 0.5))
    return milli if milli <= COST_MILLI_MAX else None
