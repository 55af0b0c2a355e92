"""``fila-cluster enqueue``."""

from functools import reduce
from pathlib import Path
from typing import Any

import click
from click.core import ParameterSource

from fila_cluster.cli.queues.enqueue_file import enqueue_file
from fila_cluster.cli.shared.invocation import Invocation
from fila_cluster.cli.shared.parameters import DURATION, F, payload_of


def headers_of(ctx: click.Context, param: click.Parameter, values: tuple[str, ...]) -> dict[str, str]:
    """Return headers that were written as ``name=value``."""
    if bad := [value for value in values if "=" not in value]:
        raise click.BadParameter(f"{bad[0]!r}: write a header as name=value", ctx, param)
    return dict(value.split("=", 1) for value in values)


_MESSAGE_FLAGS = (
    click.option(
        "--header", "headers", multiple=True, callback=headers_of, metavar="NAME=VALUE", help="A header; may be repeated."
    ),
    click.option("--key", "fairness_key", metavar="K", help="The fairness key."),
    click.option("--weight", type=int, metavar="N", help="The key's share from now on. Default: as it is."),
    click.option(
        "--throttle-key", "throttle_keys", multiple=True, metavar="K", help="A token bucket to draw on; may be repeated."
    ),
    click.option("--priority", type=int, default=0, metavar="N", help="Within the key, lower first. Default: 0."),
    click.option("--cost", type=float, default=1, metavar="X", help="What its delivery costs. Default: 1."),
    click.option(
        "--delay", type=DURATION, default=0.0, metavar="D", help="Deliver no earlier than in D: 500ms, 30s, 5m, 2h."
    ),
    click.option(
        "--ttl", type=DURATION, metavar="D", help="Let it expire if it is not delivered within D. Default: the queue's."
    ),
    click.option("--lease", type=DURATION, metavar="D", help="How long its delivery is leased. Default: the queue's."),
    click.option("--dedup-id", metavar="ID", help="Store nothing if a message with this one came a short time ago."),
    click.option(
        "--dedup-mode",
        type=click.Choice(["first", "last"]),
        default="first",
        help="last: replace the payload, the headers and the delay of that message, unless it was delivered. Default: first.",
    ),
    click.option("--max-attempts", type=int, metavar="N", help="Dead-letter it after N deliveries. Default: the queue's."),
)


def message_options(command: F) -> F:
    """Give a command the options of a message, all but the time when it is to be delivered."""
    return reduce(lambda decorated, flag: flag(decorated), reversed(_MESSAGE_FLAGS), command)


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
