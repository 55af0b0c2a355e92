"""The commands of ``fila-cluster`` with their arguments and options."""

from collections.abc import Iterator

import click

from fila_cluster.cli.root import root
from parts.markdown import table


def commands() -> str:
    """Return a list of all commands, then a section for each."""
    context = click.Context(root, info_name="fila-cluster")
    found = list(_walk(root, context))
    overview = table(
        ["command", "what it does"], ((f"[`{_name(each)}`](#{_anchor(each)})", _summary(each)) for each in found)
    )
    return "\n".join(
        [*overview, "", "Before the command:", "", *_options(context), *(line for each in found for line in _section(each))]
    )


def _walk(group: click.Group, context: click.Context) -> Iterator[click.Context]:
    for name in group.list_commands(context):
        command = group.get_command(context, name)
        assert command is not None
        inner = click.Context(command, info_name=name, parent=context)
        if isinstance(command, click.Group):
            yield from _walk(command, inner)
        else:
            yield inner


def _name(context: click.Context) -> str:
    return context.command_path.removeprefix("fila-cluster ").partition(" [")[0]


def _anchor(context: click.Context) -> str:
    return _name(context).replace(" ", "-")


def _summary(context: click.Context) -> str:
    return context.command.get_short_help_str(limit=200)


def _section(context: click.Context) -> Iterator[str]:
    usage = " ".join(context.command.collect_usage_pieces(context))
    paragraphs = [" ".join(each.split()) for each in (context.command.help or "").replace("\b", "").split("\n\n")]
    yield from ("", f"## {_name(context)}", "", f"`fila-cluster {_name(context)} {usage}`")
    for paragraph in paragraphs:
        yield from ("", paragraph)
    if len(options := list(_options(context))) > 2:
        yield from ("", *options)


def _options(context: click.Context) -> Iterator[str]:
    records = (
        each.get_help_record(context) for each in context.command.get_params(context) if isinstance(each, click.Option)
    )
    shown = [(f"`{flag}`", text) for flag, text in filter(None, records) if "--help" not in flag]
    return table(["option", ""], shown)
