"""Measure the cost of a large backlog: a worker's memory while the backlog grows, and the time of a restart.

    python benchmarks/backlog.py [--messages 1000000]

One queue, 100 fairness keys, 1 KB payloads, one worker. The worker's resident memory must not follow the backlog (at most
300 MiB), and a restart must not read it (ready within 5 s with a million pending).
"""

import argparse
import os
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

from cluster import OneCluster
from rich.console import Console
from rich.progress import track

from fila_cluster import Client, Message

PAYLOAD = os.urandom(1024)
STEP = 50_000
RSS_MIB_MAX = 300
READY_S_MAX = 5.0


def messages(count: int) -> Iterator[Message]:
    """Yield messages over 100 keys in turn."""
    return (Message(PAYLOAD, {"kind": "order"}, fairness_key=f"tenant-{number % 100}") for number in range(count))


def fill(cluster: OneCluster, total: int, console: Console) -> list[int]:
    """Enqueue ``total`` messages. Return the worker's resident bytes after each step."""
    sizes = []
    with Client(cluster.endpoint, timeout=60) as client:
        client.create_queue("backlog")
        for _ in track(range(0, total, STEP), "enqueueing", console=console, transient=True):
            client.enqueue_many("backlog", messages(STEP))
            sizes.append(cluster.rss_bytes()["worker"])
    return sizes


def main() -> None:
    """Fill, restart, receive some, and print the cost."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--messages", type=int, default=1_000_000)
    arguments = parser.parse_args()
    console = Console()
    with tempfile.TemporaryDirectory(prefix="fila-backlog-") as directory:
        with OneCluster(Path(directory)) as cluster:
            sizes = [size >> 20 for size in fill(cluster, arguments.messages, console)]
        quarter, last = sizes[len(sizes) // 4], sizes[-1]
        console.print(
            f"worker memory: {quarter} MiB at a quarter, {last} MiB at {arguments.messages:,}, {max(sizes)} at most"
        )
        start = time.monotonic()
        with OneCluster(Path(directory)) as cluster:
            ready_s = time.monotonic() - start
            with Client(cluster.endpoint, timeout=60) as client:
                pending = client.queue_stats("backlog").pending
                start = time.monotonic()
                client.ack(client.receive("backlog", 10_000))
                first_s = time.monotonic() - start
            after = cluster.rss_bytes()["worker"] >> 20
        console.print(
            f"restart: ready in {ready_s:.2f} s with {pending:,} pending; 10,000 received and acked in {first_s:.2f} s"
        )
        console.print(f"worker memory after that: {after} MiB")
    kept = max(*sizes, after) <= RSS_MIB_MAX and ready_s <= READY_S_MAX and pending == arguments.messages
    console.print("within the limits" if kept else f"OVER THE LIMITS of {RSS_MIB_MAX} MiB and {READY_S_MAX} s")
    raise SystemExit(0 if kept else 1)


if __name__ == "__main__":
    main()
