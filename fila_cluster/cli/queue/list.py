"""``fila-cluster queue list``."""

import click

from fila_cluster.cli.session import Session
from fila_cluster.cli.tables import flagged, table
from fila_cluster.figures import counted


@click.command()
@click.option("--prefix", default="", metavar="P", help="Only queues whose names start so.")
@click.option("--active", is_flag=True, help="Only queues with messages.")
@click.pass_obj
def command(session: Session, prefix: str, active: bool) -> None:
    """List queues, dead letter queues included."""
    with session.connect() as client:
        queues = client.active_queues(prefix) if active else client.list_queues(prefix)
    rows = table("queue", "#pending", "#in flight", "#delayed", "#consumers", "#shard", "")
    for queue in queues:
        counts = (queue.pending, queue.in_flight, queue.delayed, queue.consumers)
        paused = flagged("paused", good=False) if queue.paused else ""
        rows.add_row(queue.name, *map(counted, counts), str(queue.shard), paused)
    session.show(queues, rows if queues else "no queues")
