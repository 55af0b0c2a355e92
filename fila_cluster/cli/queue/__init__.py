"""``fila-cluster queue …``: the group; one module per command."""

import click

from fila_cluster.cli.lazy import LazyGroup

SUMMARIES = {
    "create": "Create a queue and its dead letter queue.",
    "delete": "Delete a queue with all its messages.",
    "list": "List queues.",
    "inspect": "Show one queue and its fairness keys.",
}


@click.group(cls=LazyGroup, package=__name__, summaries=SUMMARIES)
def command() -> None:
    """Create, delete, list and inspect queues."""
