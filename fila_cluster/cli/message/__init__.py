"""``fila-cluster message …``: the group; one module per command."""

import click

from fila_cluster.cli.lazy import LazyGroup

SUMMARIES = {"cancel": "Remove a message that waits in a queue."}


@click.group(cls=LazyGroup, package=__name__, summaries=SUMMARIES)
def command() -> None:
    """Do something about single messages."""
