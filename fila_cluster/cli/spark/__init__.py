"""``fila-cluster spark …``: the group, with one module per command. Spark is imported only when a command runs."""

import click

from fila_cluster.cli.root import LazyGroup

COMMANDS = {
    "pipelines": {"load": "Put the rows of files into a queue.", "drain": "Take messages out of queues into files."},
    "report": {"report": "Show a queue's failures, waiting times and shares."},
}


@click.group(cls=LazyGroup, package=__name__, modules=COMMANDS)
def spark_command() -> None:
    """Move data in and out of queues in bulk, with Apache Spark.

    Needs `pip install 'fila-cluster[spark]'` and Java 17 or later. Spark runs on this machine's cores, unless --master names
    a cluster, whose machines then need fila-cluster installed and reach the broker at the same endpoint.
    """
