"""``fila-cluster demo``."""

import os
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict
from typing import TYPE_CHECKING

import click

from fila_cluster import Client
from fila_cluster.cli.shared.invocation import Invocation
from fila_cluster.cli.shared.tables import table
from fila_cluster.run.demo import Tour, tour

if TYPE_CHECKING:
    from rich.console import RenderableType


@click.command()
@click.pass_obj
def demo_command(invocation: Invocation, /) -> None:
    """Show in some seconds what the broker does: fair delivery, a limit that holds, a message that fails and comes back.

    Needs nothing that runs: without --endpoint and FILA_ENDPOINT it is a broker in this process, on a temporary directory.
    With one of them the tour is on that cluster, on a queue of its own, which is removed in the end.
    """
    with _client(invocation) as client:
        seen = tour(client)
    invocation.show(asdict(seen), *_shown(seen))


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
