"""``fila-cluster config get``."""

import click

from fila_cluster.cli.session import Session, print_json


@click.command()
@click.argument("key")
@click.pass_obj
def command(session: Session, key: str) -> None:
    """Print the value of KEY. A key without a value is a failure."""
    with session.connect() as client:
        value = client.get_config(key)
    if value is None:
        raise click.ClickException(f"{key} has no value")
    if session.as_json:
        print_json({"key": key, "value": value})
    else:
        click.echo(value)  # as it is: at no width, with no markup
