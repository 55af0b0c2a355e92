"""``fila-cluster spark drain``."""

from typing import TYPE_CHECKING

import click

from fila_cluster.cli.shared.invocation import Invocation
from fila_cluster.cli.spark.load import FORMATS
from fila_cluster.cli.spark.running import bar, plainly, spark, spark_flags

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from fila_cluster import Client
    from fila_cluster.spark.pipelines.drain import Drained, DrainJob

ROWS_PER_BATCH = 100_000


@click.command()
@click.argument("queue")
@click.option("--to", required=True, metavar="DIR", help="A new directory, or that of an earlier drain, which it continues.")
@click.option("--format", "format_name", type=click.Choice(FORMATS), default="parquet", help="Default: parquet.")
@click.option(
    "--partition-by", multiple=True, metavar="COLUMN", help="A folder for each value, e.g. fairness_key; may be repeated."
)
@click.option("--limit", type=click.IntRange(min=1), metavar="N", help="At most N messages. Default: all that are there now.")
@click.option(
    "--rows-per-batch",
    type=click.IntRange(min=1),
    default=ROWS_PER_BATCH,
    metavar="N",
    help=f"Messages that are leased, written and acknowledged together. Default: {ROWS_PER_BATCH:,}.",
)
@click.option(
    "--checkpoint", metavar="DIR", help="Where Spark keeps its progress. Default: _checkpoint in the --to directory."
)
@spark_flags
@click.pass_obj
def drain_command(
    invocation: Invocation,
    queue: str,
    to: str,
    format_name: str,
    partition_by: tuple[str, ...],
    limit: int | None,
    rows_per_batch: int,
    checkpoint: str | None,
    master: str | None,
    verbose: bool,
) -> None:
    """Take the messages that QUEUE holds now into files, and acknowledge them once they are written.

    QUEUE may be a pattern: 'orders*'. If it is stopped or killed, the same command continues: each message is in the files
    once. Messages that may not be delivered now (delayed, throttled, paused, leased to others) stay in the queue.
    """
    with plainly():
        from fila_cluster.spark.pipelines.drain import DrainJob, check_output, waiting  # noqa: PLC0415 # needs pyspark

        plan = DrainJob(queue, to, format_name, partition_by, limit, rows_per_batch, checkpoint)
        check_output(plan)
        with invocation.connect() as client:
            pending = waiting(client, queue)
            with spark("drain", master, verbose=verbose) as running:
                drained = _drain(running, plan, client, min(limit or pending, pending))
            left = waiting(client, queue)
    text = f"{drained.rows:,} rows from {queue} to {to} in {drained.seconds:.1f} s, {drained.rows_per_second:,.0f} a second"
    shown = {**_fields(drained), "pending": left, "queue": queue, "to": to, "format": format_name}
    invocation.show(shown, f"{text}; {left:,} pending" if left else text)


def _drain(running: "SparkSession", plan: "DrainJob", client: "Client", expected: int) -> "Drained":
    from fila_cluster.spark.pipelines.drain import drain  # noqa: PLC0415 # needs pyspark

    with bar() as progress:
        task = progress.add_task(f"drain {plan.queue}", total=expected or None, rows="0")
        try:
            return drain(running, plan, client, lambda rows: progress.update(task, completed=rows, rows=f"{rows:,}"))
        except KeyboardInterrupt:
            raise click.ClickException("stopped: the same command continues from here, within ten minutes") from None


def _fields(drained: "Drained") -> dict[str, float]:
    return {
        "rows": drained.rows,
        "batches": drained.batches,
        "seconds": round(drained.seconds, 3),
        "rows_per_second": round(drained.rows_per_second, 1),
    }
