"""Durations as people type them: ``1500`` (milliseconds), ``500ms``, ``30s``, ``5m``, ``2h``."""

import re

_SHAPE = re.compile(r"(\d+(?:\.\d+)?)(ms|s|m|h)?", re.ASCII)
_MILLISECONDS = {"ms": 1, "s": 1_000, "m": 60_000, "h": 3_600_000}


def duration_s(text: str) -> float:
    """Read one, in seconds; :class:`ValueError` says what one looks like."""
    match = _SHAPE.fullmatch(text.strip())
    if match is None:
        raise ValueError(f"{text!r} is no duration: write milliseconds, or 500ms, 30s, 5m, 2h")
    return float(match[1]) * _MILLISECONDS[match[2] or "ms"] / 1000
