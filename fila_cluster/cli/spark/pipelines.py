"""``fila-cluster spark load`` and ``drain``."""

from typing import TYPE_CHECKING

import click

from fila_cluster.cli.shared.invocation import Invocation
from fila_cluster.cli.shared.parameters import DURATION
from fila_cluster.cli.spark.running import bar, plainly, spark, spark_flags
from fila_cluster.errors import QueueExistsError, QueueNotFoundError

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from fila_cluster import Client
    from fila_cluster.spark.pipelines.load import Loaded, LoadJob

FORMATS = ("parquet", "json", "csv", "text")


def _columns(ctx: click.Context, param: click.Parameter, values: tuple[str, ...]) -> dict[str, str]:
    if bad := [value for value in values if not all(value.partition("=")[::2])]:
        raise click.BadParameter(f"{bad[0]!r}: write it as NAME=COLUMN, for example priority=urgency", ctx, param)
    return dict(value.split("=", 1) for value in values)


@click.command()
@click.argument("path", metavar="FILE|DIR|GLOB")
@click.option("--queue", required=True, metavar="NAME", help="Where to put the rows.")
@click.option("--format", "format_name", type=click.Choice(FORMATS), help="Default: by the files' names.")
@click.option("--tenant", metavar="COLUMN", help="The column that is the fairness key.")
@click.option(
    "--tenant-pattern", metavar="REGEX", help=r"Of text files: the fairness key is what its group matches, e.g. '^(\S+)'."
)
@click.option(
    "--payload",
    metavar="COLUMN|*",
    help="The column that is the payload; * is the whole row, as JSON. Default: the line of a text file, else a column "
    "called payload if there is one, else *.",
)
@click.option(
    "--option",
    "options",
    multiple=True,
    callback=_columns,
    metavar="NAME=COLUMN",
    help="A column with another option of the messages; may be repeated: headers, weight, throttle_keys, priority, cost, "
    "delay_ms, ttl_ms, dedup_id, dedup_mode, max_attempts, queue.",
)
@click.option("--create", is_flag=True, help="Create the queue if it is not there.")
@click.option(
    "--job",
    metavar="NAME",
    help="Load each row once, however often a job of this name loads it within the dedup window, with the same --partitions. "
    "Default: every run is a job of its own, and adds all rows.",
)
@click.option(
    "--dedup-window", type=DURATION, metavar="D", help="How long the broker remembers rows. Default: the broker's setting."
)
@click.option(
    "--partitions", type=click.IntRange(min=1), metavar="N", help="Tasks to cut it into. Default: as the files are."
)
@spark_flags
@click.pass_obj
def load_command(
    invocation: Invocation,
    path: str,
    queue: str,
    format_name: str | None,
    tenant: str | None,
    tenant_pattern: str | None,
    payload: str | None,
    options: dict[str, str],
    create: bool,
    job: str | None,
    dedup_window: float | None,
    partitions: int | None,
    master: str | None,
    verbose: bool,
) -> None:
    """Put the rows of files (Parquet, JSON lines, CSV with a header, text) into a queue, in parallel.

    A row is in once, even if tasks fail and are tried again, as long as that takes no longer than the dedup window.
    """
    with plainly():
        from fila_cluster.spark.pipelines.load import (  # noqa: PLC0415 # needs pyspark
            LoadJob,
            Mapped,
            source_of,
        )

        source = source_of(path, format_name)
        mapped = Mapped(payload, tenant, tenant_pattern, options)
        mapped.check(source.format)
        plan = LoadJob(source, queue, mapped, job, dedup_window, partitions)
        with invocation.connect() as client:
            _find(client, queue, create=create)
            with spark("load", master, verbose=verbose) as running:
                loaded = _load(running, plan, client)
    text = f"{loaded.rows:,} rows into {queue} in {loaded.seconds:.1f} s, {loaded.rows_per_second:,.0f} a second"
    invocation.show({**_fields(loaded), "queue": queue}, text)


def _find(client: "Client", queue: str, *, create: bool) -> None:
    """Check that the queue exists, or create it, before Spark starts."""
    if create:
        try:
            client.create_queue(queue)
        except QueueExistsError:
            return
    try:
        client.queue_stats(queue)
    except QueueNotFoundError as error:
        raise click.ClickException(f"{error}; or add --create") from None


def _load(running: "SparkSession", plan: "LoadJob", client: "Client") -> "Loaded":
    from fila_cluster.spark.pipelines.load import load  # noqa: PLC0415 # needs pyspark

    with bar() as progress:
        task = progress.add_task(f"load into {plan.queue}", total=None, rows="0")
        return load(
            running,
            plan,
            client,
            lambda done, tasks, rows: progress.update(task, completed=done, total=tasks, rows=f"{rows:,}"),
        )


def _fields(loaded: "Loaded") -> dict[str, float]:
    return {"rows": loaded.rows, "seconds": round(loaded.seconds, 3), "rows_per_second": round(loaded.rows_per_second, 1)}


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
    shown = {**_drained_fields(drained), "pending": left, "queue": queue, "to": to, "format": format_name}
    invocation.show(shown, f"{text}; {left:,} pending" if left else text)


def _drain(running: "SparkSession", plan: "DrainJob", client: "Client", expected: int) -> "Drained":
    from fila_cluster.spark.pipelines.drain import drain  # noqa: PLC0415 # needs pyspark

    with bar() as progress:
        task = progress.add_task(f"drain {plan.queue}", total=expected or None, rows="0")
        try:
            return drain(running, plan, client, lambda rows: progress.update(task, completed=rows, rows=f"{rows:,}"))
        except KeyboardInterrupt:
            raise click.ClickException("stopped: the same command continues from here, within ten minutes") from None


def _drained_fields(drained: "Drained") -> dict[str, float]:
    return {
        "rows": drained.rows,
        "batches": drained.batches,
        "seconds": round(drained.seconds, 3),
        "rows_per_second": round(drained.rows_per_second, 1),
    }
