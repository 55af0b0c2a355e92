"""``fila-cluster config …``."""

import click

from fila_cluster.cli.shared.invocation import Invocation, print_json
from fila_cluster.cli.shared.tables import cut, table

SHOWN_MAX = 60
"""Characters of a value in the history's table."""


@click.group()
def config_command() -> None:
    """Read and change the runtime config of a running cluster: throttle rates, quotas, and what hooks read."""


@config_command.command("set", short_help="Set a key.", context_settings={"ignore_unknown_options": True})
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


@config_command.command("get", short_help="Print a key's value.")
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


@config_command.command("list", short_help="List keys and values.")
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


@config_command.command("delete", short_help="Delete a key.")
@click.argument("key")
@click.pass_obj
def delete(invocation: Invocation, key: str) -> None:
    """Delete KEY, if it has a value."""
    with invocation.connect() as client:
        deleted = client.delete_config(key)
    invocation.show({"key": key, "deleted": deleted}, f"deleted {key}" if deleted else f"{key} had no value")


@config_command.command("history", short_help="Show who changed what.")
@click.argument("key", required=False)
@click.option("--limit", type=int, default=20, show_default=True, metavar="N", help="The latest N changes.")
@click.pass_obj
def history(invocation: Invocation, key: str | None, limit: int) -> None:
    """Show the changes of the runtime config, or of KEY, the latest first.

    The cluster remembers the latest thousand, fewer if their values are large.
    """
    with invocation.connect() as client:
        edits = client.config_history(key, limit=limit)
    rows = table("#version", "when", "by", "key", "before", "after")
    for edit in edits:
        moment = f"{edit.at:%Y-%m-%d %H:%M:%S}"
        rows.add_row(str(edit.version), moment, edit.by or "–", edit.key, _value(edit.old), _value(edit.new))
    invocation.show(edits, rows if edits else "no changes")


@config_command.command("undo", short_help="Take a change back.")
@click.argument("version", type=int)
@click.option("--force", is_flag=True, help="Also if the key was changed since.")
@click.pass_obj
def undo(invocation: Invocation, version: int, force: bool) -> None:
    """Set the key that VERSION changed back to its value before, as a new version. `config history` shows the versions."""
    with invocation.connect() as client:
        client.undo_config(version, force=force)
    invocation.show({"version": version, "undone": True}, f"took back version {version}")


def _value(value: str | None) -> str:
    """Return a value for people, cut if it is long."""
    return "–" if value is None else cut(value, SHOWN_MAX)
