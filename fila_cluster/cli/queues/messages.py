"""``fila-cluster message …``, ``redrive`` and ``why``."""

from typing import TYPE_CHECKING

import click

from fila_cluster.cli.shared.invocation import Invocation, table

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
