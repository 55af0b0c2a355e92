"""Numbers, sizes, times and rates as people read them, and durations as people write them."""

import re
from collections.abc import Iterable
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from fila_proto_zmq.commands import Histogram


def counted(number: int, noun: str = "") -> str:
    """Return a number for people: 1,234,567, or 1 message, 1,234,567 messages."""
    return f"{number:,} {noun}{'' if number == 1 else 's'}" if noun else f"{number:,}"


def paced(per_second: float) -> str:
    """Return a rate for people."""
    return f"{per_second:,.0f}" if per_second >= 100 else f"{per_second:.1f}"


def sized(number_bytes: int) -> str:
    """Return a size for people."""
    size = float(number_bytes)
    for unit in ("B", "KiB", "MiB"):
        if size < 1024:
            return f"{size:.0f} {unit}"
        size /= 1024
    return f"{size:.1f} GiB"


def aged(seconds: float) -> str:
    """Return a duration for people."""
    for unit, length_s in (("d", 86_400), ("h", 3_600), ("m", 60)):
        if seconds >= 2 * length_s:
            return f"{seconds / length_s:.0f} {unit}"
    return f"{seconds:.1f} s"


def lasted(nanoseconds: float) -> str:
    """Return how long something took, for people."""
    return f"{nanoseconds / 1e3:.0f} µs" if nanoseconds < 1e6 else f"{nanoseconds / 1e6:,.1f} ms"


def shared(part: float) -> str:
    """Return a part of one, in per cent."""
    return f"{100 * part:.1f} %" if 0 < part < 0.0995 else f"{100 * part:.0f} %"


def ranged(numbers: Iterable[int]) -> str:
    """Return numbers with runs shortened: 0–3, 7."""
    runs: list[list[int]] = []
    for number in sorted(numbers):
        if runs and number == runs[-1][-1] + 1:
            runs[-1] = [runs[-1][0], number]
        else:
            runs.append([number])
    return ", ".join("–".join(map(str, run)) for run in runs)


_SHAPE = re.compile(r"(\d+(?:\.\d+)?)(ms|s|m|h)?", re.ASCII)
_MILLISECONDS = {"ms": 1, "s": 1_000, "m": 60_000, "h": 3_600_000}


def written_ms(milliseconds: int) -> str:
    """Return a duration as :func:`duration_s` reads it, in the largest unit that makes it whole: 30s, 1500ms."""
    for unit in ("h", "m", "s"):
        if milliseconds and milliseconds % _MILLISECONDS[unit] == 0:
            return f"{milliseconds // _MILLISECONDS[unit]}{unit}"
    return f"{milliseconds}ms"


def quantile(histogram: "Histogram", q: float) -> float | None:
    """Return the value that a part ``q`` of observations does not exceed (the last bound, if above it); None: there are none."""
    rank = q * sum(histogram.counts)
    if not any(histogram.counts):
        return None
    below, lower = 0, 0
    for bound, count in zip(histogram.bounds, histogram.counts, strict=False):
        if count and below + count >= rank:
            return lower + (bound - lower) * max(0.0, rank - below) / count
        below, lower = below + count, bound
    return float(lower)


def duration_s(text: str) -> float:
    """Return a duration as people write it, in seconds; :class:`ValueError` shows the forms."""
    match = _SHAPE.fullmatch(text.strip())
    if match is None:
        raise ValueError(f"{text!r} is not a duration: write milliseconds, or 500ms, 30s, 5m, 2h")
    return float(match[1]) * _MILLISECONDS[match[2] or "ms"] / 1000


def moment(at: datetime) -> str:
    """Return a time to the millisecond: ids are no finer, and logs can be searched for it."""
    return f"{at.astimezone(UTC):%Y-%m-%d %H:%M:%S}.{at.microsecond // 1000:03d} UTC"


def clock(at: datetime, now: datetime) -> str:
    """Return a short time for tables: the time of day, or, if that is long ago, the day and the minute."""
    return f"{at.astimezone(UTC):%H:%M:%S}" if now - at < timedelta(hours=20) else f"{at.astimezone(UTC):%Y-%m-%d %H:%M}"


def distance(at: datetime, now: datetime) -> str:
    """Return ``3 m ago`` or ``in 3 m``."""
    seconds = (at - now).total_seconds()
    return f"in {aged(seconds)}" if seconds >= 0 else f"{aged(-seconds)} ago"
