"""``fila-cluster config …``: the group; one module per command."""

import click

from fila_cluster.cli.lazy import LazyGroup

SUMMARIES = {
    "set": "Set a key.",
    "get": "Print a key's value.",
    "list": "List keys and values.",
    "delete": "Delete a key.",
}


@click.group(cls=LazyGroup, package=__name__, summaries=SUMMARIES)
def command() -> None:
    """Read and change the runtime config of a running cluster: throttle rates, quotas, and what hooks read."""
