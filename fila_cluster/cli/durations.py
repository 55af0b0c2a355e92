"""Durations as options of commands."""

from typing import Any

import click

from fila_cluster.durations import duration_s


class Duration(click.ParamType):  # type: ignore[type-arg] # generic since click 8.2 only
    """A duration option; its value is in seconds, as the client takes them."""

    name = "duration"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> float:
        """Read one; a bare number is milliseconds."""
        if isinstance(value, float):
            return value
        try:
            return duration_s(str(value))
        except ValueError as wrong:
            self.fail(str(wrong), param, ctx)


DURATION = Duration()
