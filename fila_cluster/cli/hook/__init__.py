"""``fila-cluster hook …``: the group; one module per command."""

import click

from fila_cluster.cli.lazy import LazyGroup

SUMMARIES = {
    "test": "Show what a script decides, and what it costs.",
}


@click.group(cls=LazyGroup, package=__name__, summaries=SUMMARIES)
def command() -> None:
    """Work on Lua hooks. No broker is needed."""
