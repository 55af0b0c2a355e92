"""A group of commands that imports a command only when it runs: ``--help`` stays quick, whatever a command imports."""

from importlib import import_module
from typing import Any

import click


class LazyGroup(click.Group):
    """Subcommands by name, each with its line of help, in folders of the package.

    The module of a command's name has it as ``command``. The folder "" is the package itself.
    """

    def __init__(self, *args: Any, package: str, folders: dict[str, dict[str, str]], **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._modules = {
            name: ".".join(filter(None, (package, folder, name))) for folder, names in folders.items() for name in names
        }
        self._summaries = {name: summary for names in folders.values() for name, summary in names.items()}

    def list_commands(self, ctx: click.Context) -> list[str]:
        """Return the names, in the order given."""
        return list(self._summaries)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """Import a command."""
        if cmd_name not in self._summaries:
            return None
        command = import_module(self._modules[cmd_name]).command
        assert isinstance(command, click.Command)
        return command

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """List the commands without importing them."""
        with formatter.section("Commands"):
            formatter.write_dl(list(self._summaries.items()))
