"""``fila-cluster throttle …``."""

from typing import Any

import click

from fila_cluster.cli.shared.invocation import Invocation
from fila_cluster.cli.shared.tables import throttle_table

NONE = "none"
"""The value that deletes a limit."""


@click.group()
def throttle_command() -> None:
    """Limit throttle keys: tokens a second, and messages that are leased together."""


@throttle_command.command("list", short_help="List throttle keys that have limits.")
@click.option("--prefix", default="", metavar="P", help="Only keys that start with P.")
@click.pass_obj
def list_(invocation: Invocation, prefix: str) -> None:
    """List the throttle keys that have limits, with what waits for them in the whole cluster."""
    with invocation.connect() as client:
        throttles = client.list_throttles(prefix)
    invocation.show(throttles, throttle_table(throttles) if throttles else "no throttle key has a limit")


@throttle_command.command(
    "set", short_help="Set limits of a throttle key.", context_settings={"ignore_unknown_options": True}
)
@click.argument("key")
@click.option("--rate", metavar="R", help="Tokens a second.")
@click.option("--burst", metavar="B", help="Tokens that the bucket can hold. Without it: the rate, at least 1.")
@click.option("--concurrency", metavar="N", help="Messages with this key that may be leased together.")
@click.option("--rate-min", metavar="R", help="The least to which deferrals lower the rate.")
@click.pass_obj
def set_(invocation: Invocation, /, key: str, **limits: str | None) -> None:
    """Set the given limits of throttle key KEY in the whole cluster. The others stay; `none` deletes one."""
    given: dict[str, Any] = {name: None if text == NONE else text for name, text in limits.items() if text is not None}
    if not given:
        raise click.UsageError("give at least one limit, such as --rate 10")
    with invocation.connect() as client:
        client.set_throttle(key, **given)
    invocation.show({"key": key, **given}, f"{key}: {', '.join(f'{name} {text or NONE}' for name, text in given.items())}")


@throttle_command.command("delete", short_help="Delete the limits of a throttle key.")
@click.argument("key")
@click.pass_obj
def delete(invocation: Invocation, key: str) -> None:
    """Delete all limits of throttle key KEY, if it has some."""
    with invocation.connect() as client:
        deleted = client.delete_throttle(key)
    invocation.show({"key": key, "deleted": deleted}, f"deleted {key}" if deleted else f"{key} had no limits")
