"""``fila-cluster config list``."""

import click

from fila_cluster.cli.session import Session
from fila_cluster.cli.tables import table


@click.command()
@click.option("--prefix", default="", metavar="P", help="Only keys that start so.")
@click.pass_obj
def command(session: Session, prefix: str) -> None:
    """List keys with their values."""
    with session.connect() as client:
        values = client.list_config(prefix)
    rows = table("key", "value")
    for key, value in values.items():
        rows.add_row(key, value)
    session.show(values, rows if values else "no keys")
