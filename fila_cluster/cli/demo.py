"""``fila-cluster demo``."""

import importlib.util
import os
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict
from typing import TYPE_CHECKING, NoReturn

import click

from fila_cluster import Client
from fila_cluster.cli.shared.invocation import Invocation, print_json
from fila_cluster.cli.shared.parameters import DURATION
from fila_cluster.cli.shared.tables import table
from fila_cluster.figures import aged
from fila_cluster.run.demo import Tour, tour

if TYPE_CHECKING:
    from rich.console import RenderableType


@click.command()
@click.option(
    "--web", is_flag=True, help="Run a cluster in a temporary directory, with programs that use it, and its dashboard."
)
@click.option("--for", "seconds", type=DURATION, default="10m", metavar="D", help="How long, with --web. Default: 10m.")
@click.pass_obj
def demo_command(invocation: Invocation, /, web: bool, seconds: float) -> None:
    """Show in some seconds what the broker does: fair delivery, a limit that holds, a message that fails and comes back.

    Needs nothing that runs: without --endpoint and FILA_ENDPOINT it is a broker in this process, on a temporary directory.
    With one of them the tour is on that cluster, on a queue of its own, which is removed in the end.

    With --web it prints the address of a dashboard on which three tenants, a limit, failures, a schedule and a queue with
    partitions are at work. It ends after the time of --for, or with Ctrl-C, and leaves nothing behind.
    """
    if web:
        _show_in_browser(invocation, seconds)
    with _client(invocation) as client:
        seen = tour(client)
    invocation.show(asdict(seen), *_shown(seen))


def _show_in_browser(invocation: Invocation, seconds: float) -> NoReturn:
    if invocation.endpoint is not None:
        raise click.UsageError("--web has a cluster of its own: leave --endpoint out")
    if importlib.util.find_spec("nicegui") is None:
        raise click.ClickException("the dashboard is not installed: pip install 'fila-cluster[dashboard]'")
    from fila_cluster.run.web_demo import WebDemo, show  # noqa: PLC0415 # only here

    def announce(demo: WebDemo) -> None:
        if invocation.as_json:
            print_json(demo)
        else:
            click.echo(_WEB.format(demo=demo, ends=aged(demo.seconds)))

    sys.exit(show(seconds, announce))


_WEB = """\
dashboard: {demo.dashboard}

  mail     acme sends 200 at a time, its provider takes 30 a second; the mail of globex and initech goes past
  dlq      an address in 25 does not exist: after two attempts its mail is a dead letter
  clicks   a queue in two partitions
  reports  a schedule, due every 5 s

Commands reach it with --endpoint {demo.endpoint}. It ends in {ends}, or with Ctrl-C, and leaves nothing behind."""


@contextmanager
def _client(invocation: Invocation) -> Iterator[Client]:
    if invocation.endpoint or os.environ.get("FILA_ENDPOINT"):
        with invocation.connect() as client:
            yield client
        return
    from fila_cluster.embedded import Broker  # noqa: PLC0415 # a cluster's client does not need it

    with (
        tempfile.TemporaryDirectory(prefix="fila-demo-") as directory,
        Broker(directory, min_free_disk_bytes=0) as broker,
        broker.client() as client,
    ):
        yield client


def _shown(seen: Tour) -> "Iterator[RenderableType]":
    yield "Fair: how many deliveries it took until a tenant's last message was delivered"
    rows = table("tenant", "#messages", "#by arrival", "#here")
    for tenant in seen.tenants:
        rows.add_row(tenant.tenant, f"{tenant.messages:,}", f"{tenant.by_arrival:,}", f"{tenant.here:,}")
    yield rows
    limit, failure = seen.limit, seen.failure
    yield ""
    yield f"Limited: {limit.rate:g} a second, {limit.burst:g} at once"
    yield f"{limit.delivered} messages in {limit.seconds:.1f} s, at most {limit.allowed} may be"
    yield f"why the next one waits: {limit.why}"
    yield ""
    yield f"Never stuck: after {failure.attempts} attempts a message is a dead letter ({failure.reason}: {failure.error})"
    yield f"redriven, it was delivered again with attempts {failure.attempts_after_redrive}"
