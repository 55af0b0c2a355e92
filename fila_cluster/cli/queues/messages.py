"""``fila-cluster enqueue``, ``consume``, ``message …``, ``redrive`` and ``why``."""

import os
import stat
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING, Any, BinaryIO

import click
from click.core import ParameterSource
from rich.console import Console
from rich.progress import BarColumn, Progress, TaskProgressColumn, TextColumn, TimeRemainingColumn

from fila_cluster import Client, Delivery, Message
from fila_cluster.cli.shared.invocation import Invocation
from fila_cluster.cli.shared.jsonl import read_message, write_delivery
from fila_cluster.cli.shared.parameters import DURATION, F, flag, payload_of
from fila_cluster.cli.shared.tables import table
from fila_cluster.errors import BatchError, FilaError, LeaseExpiredError
from fila_cluster.figures import counted
from fila_process.parent import handling
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


CONSUMED_MESSAGES = 100
PATIENCE_S = 30.0
"""How long one request waits when there is no other limit; then the next request follows."""
PAUSE_S = 0.5
"""Between two tries while the broker is away."""


@click.command()
@click.argument("queue")
@click.option("--count", type=click.IntRange(min=1), metavar="N", help="Stop after N messages. Default: never.")
@click.option("--wait", type=DURATION, metavar="D", help="Stop when nothing has come for D: 0, 500ms, 30s, … Default: never.")
@click.option("--no-ack", is_flag=True, help="Only look: give everything back at the end.")
@click.pass_obj
def consume_command(invocation: Invocation, queue: str, count: int | None, wait: float | None, no_ack: bool) -> None:
    """Take messages out of QUEUE and print one JSON object a line for each.

    A message is acknowledged once its line is out. Ctrl-C stops it; messages that were not printed go back. Without --wait
    it continues after an outage of the broker.
    """
    stop = _Stop()
    patience = _Patience(wait)
    held = []
    with handling(stop.ask), invocation.connect() as client, suppress(KeyboardInterrupt):
        for batch in _batches(client, queue, count, stop, patience):
            click.echo("\n".join(map(write_delivery, batch)))
            if no_ack:
                held.append(batch)  # kept: a delivery that is dropped unsettled gives a warning
            else:
                _ack(client, batch, stop, patience)


class _Stop:
    """SIGINT and SIGTERM stop at once while no message is in hand, else after it is printed and acknowledged."""

    def __init__(self) -> None:
        self.asked = False
        self.nothing_in_hand = False

    def ask(self, _number: int, _frame: FrameType | None) -> None:
        """Take one of the signals."""
        self.asked = True
        if self.nothing_in_hand:
            raise KeyboardInterrupt


class _Patience:
    """How long to wait for messages, at most ``wait_s``; without that limit also for a broker that was reached once."""

    def __init__(self, wait_s: float | None) -> None:
        self._wait_s = wait_s
        self._reached = False
        self._told = False

    @property
    def is_endless(self) -> bool:
        """Whether to wait for ever."""
        return self._wait_s is None

    @property
    def next_s(self) -> float:
        """How long the next request may wait; without a limit the first one only checks the broker and the queue."""
        if self._wait_s is not None:
            return self._wait_s
        return PATIENCE_S if self._reached else 0.0

    def relieve(self) -> None:
        """Note that the broker answered."""
        self._reached, self._told = True, False

    def bear(self, error: FilaError) -> None:
        """Wait a moment, or raise the error. A retry is reported once."""
        if not (error.retryable and self._reached and self.is_endless):
            raise error
        if not self._told:
            click.echo(f"{error}; trying again", err=True)
            self._told = True
        time.sleep(PAUSE_S)


