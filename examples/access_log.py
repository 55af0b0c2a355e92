"""Serve ten thousand requests of a real web site, with each client address as a tenant.

    make up                                    # in one terminal: the broker
    .venv/bin/python examples/access_log.py PATH/TO/apache_access.log

The program enqueues every line of an access log (Apache's combined format) with its client address as the fairness key, and
consumes all lines with one consumer. Then it draws the share that the busiest tenants had of the first deliveries: in the
order of arrival, as a plain queue serves them, and as fila-cluster served them.
"""

import argparse
import re
import sys
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

from rich.console import Console
from rich.progress import Progress
from rich.table import Table

from fila_cluster import Client, Message
from fila_cluster.errors import FilaError

LINE = re.compile(r'(?P<address>\S+) \S+ \S+ \[[^\]]*\] "(?:\S+ )?(?P<path>\S+)[^"]*" (?P<status>\d{3})')
BAR = 16


def messages(log: Path) -> Iterator[Message]:
    """Yield a message for each line: the address is the tenant, status and path are headers, the line is the payload."""
    with log.open("rb") as lines:
        for line in lines:
            match = LINE.match(line.decode(errors="replace"))
            if match:
                headers = {"status": match["status"], "path": match["path"]}
                yield Message(line.rstrip(b"\n"), headers, fairness_key=match["address"])


def fill(client: Client, queue: str, sent: list[Message]) -> None:
    """Make a fresh queue and put all messages into it."""
    if any(known.name == queue for known in client.list_queues(queue)):
        client.delete_queue(queue, force=True)
    client.create_queue(queue)
    client.enqueue_many(queue, sent)


def drain(client: Client, queue: str, count: int, progress: Progress) -> list[str]:
    """Receive and ack everything. Return the tenants in the order in which they were served."""
    order: list[str] = []
    task = progress.add_task("served", total=count)
    while deliveries := client.receive(queue, 500):
        client.ack(deliveries)
        order += [delivery.fairness_key for delivery in deliveries]
        progress.update(task, completed=len(order))
    return order


def served_once_first(order: list[str]) -> bool:
    """Tell whether every tenant was served once before any was served twice."""
    tenants = len(set(order))
    return len(set(order[:tenants])) == tenants


def picture(fifo: list[str], drr: list[str]) -> Table:
    """Return a table of the shares of the first round of deliveries, for the busiest tenants."""
    window = len(set(fifo))
    shares = {"fifo": Counter(fifo[:window]), "drr": Counter(drr[:window])}
    busiest = [tenant for tenant, _ in Counter(fifo).most_common(8)]
    table = Table(title=f"Share of the first {window:,} deliveries, by tenant", title_justify="left", box=None)
    table.add_column("tenant")
    table.add_column("requests", justify="right")
    table.add_column("arrival order (FIFO)", min_width=BAR + 7)
    table.add_column("fila-cluster (DRR)", min_width=BAR + 6)
    largest = max(count for share in shares.values() for count in share.values())
    for tenant in busiest:
        bars = [bar(share[tenant], largest, window) for share in shares.values()]
        table.add_row(tenant, str(Counter(fifo)[tenant]), *bars)
    waits = [first_served(order) for order in (fifo, drr)]
    table.add_row()
    table.add_row("tenants served", "", *(f"{len(share):,} of {window:,}" for share in shares.values()))
    table.add_row("last first served", "", *(f"after {max(wait.values()):,} deliveries" for wait in waits))
    return table


def bar(count: int, largest: int, window: int) -> str:
    """Return a bar and its percentage."""
    length = max(1, round(BAR * count / largest)) if count else 0
    return f"{'█' * length} {count / window:.1%}"


def first_served(order: list[str]) -> dict[str, int]:
    """Return how many deliveries came before each tenant's first."""
    first: dict[str, int] = {}
    for position, tenant in enumerate(order):
        first.setdefault(tenant, position)
    return first


def main() -> int:
    """Run the example against a running broker."""
    parser = argparse.ArgumentParser(description="Fair shares on a real access log")
    parser.add_argument("log", type=Path, help="an access log in Apache's combined format")
    parser.add_argument("--endpoint", help="the broker (default: $FILA_ENDPOINT, else tcp://127.0.0.1:5555)")
    parser.add_argument("--queue", default="access-log")
    arguments = parser.parse_args()
    console = Console()
    try:
        sent = list(messages(arguments.log))
        with Client(arguments.endpoint) as client, Progress(console=Console(stderr=True), transient=True) as progress:
            fill(client, arguments.queue, sent)
            order = drain(client, arguments.queue, len(sent), progress)
            left = client.queue_stats(arguments.queue)
    except (FilaError, OSError) as error:
        print(f"access_log: {error}", file=sys.stderr)
        return 1
    console.print(picture([message.fairness_key or "" for message in sent], order))
    once = "once before any was served twice" if served_once_first(order) else "IN NO FAIR ORDER"
    console.print(
        f"\n{len(order):,} requests in and acked · {left.depth} left · all {len(set(order)):,} tenants served {once}",
        soft_wrap=True,
    )
    return 0 if served_once_first(order) and len(order) == len(sent) and left.depth == 0 else 1


if __name__ == "__main__":
    sys.exit(main())
