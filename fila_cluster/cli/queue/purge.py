"""``fila-cluster queue purge``."""

import click

from fila_cluster.cli.session import Session


@click.command()
@click.argument("name")
@click.option("--key", metavar="K", help="Only messages of this fairness key.")
@click.pass_obj
def command(session: Session, name: str, key: str | None) -> None:
    """Remove the pending and delayed messages of the queue NAME; those that are leased stay."""
    with session.connect() as client:
        purged = client.purge_queue(name, fairness_key=key)
    session.show({"purged": purged}, f"purged: {purged:,}")
