"""The effect of the options before the command: a client, and the form of the output."""

import json
import os
import sys
from collections.abc import Sequence
from dataclasses import dataclass, is_dataclass
from datetime import datetime
from typing import TYPE_CHECKING, Any, Final

import click

if TYPE_CHECKING:
    from rich.console import RenderableType

    from fila_cluster import Client

UNWRAPPED_COLUMNS: Final = 4000
"""Wider than a row of names and ids. Longer texts, such as large values of the config, are wrapped: each cell of their column is as wide."""


@dataclass(frozen=True, slots=True)
class Invocation:
    """The global options. Passed to commands by ``click.pass_obj``."""

    endpoint: str | None
    as_json: bool

    def connect(self, timeout: float | None = None) -> "Client":
        """Return a client for the chosen cluster; close it, or use it as a context. ``timeout``: of its calls, if not the usual one."""
        from fila_cluster import Client  # noqa: PLC0415 # quick --help

        options: dict[str, Any] = {"endpoint": self.endpoint or None, "timeout": timeout}
        return Client(**{name: value for name, value in options.items() if value is not None})

    def show(self, value: Any, *human: "RenderableType") -> None:
        """Print ``value`` as JSON, or ``human`` as text."""
        if self.as_json:
            print_json(value)
        else:
            print_rich(human)


def print_json(value: Any) -> None:
    """Print one JSON value on one line, and flush it."""
    click.echo(json.dumps(value, default=_plain))


def print_ready(what: str) -> None:
    """Print the line that says that a process in the foreground serves. It serves all the same if nobody reads the line."""
    try:
        print(f"ready: {what}", flush=True)
    except BrokenPipeError:
        discard_output()


def discard_output() -> None:
    """Let all that is printed from now on, and what waits in the buffer, go nowhere."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def print_rich(renderables: "Sequence[RenderableType]") -> None:
    """Print for people: at the terminal's width, in colour only where the terminal has it.

    In a pipe or a file nothing is wrapped, so that ``queue list | grep NAME`` finds the row of any name.
    """
    from rich.console import Console  # noqa: PLC0415 # quick --help

    width = None if sys.stdout.isatty() else UNWRAPPED_COLUMNS
    console = Console(highlight=False, markup=False, emoji=False, width=width)  # names are data, not markup
    for renderable in renderables:
        console.print(renderable)


def _plain(value: Any) -> Any:
    if is_dataclass(value):
        return {name: getattr(value, name) for name in value.__dataclass_fields__}
    if isinstance(value, datetime):
        return value.isoformat()
    raise TypeError(f"{type(value).__name__} has no JSON form")
