"""``fila-cluster queue inspect``."""

from typing import TYPE_CHECKING

import click

from fila_cluster.cli.session import Session
from fila_cluster.cli.tables import flagged, table
from fila_cluster.figures import aged, counted

if TYPE_CHECKING:
    from rich.table import Table

    from fila_cluster.client.views import QueueStats

KEYS_SHOWN = 30


@click.command()
@click.argument("name")
@click.pass_obj
def command(session: Session, name: str) -> None:
    """Show the queue NAME, its fairness keys and the token buckets that its messages draw on."""
    with session.connect() as client:
        stats = client.queue_stats(name)
    title = flagged(f"{stats.name} is paused", good=False) if stats.paused else stats.name
    throttles = ("", _throttles(stats)) if stats.throttles else ()
    keys = ("", _keys(stats)) if stats.keys else ()
    hidden = len(stats.keys) - KEYS_SHOWN
    more = [f"… and {hidden:,} more keys; --json shows all"] if hidden > 0 else []
    session.show(stats, title, _summary(stats), *throttles, *keys, *more)


def _summary(stats: "QueueStats") -> "Table":
    rows = table("", "#now", "", "#since its shard started")
    now = {
        "pending": counted(stats.pending),
        "in flight": counted(stats.in_flight),
        "delayed": counted(stats.delayed),
        "consumers": counted(stats.consumers),
        "oldest pending": aged(stats.oldest_pending_age) if stats.pending else "–",
        "shard": str(stats.shard),
    }
    since = {
        "enqueued": stats.enqueued,
        "delivered": stats.delivered,
        "acked": stats.acked,
        "nacked": stats.nacked,
        "leases expired": stats.expired,
        "dead-lettered": stats.dead_lettered,
    }
    for (name, text), (counter, number) in zip(now.items(), since.items(), strict=True):
        rows.add_row(name, text, counter, counted(number))
    return rows


def _keys(stats: "QueueStats") -> "Table":
    rows = table("fairness key", "#weight", "#pending", "#in flight", "#delayed", "#delivered", "#deficit", "")
    longest_first = sorted(stats.keys, key=lambda key: (-key.pending - key.in_flight - key.delayed, key.fairness_key))
    for key in longest_first[:KEYS_SHOWN]:
        counts = (key.weight, key.pending, key.in_flight, key.delayed, key.delivered)
        paused = flagged("paused", good=False) if key.paused else ""
        rows.add_row(key.fairness_key, *map(counted, counts), f"{key.deficit:g}", paused)
    return rows


def _throttles(stats: "QueueStats") -> "Table":
    rows = table("throttle key", "#tokens/s", "#burst", "#tokens now")
    for throttle in stats.throttles:
        rows.add_row(throttle.key, f"{throttle.rate:g}", f"{throttle.burst:g}", f"{throttle.tokens:g}")
    return rows
