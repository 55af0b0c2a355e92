"""``fila-cluster config …``."""

import click

from fila_cluster.cli.shared.invocation import Invocation, print_json
from fila_cluster.cli.shared.tables import table


@click.group()
def command() -> None:
    """Read and change the runtime config of a running cluster: throttle rates, quotas, and what hooks read."""


@command.command("set", short_help="Set a key.", context_settings={"ignore_unknown_options": True})
@click.argument("key")
@click.argument("value")
@click.pass_obj
def set_(invocation: Invocation, key: str, value: str) -> None:
    """Set KEY to VALUE in the whole cluster: every later enqueue sees it.

    throttle:KEY:rate and throttle:KEY:burst (or throttle.KEY, both as rate,burst) limit a throttle key in tokens a second.
    """
    with invocation.connect() as client:
        client.set_config(key, value)
    invocation.show({"key": key, "value": value}, f"{key} = {value}")


@command.command("get", short_help="Print a key's value.")
@click.argument("key")
@click.pass_obj
def get(invocation: Invocation, key: str) -> None:
    """Print the value of KEY. A key without a value is a failure."""
    with invocation.connect() as client:
        value = client.get_config(key)
    if value is None:
        raise click.ClickException(f"{key} has no value")
    if invocation.as_json:
        print_json({"key": key, "value": value})
    else:
        click.echo(value)  # unformatted: no line width, no markup


@command.command("list", short_help="List keys and values.")
@click.option("--prefix", default="", metavar="P", help="Only keys that start with P.")
@click.pass_obj
def list_(invocation: Invocation, prefix: str) -> None:
    """List keys with their values."""
    with invocation.connect() as client:
        values = client.list_config(prefix)
    rows = table("key", "value")
    for key, value in values.items():
        rows.add_row(key, value)
    invocation.show(values, rows if values else "no keys")


@command.command("delete", short_help="Delete a key.")
@click.argument("key")
@click.pass_obj
def delete(invocation: Invocation, key: str) -> None:
    """Delete KEY, if it has a value."""
    with invocation.connect() as client:
        deleted = client.delete_config(key)
    invocation.show({"key": key, "deleted": deleted}, f"deleted {key}" if deleted else f"{key} had no value")
