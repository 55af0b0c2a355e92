"""Durations as people type them: ``1500``, ``500ms``, ``30s``, ``5m``, ``2h``."""

import re
from typing import Any

import click

_SHAPE = re.compile(r"(\d+(?:\.\d+)?)(ms|s|m|h)?", re.ASCII)
_MILLISECONDS = {"ms": 1, "s": 1_000, "m": 60_000, "h": 3_600_000}


class Duration(click.ParamType):  # type: ignore[type-arg] # generic since click 8.2 only
    """A duration option; its value is in seconds, as the client takes them."""

    name = "duration"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> float:
        """Read one; a bare number is milliseconds."""
        if isinstance(value, float):
            return value
        match = _SHAPE.fullmatch(str(value).strip())
        if match is None:
            self.fail(f"{value!r} is no duration: write milliseconds, or 500ms, 30s, 5m, 2h", param, ctx)
        return float(match[1]) * _MILLISECONDS[match[2] or "ms"] / 1000


DURATION = Duration()
