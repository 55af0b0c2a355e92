"""``fila-cluster enqueue``."""

import os
import stat
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, BinaryIO

import click
from click.core import ParameterSource
from rich.console import Console
from rich.progress import BarColumn, Progress, TaskProgressColumn, TextColumn, TimeRemainingColumn

from fila_cluster import Client, Message
from fila_cluster.cli.shared.invocation import Invocation
from fila_cluster.cli.shared.jsonl import read_message
from fila_cluster.cli.shared.parameters import F, flag, payload_of
from fila_cluster.errors import BatchError, FilaError
from fila_cluster.figures import counted
from fila_proto_zmq.commands import MESSAGE_OPTIONS


def headers_of(ctx: click.Context, param: click.Parameter, values: tuple[str, ...]) -> dict[str, str]:
    """Return headers that were written as ``name=value``."""
    if bad := [value for value in values if "=" not in value]:
        raise click.BadParameter(f"{bad[0]!r}: write a header as name=value", ctx, param)
    return dict(value.split("=", 1) for value in values)


def message_options(command: F) -> F:
    """Give a command the options of a message, all but the time when it is to be delivered."""
    for option in reversed(MESSAGE_OPTIONS.values()):
        if option.kind != "instant":
            command = flag(option, option.usual)(command)
    return click.option(
        "--header", "headers", multiple=True, callback=headers_of, metavar="NAME=VALUE", help="A header; may be repeated."
    )(command)


@click.command()
@click.argument("queue")
@click.argument("payload", required=False)
@click.option(
    "--file",
    "file",
    type=click.Path(path_type=Path, allow_dash=True),
    metavar="JSONL",
    help="One message per line; - reads standard input.",
)
@message_options
@click.pass_context
def enqueue_command(ctx: click.Context, /, queue: str, payload: str | None, file: Path | None, **options: Any) -> None:
    """Put messages into QUEUE: the text PAYLOAD, or standard input as one payload (-), or the lines of a file (--file).

    A line is a JSON object with the fields of a Message: "payload" (text) or "payload_base64", and optionally "headers",
    "fairness_key", "weight", "throttle_keys", "priority", "cost", "delay" and "ttl" (seconds), "dedup_id",
    "dedup_mode", "max_attempts", …
    """
    invocation: Invocation = ctx.obj
    if (payload is None) == (file is None):
        raise click.UsageError("give a PAYLOAD, or - for standard input, or --file JSONL")
    if file is not None:
        if flags := _given(ctx, options):
            raise click.UsageError(f"the lines of --file have options of their own: leave out {', '.join(flags)}")
        enqueue_file(invocation, queue, file)
        return
    body = payload_of(str(payload))
    with invocation.connect() as client:
        message_id = client.enqueue(queue, body, **options)
    invocation.show({"id": message_id}, message_id)


def _given(ctx: click.Context, options: dict[str, Any]) -> list[str]:
    """Return the flags that are on the command line."""
    flags = {str(parameter.name): parameter.opts[0] for parameter in ctx.command.params}
    return [flags[name] for name in options if ctx.get_parameter_source(name) is ParameterSource.COMMANDLINE]


BATCH_MESSAGES = 1000
BATCH_BYTES = 4 * 1024 * 1024


class _Batches:
    """A file's messages in batches of lines; ``error`` is the first bad line's, after the good ones before it."""

    def __init__(self, file: BinaryIO, name: str) -> None:
        self.error: str | None = None
        self.read_bytes = 0
        self._file = file
        self._name = name

    def __iter__(self) -> Iterator[dict[int, Message]]:
        """Yield messages by line number."""
        batch: dict[int, Message] = {}
        full_at = BATCH_BYTES
        for number, line in enumerate(self._file, 1):
            self.read_bytes += len(line)
            if not line.strip():
                continue
            try:
                batch[number] = read_message(line)
            except ValueError as error:
                self.error = self.at(number, error)
                break
            if len(batch) >= BATCH_MESSAGES or self.read_bytes >= full_at:
                yield batch
                batch, full_at = {}, self.read_bytes + BATCH_BYTES
        if batch:
            yield batch

    def at(self, number: int, error: Exception) -> str:
        return f"{self._name} line {number}: {error}"


def enqueue_file(invocation: Invocation, queue: str, path: Path) -> None:
    """Enqueue every line of ``path`` (``-``: standard input)."""
    enqueued = 0
    with _opened(path) as (file, name), invocation.connect() as client, _progress(file) as progress:
        batches = _Batches(file, name)
        task = progress.add_task(f"enqueue into {queue}", total=_size_bytes(file), messages="0")
        for batch in batches:
            enqueued += _send(client, queue, batch, batches, enqueued)
            progress.update(task, completed=batches.read_bytes, messages=f"{enqueued:,}")
    if batches.error is not None:
        raise click.ClickException(f"{batches.error}; before it {counted(enqueued, 'message')} went in")
    invocation.show({"enqueued": enqueued}, f"enqueued: {enqueued:,}")


def _send(client: Client, queue: str, batch: dict[int, Message], batches: _Batches, before: int) -> int:
    try:
        return len(client.enqueue_many(queue, batch.values()))
    except BatchError as error:
        failed = [
            (number, result) for number, result in zip(batch, error.results, strict=True) if isinstance(result, FilaError)
        ]
        number, reason = failed[0]
        others = f" (and {len(failed) - 1:,} more of its batch)" if len(failed) > 1 else ""
        accepted = before + len(batch) - len(failed)
        raise click.ClickException(
            f"{batches.at(number, reason)}{others}; up to line {max(batch)} {counted(accepted, 'message')} went in"
        ) from None
    except FilaError as error:
        raise click.ClickException(
            f"{batches.at(min(batch), error)}; before it {counted(before, 'message')} went in"
        ) from None


@contextmanager
def _opened(path: Path) -> Iterator[tuple[BinaryIO, str]]:
    if str(path) == "-":
        yield sys.stdin.buffer, "standard input"
        return
    try:
        file = path.open("rb")
    except OSError as error:
        raise click.ClickException(f"cannot read {path}: {error.strerror}") from None
    with file:
        yield file, str(path)


def _size_bytes(file: BinaryIO) -> int | None:
    """Return the size of a regular file; None for a pipe."""
    try:
        status = os.fstat(file.fileno())
    except OSError:
        return None
    return status.st_size if stat.S_ISREG(status.st_mode) else None


def _progress(file: BinaryIO) -> Progress:
    """Return a bar on standard error, if that is a terminal and the input is long."""
    console = Console(stderr=True)
    size_bytes = _size_bytes(file)
    short = size_bytes is not None and size_bytes < BATCH_BYTES
    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        TaskProgressColumn(),
        TextColumn("{task.fields[messages]} messages"),
        TimeRemainingColumn(),
    )
    return Progress(*columns, console=console, transient=True, disable=short or not console.is_terminal)
