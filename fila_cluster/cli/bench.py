"""``fila-cluster bench``."""

import math
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import click
from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn

from fila_cluster.cli.shared.invocation import Invocation
from fila_cluster.cli.shared.parameters import DURATION
from fila_cluster.run.bench.outcome import report
from fila_cluster.run.bench.running import BenchError, interruptible, queue_of_its_own, run
from fila_cluster.run.bench.workload import CLOSED_IN_FLIGHT, MESSAGES_MAX, OPEN_IN_FLIGHT, PAYLOAD_BYTES_MIN, Workload

MESSAGES = 50_000
"""Without --messages and --duration: a few seconds."""
PAYLOAD_BYTES_MAX = 256 << 20
"""The most that a client keeps. A broker's own limit, [limits] max_payload_bytes, is usually lower."""
PROCESSES_MAX = 256


def _finite(ctx: click.Context, param: click.Parameter, value: float | None) -> float | None:
    if value is not None and not math.isfinite(value):
        raise click.BadParameter(f"{value} is no rate", ctx, param)
    return value


@click.command()
@click.option(
    "--messages",
    type=click.IntRange(1, MESSAGES_MAX),
    metavar="N",
    help="Stop sending after N messages. Default: 50000; with --duration no limit.",
)
@click.option("--duration", type=DURATION, metavar="D", help="Stop sending after D: 500ms, 30s, 5m, … Default: no limit.")
@click.option(
    "--payload",
    "payload_bytes",
    type=click.IntRange(PAYLOAD_BYTES_MIN, PAYLOAD_BYTES_MAX),
    default=1024,
    metavar="BYTES",
    help="The size of each payload. Default: 1024.",
)
@click.option(
    "--batch",
    type=click.IntRange(1, 10_000),
    default=100,
    metavar="N",
    help="Messages in one request; 1: each alone. Default: 100.",
)
@click.option("--keys", type=click.IntRange(1, 1_000_000), default=1, metavar="N", help="Fairness keys, in turn. Default: 1.")
@click.option(
    "--producers", type=click.IntRange(1, PROCESSES_MAX), default=1, metavar="N", help="Processes that send. Default: 1."
)
@click.option(
    "--consumers", type=click.IntRange(1, PROCESSES_MAX), default=1, metavar="N", help="Processes that receive. Default: 1."
)
@click.option(
    "--rate",
    "rate_s",
    type=click.FloatRange(0, min_open=True),
    callback=_finite,
    metavar="R",
    help="Messages a second, of all producers together. Default: as fast as they are confirmed.",
)
@click.option(
    "--in-flight",
    type=click.IntRange(1, 100_000),
    metavar="N",
    help="Unconfirmed requests of each producer. Default: 4; with --rate 1000.",
)
@click.option("--backlog", is_flag=True, help="Receive nothing before everything is sent.")
@click.pass_obj
def bench_command(
    invocation: Invocation, /, messages: int | None, duration: float | None, in_flight: int | None, **options: Any
) -> None:
    """Measure this cluster: messages through a queue made for the run, each of them verified. No other queue is touched.

    Prints rates, percentiles of the time from enqueue to confirmation and to the consumer, and a histogram. The queue is
    removed in the end, also after Ctrl-C. A message that is lost or damaged is a failure.

    Without --rate the producers wait for the broker, and a backlog may form: then the times are those of a full queue. With
    --rate a message's time counts from when it was to be sent, also if the broker falls behind. --batch 1 --in-flight 1
    sends one message at a time.
    """
    workload = Workload(
        messages=MESSAGES if messages is None and duration is None else messages,
        duration_s=duration,
        in_flight=in_flight or (CLOSED_IN_FLIGHT if options["rate_s"] is None else OPEN_IN_FLIGHT),
        **options,
    )
    try:
        with interruptible(), invocation.connect() as client, queue_of_its_own(client) as queue, _progress(workload) as watch:
            outcome = run(client, queue, workload, watch)
    except BenchError as error:
        raise click.ClickException(" ".join(str(error).split("\n"))) from error
    invocation.show(outcome.as_json(), *report(outcome))
    if outcome.fault:
        raise click.ClickException(outcome.fault)


@contextmanager
def _progress(workload: Workload) -> Iterator[Callable[[int, int], None]]:
    """Show how far a run is on standard error, if that is a terminal."""
    console = Console(stderr=True)
    columns = (TextColumn("{task.description}"), BarColumn(), TextColumn("{task.completed:,.0f}"), TimeElapsedColumn())
    with Progress(*columns, console=console, transient=True, disable=not console.is_terminal) as progress:
        sending, receiving = (progress.add_task(name, total=workload.messages) for name in ("sent", "received"))

        def watch(sent: int, received: int) -> None:
            progress.update(sending, completed=sent)
            progress.update(receiving, completed=received)

        yield watch
