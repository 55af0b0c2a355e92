"""``fila-cluster queue create``."""

from typing import Any

import click

from fila_cluster.cli.queue.options import given, queue_options
from fila_cluster.cli.session import Session


@click.command()
@click.argument("name")
@queue_options
@click.pass_obj
def command(session: Session, /, name: str, **options: Any) -> None:
    """Create the queue NAME and its dead letter queue, NAME.dlq."""
    with session.connect() as client:
        client.create_queue(name, **given(options))
    session.show({"name": name}, f"created {name}")
