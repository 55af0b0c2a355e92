"""``fila-cluster queue delete``."""

import click

from fila_cluster.cli.session import Session


@click.command()
@click.argument("name")
@click.option("--force", is_flag=True, help="Even if its dead letter queue holds messages.")
@click.pass_obj
def command(session: Session, name: str, force: bool) -> None:
    """Delete the queue NAME, its dead letter queue and all their messages."""
    with session.connect() as client:
        client.delete_queue(name, force=force)
    session.show({"name": name}, f"deleted {name}")
