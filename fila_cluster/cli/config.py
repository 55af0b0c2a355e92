"""``fila-cluster config …``."""

import click

from fila_cluster.cli.session import Session, print_json
from fila_cluster.cli.tables import table


@click.group()
def command() -> None:
    """Read and change the runtime config of a running cluster: throttle rates, quotas, and what hooks read."""


@command.command("set", short_help="Set a key.", context_settings={"ignore_unknown_options": True})
@click.argument("key")
@click.argument("value")
@click.pass_obj
def set_(session: Session, key: str, value: str) -> None:
    """Set KEY to VALUE in the whole cluster: every later enqueue sees it.

    throttle:KEY:rate and throttle:KEY:burst (or throttle.KEY, both as rate,burst) limit a throttle key in tokens a second.
    """
    with session.connect() as client:
        client.set_config(key, value)
    session.show({"key": key, "value": value}, f"{key} = {value}")


@command.command("get", short_help="Print a key's value.")
@click.argument("key")
@click.pass_obj
def get(session: Session, key: str) -> None:
    """Print the value of KEY. A key without a value is a failure."""
    with session.connect() as client:
        value = client.get_config(key)
    if value is None:
        raise click.ClickException(f"{key} has no value")
    if session.as_json:
        print_json({"key": key, "value": value})
    else:
        click.echo(value)  # as it is: at no width, with no markup


@command.command("list", short_help="List keys and values.")
@click.option("--prefix", default="", metavar="P", help="Only keys that start so.")
@click.pass_obj
def list_(session: Session, prefix: str) -> None:
    """List keys with their values."""
    with session.connect() as client:
        values = client.list_config(prefix)
    rows = table("key", "value")
    for key, value in values.items():
        rows.add_row(key, value)
    session.show(values, rows if values else "no keys")


@command.command("delete", short_help="Delete a key.")
@click.argument("key")
@click.pass_obj
def delete(session: Session, key: str) -> None:
    """Delete KEY, if it has a value."""
    with session.connect() as client:
        deleted = client.delete_config(key)
    session.show({"key": key, "deleted": deleted}, f"deleted {key}" if deleted else f"{key} had no value")
