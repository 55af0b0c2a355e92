"""``fila-cluster queue resume``."""

import click

from fila_cluster.cli.session import Session


@click.command()
@click.argument("name")
@click.option("--key", metavar="K", help="Only this fairness key.")
@click.pass_obj
def command(session: Session, name: str, key: str | None) -> None:
    """Let the deliveries of the queue NAME, or of one of its fairness keys, go on."""
    with session.connect() as client:
        client.resume(name, fairness_key=key)
    session.show({"name": name, "fairness_key": key}, f"resumed {name}" if key is None else f"resumed {key} of {name}")
