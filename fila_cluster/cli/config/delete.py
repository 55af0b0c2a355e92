"""``fila-cluster config delete``."""

import click

from fila_cluster.cli.session import Session


@click.command()
@click.argument("key")
@click.pass_obj
def command(session: Session, key: str) -> None:
    """Delete KEY, if it has a value."""
    with session.connect() as client:
        deleted = client.delete_config(key)
    session.show({"key": key, "deleted": deleted}, f"deleted {key}" if deleted else f"{key} had no value")
