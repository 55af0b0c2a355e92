"""``fila-cluster queue create``."""

import click

from fila_cluster.cli.durations import DURATION
from fila_cluster.cli.session import Session


@click.command()
@click.argument("name")
@click.option(
    "--visibility-timeout",
    type=DURATION,
    metavar="D",
    help="How long a delivery is leased: 30s, 5m, … Default: the broker's.",
)
@click.option(
    "--max-attempts", type=int, metavar="N", help="Deliveries before a message is dead-lettered. Default: no limit."
)
@click.pass_obj
def command(session: Session, name: str, visibility_timeout: float | None, max_attempts: int | None) -> None:
    """Create the queue NAME and its dead letter queue, NAME.dlq."""
    with session.connect() as client:
        client.create_queue(name, visibility_timeout=visibility_timeout, max_attempts=max_attempts)
    session.show({"name": name}, f"created {name}")
