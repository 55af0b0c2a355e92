"""``fila-cluster redrive``."""

import click

from fila_cluster.cli.shared.invocation import Invocation


@click.command()
@click.argument("dlq")
@click.option("--count", type=click.IntRange(min=0), default=0, metavar="N", help="At most N messages. Default: all of them.")
@click.option("--key", metavar="K", help="Only dead letters of this fairness key.")
@click.pass_obj
def command(invocation: Invocation, dlq: str, count: int, key: str | None) -> None:
    """Send the pending messages of the dead letter queue DLQ back to the queues they came from."""
    with invocation.connect() as client:
        redriven = client.redrive(dlq, count, fairness_key=key)
    invocation.show({"redriven": redriven}, f"redriven: {redriven:,}")