def _ack(client: Client, batch: list[Delivery], stop: _Stop, patience: _Patience) -> None:
    """Acknowledge printed messages. Leases that ended meanwhile are not a failure: their messages come again."""
    while batch:
        try:
            client.ack(batch)
        except BatchError as error:
            batch, reasons = _still_held(batch, error)
            if batch and stop.asked:
                raise
            if batch:
                patience.bear(reasons[0])
        else:
            patience.relieve()
            return


def _still_held(batch: list[Delivery], error: BatchError) -> tuple[list[Delivery], list[FilaError]]:
    """Return the deliveries of a batch that could not be acknowledged although their leases did not end, and the errors."""
    held, reasons = [], []
    for delivery, result in zip(batch, error.results, strict=True):
        if isinstance(result, FilaError) and not isinstance(result, LeaseExpiredError):
            held.append(delivery)
            reasons.append(result)
    return held, reasons


def _batches(client: Client, queue: str, count: int | None, stop: _Stop, patience: _Patience) -> Iterator[list[Delivery]]:
    """Yield batches until ``count`` messages have come, or none came in time, or a signal asks to stop."""
    remaining = count
    while remaining is None or remaining > 0:
        at_most = CONSUMED_MESSAGES if remaining is None else min(CONSUMED_MESSAGES, remaining)
        stop.nothing_in_hand = True  # before the request, so that no signal falls between the two
        if stop.asked:
            return
        try:
            batch = client.receive(queue, at_most, wait=patience.next_s)
        except FilaError as error:
            patience.bear(error)
            continue
        stop.nothing_in_hand = False
        patience.relieve()
        if batch:
            yield batch
        elif not patience.is_endless:
            return
        if remaining is not None:
            remaining -= len(batch)


if TYPE_CHECKING:
    from rich.table import Table

    from fila_cluster import Explanation


@click.group()
def message_command() -> None:
    """Act on single messages."""


@message_command.command("cancel", short_help="Remove a message that waits in a queue.")
@click.argument("queue")
@click.argument("message_id", metavar="ID")
@click.pass_obj
def cancel(invocation: Invocation, queue: str, message_id: str) -> None:
    """Remove the message ID from QUEUE. One that is leased stays: that is a failure."""
    with invocation.connect() as client:
        cancelled = client.cancel(queue, message_id)
    if not cancelled:
        raise click.ClickException(
            f"message {message_id} of queue {queue} is leased: only the consumer that holds it can settle it"
        )
    invocation.show({"id": message_id}, f"cancelled {message_id}")


@click.command()
@click.argument("dlq")
@click.option("--count", type=click.IntRange(min=0), default=0, metavar="N", help="At most N messages. Default: all of them.")
@click.option("--key", metavar="K", help="Only dead letters of this fairness key.")
@click.pass_obj
def redrive_command(invocation: Invocation, dlq: str, count: int, key: str | None) -> None:
    """Send the pending messages of the dead letter queue DLQ back to the queues they came from."""
    with invocation.connect() as client:
        redriven = client.redrive(dlq, count, fairness_key=key)
    invocation.show({"redriven": redriven}, f"redriven: {redriven:,}")


@click.command()
@click.argument("queue")
@click.option("--id", "message_id", metavar="ID", help="Why this message waits.")
@click.option("--key", metavar="K", help="Why this fairness key waits.")
@click.pass_obj
def why_command(invocation: Invocation, queue: str, message_id: str | None, key: str | None) -> None:
    """Show why QUEUE, or one of its messages or fairness keys, waits. The reason that has to end first comes first.

    docs/why.md lists the reasons, and what to do about each.
    """
    if message_id is not None and key is not None:
        raise click.UsageError("--id or --key, not both")
    with invocation.connect() as client:
        explanation = client.why(queue, message_id=message_id, fairness_key=key)
    invocation.show(explanation, f"{message_id or key or queue}: {explanation.headline}\n", _reasons(explanation))


def _reasons(explanation: "Explanation") -> "Table":
    rows = table("reason", "")
    for reason in explanation.reasons:
        rows.add_row(reason.code, reason.text)
    return rows
