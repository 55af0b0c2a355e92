"""``fila-cluster message …``."""

import click

from fila_cluster.cli.shared.invocation import Invocation


@click.group()
def command() -> None:
    """Act on single messages."""


@command.command("cancel", short_help="Remove a message that waits in a queue.")
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
