"""``fila-cluster enqueue``."""

import sys
from pathlib import Path

import click

from fila_cluster.cli.durations import DURATION
from fila_cluster.cli.enqueue_file import enqueue_file
from fila_cluster.cli.session import Session


def _header(ctx: click.Context, param: click.Parameter, values: tuple[str, ...]) -> dict[str, str]:
    if bad := [value for value in values if "=" not in value]:
        raise click.BadParameter(f"{bad[0]!r}: write a header as name=value", ctx, param)
    return dict(value.split("=", 1) for value in values)


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
@click.option("--header", "headers", multiple=True, callback=_header, metavar="NAME=VALUE", help="A header; may be repeated.")
@click.option("--key", metavar="K", help="The fairness key.")
@click.option("--priority", type=int, default=0, metavar="N", help="Within the key, lower first. Default: 0.")
@click.option("--delay", type=DURATION, default=0.0, metavar="D", help="Deliver no earlier than in D: 500ms, 30s, 5m, 2h.")
@click.pass_context
def command(
    ctx: click.Context,
    queue: str,
    payload: str | None,
    file: Path | None,
    headers: dict[str, str],
    key: str | None,
    priority: int,
    delay: float,
) -> None:
    """Put messages into QUEUE: the text PAYLOAD, or standard input as one payload (-), or the lines of a file (--file).

    A line is a JSON object with the fields of a Message: "payload" (text) or "payload_base64", and optionally "headers",
    "fairness_key", "weight", "priority", "delay" (seconds), …
    """
    session: Session = ctx.obj
    if (payload is None) == (file is None):
        raise click.UsageError("give a PAYLOAD, or - for standard input, or --file JSONL")
    if file is not None:
        if headers or key is not None or priority or delay:
            raise click.UsageError(
                "the lines of --file have options of their own: leave out --header, --key, --priority, --delay"
            )
        enqueue_file(session, queue, file)
        return
    body = sys.stdin.buffer.read() if payload == "-" else str(payload).encode()
    with session.connect() as client:
        message_id = client.enqueue(queue, body, headers, fairness_key=key, priority=priority, delay=delay)
    session.show({"id": message_id}, message_id)
