"""Numbers and names for narrow columns (:mod:`fila_cluster.figures` is for prose).

Unknown numbers are a dash, never a zero.
"""

from collections.abc import Sequence
from typing import Final

UNKNOWN: Final = "–"
BARS: Final = "▁▂▃▄▅▆▇"
"""Without the full block: bars of neighbouring lines would run into each other."""


def counted(number: int | None) -> str:
    """Return a number in at most six cells, up to 999 thousand millions: 1,234, 12.3k, 123k, 1.23M."""
    if number is None:
        return UNKNOWN
    return f"{number:,}" if abs(number) < 10_000 else _scaled(number)


def _scaled(number: float) -> str:
    number, unit = _stepped(number, 1000, "kMG")
    digits = 2 if abs(number) < 9.995 else 1 if abs(number) < 99.95 else 0
    return f"{number:.{digits}f}{unit}"


def _stepped(number: float, step: int, units: str) -> tuple[float, str]:
    """Return the number in the first unit in which it has three digits, or in the last one."""
    steps = next((power for power in range(1, len(units)) if abs(number) < 999.5 * step**power), len(units))
    return number / step**steps, units[steps - 1]


def rated(per_second: float | None) -> str:
    """Return a rate; a small one with a digit behind the point."""
    if per_second is None:
        return UNKNOWN
    return f"{per_second:.1f}" if 0 < per_second < 9.95 else counted(round(per_second))


def aged(seconds: float | None) -> str:
    """Return a duration in at most four cells up to 999 days: 0.2s, 12s, 3m, 5h, 12d."""
    if seconds is None:
        return UNKNOWN
    if seconds < 9.95:
        return f"{seconds:.1f}s"
    for unit, length_s in (("d", 86_400), ("h", 3_600), ("m", 60)):
        if seconds >= 2 * length_s:
            return f"{seconds // length_s:.0f}{unit}"
    return f"{seconds:.0f}s"


def lasted(nanoseconds: float | None) -> str:
    """Return how long something took: 80µs, 1.2ms, 300ms, 1.0s."""
    if nanoseconds is None:
        return UNKNOWN
    if nanoseconds < 1e6:
        return f"{nanoseconds / 1e3:.0f}µs"
    milliseconds = nanoseconds / 1e6
    return f"{milliseconds / 1e3:.1f}s" if milliseconds >= 999.5 else f"{milliseconds:.{int(milliseconds < 9.95)}f}ms"


def sized(number_bytes: int | None) -> str:
    """Return a size: 512B, 12K, 345M, 1.2G."""
    if number_bytes is None:
        return UNKNOWN
    if number_bytes < 1024:
        return f"{number_bytes}B"
    size, unit = _stepped(number_bytes, 1024, "KMG")
    return f"{size:.{int(size < 9.95)}f}{unit}"


def shared(part: float | None) -> str:
    """Return a part of one, in per cent."""
    if part is None:
        return UNKNOWN
    if 0 < part < 0.0005:
        return "<0.1%"
    return f"{part:.1%}" if 0 < part < 0.0995 else f"{part:.0%}"


def sparkline(values: Sequence[int], width: int) -> str:
    """Return the last values as bars, the highest one full; zeros are blank, and values of one or two are low bars."""
    shown = values[-width:]
    highest = max(len(BARS), *shown) if shown else 0
    return "".join(" " if not value else BARS[(value * len(BARS) - 1) // highest] for value in shown)


def printable(text: str) -> str:
    """Return a text without characters that would move the cursor or change the terminal."""
    return text if text.isprintable() else "".join(each if each.isprintable() else "�" for each in text)
