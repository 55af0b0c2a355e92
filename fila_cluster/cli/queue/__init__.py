"""``fila-cluster queue …``: the group; one module per command."""

import click

from fila_cluster.cli.lazy import LazyGroup

SUMMARIES = {
    "create": "Create a queue and its dead letter queue.",
    "update": "Change a queue's options.",
    "delete": "Delete a queue with all its messages.",
    "list": "List queues.",
    "inspect": "Show one queue and its fairness keys.",
    "browse": "Look at a queue's messages without taking them.",
    "pause": "Stop deliveries of a queue or a fairness key.",
    "resume": "Let them go on.",
    "purge": "Remove the messages that wait in a queue.",
}


@click.group(cls=LazyGroup, package=__name__, summaries=SUMMARIES)
def command() -> None:
    """Create, change, delete, list and inspect queues."""
