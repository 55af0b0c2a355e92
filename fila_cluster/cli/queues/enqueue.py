"""``fila-cluster enqueue``."""

from pathlib import Path
from typing import Any

import click
from click.core import ParameterSource

from fila_cluster.cli.queues.enqueue_file import enqueue_file
from fila_cluster.cli.shared.invocation import Invocation
from fila_cluster.cli.shared.parameters import F, flag, payload_of
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
def command(ctx: click.Context, /, queue: str, payload: str | None, file: Path | None, **options: Any) -> None:
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
