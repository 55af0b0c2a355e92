"""``fila-cluster template …``."""

from collections.abc import Iterator, Mapping
from typing import Any

import click

from fila_cluster.cli.shared.invocation import Invocation, cut, print_json, table
from fila_cluster.cli.shared.parameters import given, queue_options
from fila_proto_zmq.commands import QUEUE_OPTIONS

SHOWN_MAX = 40
"""Characters of a script in the table."""


@click.group()
def template_command() -> None:
    """Set the options of queues that the first enqueue creates."""


@template_command.command("put", short_help="Set a template.")
@click.argument("pattern")
@queue_options
@click.pass_obj
def put(invocation: Invocation, /, pattern: str, **options: Any) -> None:
    """Set the template of PATTERN: a queue's name, or the beginning of names and * ("tenant-*"; quote it for the shell).

    The first enqueue to a queue that does not exist and matches creates it with these options. Of several patterns the
    longest holds. An earlier template of PATTERN is replaced; queues that exist stay as they are.
    """
    with invocation.connect() as client:
        client.put_template(pattern, **given(options))
    invocation.show({"pattern": pattern}, f"put {pattern}")


@template_command.command("get", short_help="Show a template.")
@click.argument("pattern")
@click.pass_obj
def get(invocation: Invocation, pattern: str) -> None:
    """Show the options of the template of PATTERN. A pattern without one is a failure."""
    with invocation.connect() as client:
        options = client.get_template(pattern)
    if options is None:
        raise click.ClickException(f"there is no template of {pattern}")
    if invocation.as_json:
        print_json({"pattern": pattern, "options": options})
        return
    rows = table("option", "value")
    for flag, text in _flags(options):
        rows.add_row(flag, text)
    invocation.show(None, rows if options else f"{pattern}: all options have their defaults")


@template_command.command("list", short_help="List templates.")
@click.option("--prefix", default="", metavar="P", help="Only patterns that start with P.")
@click.pass_obj
def list_(invocation: Invocation, prefix: str) -> None:
    """List templates with their options."""
    with invocation.connect() as client:
        templates = client.list_templates(prefix)
    rows = table("pattern", "options")
    for pattern, options in templates.items():
        rows.add_row(pattern, _line(options))
    shown = [{"pattern": pattern, "options": options} for pattern, options in templates.items()]
    invocation.show(shown, rows if templates else "no templates")


@template_command.command("delete", short_help="Delete a template.")
@click.argument("pattern")
@click.pass_obj
def delete(invocation: Invocation, pattern: str) -> None:
    """Delete the template of PATTERN, if there is one. The queues that it made stay."""
    with invocation.connect() as client:
        deleted = client.delete_template(pattern)
    text = f"deleted {pattern}" if deleted else f"there was no template of {pattern}"
    invocation.show({"pattern": pattern, "deleted": deleted}, text)


def _line(options: Mapping[str, Any]) -> str:
    """Return options on one line, with scripts cut."""
    return " ".join(f"--{flag} {cut(' '.join(text.split()), SHOWN_MAX)}" for flag, text in _flags(options)) or "–"


def _flags(options: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    """Yield options as the command line takes them."""
    for option in QUEUE_OPTIONS.values():
        value = options.get(option.name)
        if value is not None:
            yield option.flag, f"{value:g}s" if option.kind == "duration" else str(value)
