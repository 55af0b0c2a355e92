"""``fila-cluster queue browse``."""

from datetime import UTC, datetime
from typing import TYPE_CHECKING

import click

from fila_cluster.cli.jsonl import view_fields
from fila_cluster.cli.session import Session
from fila_cluster.cli.tables import table
from fila_cluster.figures import aged, counted

if TYPE_CHECKING:
    from rich.table import Table

    from fila_cluster import MessageView


@click.command()
@click.argument("name")
@click.option("--limit", type=click.IntRange(min=1), default=100, metavar="N", help="At most N messages. Default: 100.")
@click.option("--after", metavar="ID", help="Only messages behind this one.")
@click.option("--key", metavar="K", help="Only messages of this fairness key.")
@click.option("--state", type=click.Choice(["pending", "delayed", "leased"]), help="Only messages in this state.")
@click.pass_obj
def command(session: Session, name: str, limit: int, after: str | None, key: str | None, state: str | None) -> None:
    """Look at the messages of the queue NAME, key by key and in line order; nothing is leased. --json shows payloads."""
    with session.connect() as client:
        messages = client.browse(name, limit=limit, after=after, fairness_key=key, state=state)  # type: ignore[arg-type] # a Choice
    session.show([view_fields(message) for message in messages], _rows(messages) if messages else "no messages")


def _rows(messages: "list[MessageView]") -> "Table":
    rows = table("id", "fairness key", "state", "#attempts")
    rows.columns[0].no_wrap = True
    now = datetime.now(UTC)
    for message in messages:
        rows.add_row(message.id, message.fairness_key, _state(message, now), counted(message.attempts))
    return rows


def _state(message: "MessageView", now: datetime) -> str:
    """The state and, where it ends by itself, for how long it lasts."""
    ends_at = message.due_at or message.lease_expires_at
    return message.state if ends_at is None else f"{message.state} {aged(max(0.0, (ends_at - now).total_seconds()))}"
