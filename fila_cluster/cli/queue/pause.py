"""``fila-cluster queue pause``."""

import click

from fila_cluster.cli.session import Session


@click.command()
@click.argument("name")
@click.option("--key", metavar="K", help="Only this fairness key.")
@click.pass_obj
def command(session: Session, name: str, key: str | None) -> None:
    """Stop deliveries of the queue NAME, or of one of its fairness keys. Enqueues go on."""
    with session.connect() as client:
        client.pause(name, fairness_key=key)
    session.show({"name": name, "fairness_key": key}, f"paused {name}" if key is None else f"paused {key} of {name}")
