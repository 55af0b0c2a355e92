"""Measure whether the limit of a throttle key, shared by four queues on two workers, is held and used.

    python benchmarks/throttles.py [--seconds 5]

The key has 200 tokens a second and a burst of 20; four queues always have messages. There are four runs: undisturbed, with one worker killed
in the middle, with the other one killed, and with the rate doubled in the middle. Deliveries count at the broker's time of the lease. No
window may have more than burst + rate × its length, and the whole run must have at least 90 % of that.
"""

import argparse
import tempfile
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import psutil
from cluster import OneCluster
from rich.console import Console
from rich.table import Table

from fila_cluster import Client, Message
from fila_cluster.errors import FilaError

RATE, BURST = 200, 20
QUEUES = 4
SHARE_MIN = 0.9
SLACK = 2
"""Deliveries that two workers' clocks, a few milliseconds apart, may seem to be over the limit in a short window."""


def queues_on_both(client: Client) -> list[str]:
    """Return names of queues, half of them on each worker's shard."""
    by_shard: dict[int, list[str]] = {0: [], 1: []}
    number = 0
    while min(map(len, by_shard.values())) < QUEUES // 2:
        name = f"limited-{number}"
        number += 1
        client.create_queue(name)
        (info,) = [info for info in client.list_queues(name) if info.name == name]
        if len(by_shard[info.shard]) < QUEUES // 2:
            by_shard[info.shard].append(name)
        else:
            client.delete_queue(name)
    return [name for names in by_shard.values() for name in names]


def consume(endpoint: str, queue: str, times_ms: list[float], stop: threading.Event) -> None:
    """Ack deliveries, and note when they were leased."""
    with Client(endpoint) as client:
        while not stop.is_set():
            with suppress(FilaError):
                deliveries = client.receive(queue, 50, wait=0.2)
                times_ms.extend(delivery.leased_at.timestamp() * 1000 for delivery in deliveries)
                client.ack(deliveries)


def run(seconds: float, in_the_middle: Callable[[OneCluster, Client], None], after: float = 0.0) -> list[float]:
    """Run once on a fresh cluster. Return the times of its deliveries in order, ms since the first possible one."""
    with tempfile.TemporaryDirectory(prefix="fila-throttles-") as directory:
        with OneCluster(Path(directory), workers=2) as cluster, Client(cluster.endpoint) as client:
            queues = queues_on_both(client)
            client.set_config("throttle.provider", f"{RATE},{BURST}")
            for queue in queues:
                client.enqueue_many(
                    queue, [Message(b"x", throttle_keys=["provider"]) for _ in range(int(RATE * seconds * 2))]
                )
            times_ms: list[float] = []
            stop = threading.Event()
            consumers = [threading.Thread(target=consume, args=(cluster.endpoint, queue, times_ms, stop)) for queue in queues]
            start_ms = time.time() * 1000
            for consumer in consumers:
                consumer.start()
            time.sleep(seconds / 2)
            in_the_middle(cluster, client)
            time.sleep(max(0.0, start_ms / 1000 + seconds - time.time()))
            stop.set()
            for consumer in consumers:
                consumer.join()
    return sorted(time_ms - start_ms for time_ms in times_ms if time_ms - start_ms <= seconds * 1000)


def worst_excess(times_ms: list[float], rate: float) -> float:
    """Return by how many deliveries the worst window is over burst + rate × its length (below 0: never)."""
    worst = float("-inf")
    lowest = float("inf")  # the smallest index - rate × time so far: where the worst window begins
    for index, time_ms in enumerate(times_ms):
        drift = index - rate * time_ms / 1000
        lowest = min(lowest, drift)
        worst = max(worst, drift - lowest + 1 - BURST)
    return worst


def kill_worker(number: int) -> Callable[[OneCluster, Client], None]:
    """Kill one of the two workers; the supervisor brings it back."""

    def kill(cluster: OneCluster, _: Client) -> None:
        workers: list[psutil.Process] = cluster.processes()["worker"]
        workers[number].kill()

    return kill


def double(_: OneCluster, client: Client) -> None:
    """Change the rate."""
    client.set_config("throttle:provider:rate", str(2 * RATE))


def main() -> None:
    """Run and judge."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--seconds", type=float, default=5.0)
    seconds = parser.parse_args().seconds
    runs: list[tuple[str, float, Callable[[OneCluster, Client], None]]] = [
        ("undisturbed", 1.0, lambda *_: None),
        ("worker 0 killed", 1.0, kill_worker(0)),
        ("worker 1 killed", 1.0, kill_worker(1)),
        ("rate doubled", 1.5, double),
    ]
    table = Table("run", "deliveries", "burst + rate × t", "used", "worst window")
    good = True
    for name, factor, disturbance in runs:
        times_ms = run(seconds, disturbance)
        most = BURST + RATE * factor * seconds
        rate = RATE * (2 if factor > 1 else 1)
        excess = worst_excess(times_ms, rate)
        fine = len(times_ms) >= SHARE_MIN * most and len(times_ms) <= most + SLACK and excess <= SLACK
        good &= fine
        table.add_row(
            name,
            f"{len(times_ms)}",
            f"{most:.0f}",
            f"{len(times_ms) / most:.1%}",
            f"{excess:+.1f}",
            style="" if fine else "red",
        )
    Console().print(table)
    raise SystemExit(0 if good else 1)


if __name__ == "__main__":
    main()
