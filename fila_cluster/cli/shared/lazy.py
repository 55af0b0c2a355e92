"""A group of commands that imports a command only when it runs: ``--help`` stays quick, whatever a command imports."""

from importlib import import_module
from typing import Any

import click


class LazyGroup(click.Group):
    """Subcommands by name, each with its line of help. The module of that name beside the group has it as ``command``."""

    def __init__(self, *args: Any, package: str, summaries: dict[str, str], **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._package = package
        self._summaries = summaries

    def list_commands(self, ctx: click.Context) -> list[str]:
        """Return the names, in the order given."""
        return list(self._summaries)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """Import a command."""
        if cmd_name not in self._summaries:
            return None
        command = import_module(f"{self._package}.{cmd_name}").command
        assert isinstance(command, click.Command)
        return command

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """List the commands without importing them."""
        with formatter.section("Commands"):
            formatter.write_dl(list(self._summaries.items()))
