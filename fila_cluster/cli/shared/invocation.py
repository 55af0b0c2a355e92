"""The options before a command, a client and the form of its output, and options that several commands have."""

import json
import os
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, is_dataclass
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, TypeVar

import click

if TYPE_CHECKING:
    from rich.console import RenderableType

    from fila_cluster import Client
    from fila_proto_zmq.errors import FilaError

T = TypeVar("T")

UNWRAPPED_COLUMNS: Final = 4000
"""Wider than a row of names and ids. Longer texts are wrapped: each cell of their column is as wide."""


@dataclass(frozen=True, slots=True)
class Invocation:
    """The global options. Passed to commands by ``click.pass_obj``."""

    endpoint: str | None
    as_json: bool

    def connect(self, timeout: float | None = None) -> "Client":
        """Return a client for the chosen cluster, which the caller closes; ``timeout``: of its calls."""
        from fila_cluster import Client  # noqa: PLC0415 # quick --help

        options: dict[str, Any] = {"endpoint": self.endpoint or None, "timeout": timeout}
        return Client(**{name: value for name, value in options.items() if value is not None})

    def each_router(self, ask: "Callable[[Client], T]") -> "tuple[dict[str, T], dict[str, FilaError]]":
        """Ask each router that is named. Return answers and errors by endpoint; end if there are no answers."""
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
    """Print the errors and end with exit code 1; return if there are no errors."""
    for endpoint, error in errors.items():
        click.echo(f"{endpoint}: {error}", err=True)
    if errors:
        sys.exit(1)


def print_json(value: Any) -> None:
    """Print one JSON value on one line, and flush it."""
    click.echo(json.dumps(value, default=_plain))


def print_ready(what: str) -> None:
    """Print the "ready:" line of a process in the foreground. It serves also if the line has no reader."""
    try:
        print(f"ready: {what}", flush=True)
    except BrokenPipeError:
        discard_output()


def discard_output() -> None:
    """Discard all further output, and the buffered one."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def print_rich(renderables: "Sequence[RenderableType]") -> None:
    """Print at the terminal's width, in colour only there. Pipes get unwrapped lines, for ``queue list | grep NAME``."""
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


CONFIG = click.option(
    "--config", type=click.Path(path_type=Path), metavar="FILE", help="Instead of ./fila.toml or /etc/fila/fila.toml."
)
LISTEN = click.option("--listen", metavar="ADDR", help="Where clients connect. Default: tcp://127.0.0.1:5555.")
DATA_DIR = click.option("--data-dir", metavar="DIR", help="Where everything is kept. Default: ./fila-data.")
WORKERS = click.option("--workers", type=int, metavar="N", help="Worker processes. Default: CPU cores, at most the shards.")
DASHBOARD = click.option("--dashboard", metavar="ADDR", help="Where the dashboard listens. Default: 127.0.0.1:8555.")
NO_DASHBOARD = click.option("--no-dashboard", is_flag=True, help="Run without the dashboard.")
INSECURE = click.option(
    "--insecure",
    is_flag=True,
    help="Listen on addresses that other machines can reach, without authentication or encryption.",
)
