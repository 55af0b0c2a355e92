"""The effect of the options before the command: a client, and the form of the output."""

import json
import os
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, is_dataclass
from datetime import datetime
from typing import TYPE_CHECKING, Any, Final, TypeVar

import click

if TYPE_CHECKING:
    from rich.console import RenderableType

    from fila_cluster import Client
    from fila_proto_zmq.errors import FilaError

T = TypeVar("T")

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

    def each_router(self, ask: "Callable[[Client], T]") -> "tuple[dict[str, T], dict[str, FilaError]]":
        """Ask each router that is named, as those of several hosts are. Return answers and errors by endpoint; end if none answers."""
        from fila_cluster import Client  # noqa: PLC0415 # quick --help
        from fila_cluster.client.checks import endpoint_or_default  # noqa: PLC0415
        from fila_cluster.client.requests.endpoints import parse_endpoints  # noqa: PLC0415
        from fila_proto_zmq.errors import FilaError  # noqa: PLC0415

        answers: dict[str, T] = {}
        errors: dict[str, FilaError] = {}
        for endpoint in parse_endpoints(endpoint_or_default(self.endpoint or None)):
            try:
                with Client(endpoint.text) as client:
                    answers[endpoint.text] = ask(client)
            except FilaError as error:
                errors[endpoint.text] = error
        if not answers:
            if len(errors) == 1:
                raise next(iter(errors.values()))
            end_with(errors)
        return answers, errors

    def show(self, value: Any, *human: "RenderableType") -> None:
        """Print ``value`` as JSON, or ``human`` as text."""
        if self.as_json:
            print_json(value)
        else:
            print_rich(human)


def of_routers(found: "Iterable[tuple[str, Any]]", *, several: bool) -> list[Any]:
    """Return the JSON form of what routers listed; each entry names its router if ``several`` were asked."""
    return [{"router": router, **_plain(each)} if several else each for router, each in found]


def end_with(errors: "Mapping[str, FilaError]") -> None:
    """Say which routers gave no answer, with exit code 1; return if there are none."""
    for endpoint, error in errors.items():
        click.echo(f"{endpoint}: {error}", err=True)
    if errors:
        sys.exit(1)


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
