"""``fila-cluster why``."""

from typing import TYPE_CHECKING

import click

from fila_cluster.cli.shared.invocation import Invocation
from fila_cluster.cli.shared.tables import table

if TYPE_CHECKING:
    from rich.table import Table

    from fila_cluster import Explanation


@click.command()
@click.argument("queue")
@click.option("--id", "message_id", metavar="ID", help="Why this message waits.")
@click.option("--key", metavar="K", help="Why this fairness key waits.")
@click.pass_obj
def command(invocation: Invocation, queue: str, message_id: str | None, key: str | None) -> None:
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
