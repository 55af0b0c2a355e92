"""Measure the cost of a million fairness keys: a worker's memory, and the time of a restart.

    python benchmarks/keys.py [--keys 1000000]

One queue, a message of 100 bytes for each key, one worker. The worker may take 700 MiB and be ready again within 10 s. Then the messages are
received and acked, each key's in its turn.
"""

import argparse
import itertools
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

from cluster import OneCluster
from rich.console import Console
from rich.progress import track

from fila_cluster import Client, Message

PAYLOAD = bytes(100)
STEP = 50_000
RSS_MIB_MAX = 700
READY_S_MAX = 10.0
DRAINED_MAX = 100_000


def messages(first: int, last: int) -> Iterator[Message]:
    """Yield a message for each key from one number up to another."""
    return (Message(PAYLOAD, fairness_key=f"tenant-{number:013}") for number in range(first, last))


def fill(cluster: OneCluster, keys: int, console: Console) -> tuple[int, int]:
    """Enqueue a message for each key. Return the worker's resident bytes before and after."""
    with Client(cluster.endpoint, timeout=60) as client:
        client.create_queue("keys")
        empty = cluster.rss_bytes()["worker"]
        for first in track(range(0, keys, STEP), "enqueueing", console=console, transient=True):
            client.enqueue_many("keys", messages(first, min(first + STEP, keys)))
    return empty, cluster.rss_bytes()["worker"]


def drain(client: Client, keys: int) -> tuple[float, int]:
    """Receive and ack one message of each of the first keys. Return how many a second, and how many keys came out of turn."""
    start, numbers = time.monotonic(), list[int]()
    while len(numbers) < keys:
        deliveries = client.receive("keys", min(1000, keys - len(numbers)), wait=5)
        if not deliveries:
            break
        client.ack(deliveries)
        numbers += [int(each.fairness_key.removeprefix("tenant-")) for each in deliveries]
    out_of_turn = sum(one > other for one, other in itertools.pairwise(numbers)) + keys - len(set(numbers))
    return len(numbers) / (time.monotonic() - start), out_of_turn


def main() -> None:
    """Fill, restart, drain, and print the cost."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--keys", type=int, default=1_000_000)
    keys = parser.parse_args().keys
    console = Console()
    with tempfile.TemporaryDirectory(prefix="fila-keys-") as directory:
        with OneCluster(Path(directory)) as cluster:
            empty, full = fill(cluster, keys, console)
        console.print(f"{keys:,} keys with a message each: worker {full >> 20} MiB, {(full - empty) / keys:,.0f} bytes a key")
        start = time.monotonic()
        with OneCluster(Path(directory)) as cluster, Client(cluster.endpoint, timeout=60) as client:
            pending = next(info.pending for info in client.list_queues() if info.name == "keys")
            ready_s = time.monotonic() - start
            again = cluster.rss_bytes()["worker"]
            console.print(
                f"restart: answers in {ready_s:.2f} s, worker {again >> 20} MiB, {(again - empty) / keys:,.0f} bytes a key"
            )
            rate, out_of_turn = drain(client, min(keys, DRAINED_MAX))
            console.print(f"received and acked at {rate:,.0f} a second; {out_of_turn} out of turn")
            most = max(full, again, cluster.rss_bytes()["worker"]) >> 20
    kept = most <= RSS_MIB_MAX and ready_s <= READY_S_MAX and pending == keys and not out_of_turn
    console.print("within the limits" if kept else f"OVER THE LIMITS of {RSS_MIB_MAX} MiB and {READY_S_MAX:g} s")
    raise SystemExit(0 if kept else 1)


if __name__ == "__main__":
    main()
