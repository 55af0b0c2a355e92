"""Measure how late delayed messages come, also over a kill -9, and what a million delayed messages cost while none is due.

    python benchmarks/due_times.py [--messages 1000000] [--crashes 3]

On an idle machine a message must come within 100 ms of its due time, also one that an ``on_failure`` hook has delayed and whose
broker was killed meanwhile. A million messages that are not due must cost no CPU; then they must come in the order of their times.
"""

import argparse
import os
import signal
import tempfile
import time
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path

from cluster import OneCluster
from rich.console import Console

from fila_cluster import Client, Message

LATE_MS_MAX = 100
CPU_SHARE_MAX = 0.02
"""Of one core: for pulses and the supervisor's checks."""
STEP = 20_000
IDLE_S = 5.0


def lateness_over_a_crash(directory: Path) -> float:
    """Return how many milliseconds after its due time a message comes that a hook delayed by 3 s, when all processes are killed meanwhile."""
    hook = "function on_failure(msg) return {action = 'retry', delay_ms = 3000} end"
    with OneCluster(directory) as cluster, Client(cluster.endpoint, timeout=30) as client:
        client.create_queue("delayed", on_failure=hook)
        client.enqueue("delayed", b"later")
        (delivery,) = client.receive("delayed", wait=5)
        due = time.time() + 3.0
        delivery.nack("not now")
        for processes in cluster.processes().values():
            for process in processes:
                os.kill(process.pid, signal.SIGKILL)
        with client.consume("delayed") as deliveries:  # rides through the restart
            again = next(iter(deliveries))
            lateness_ms = (again.leased_at.timestamp() - due) * 1000
            again.ack()
    return lateness_ms


def delayed(count: int, due: datetime) -> Iterator[Message]:
    """Yield messages that are due a tenth of a millisecond after each other, in random order."""
    for number in range(count):
        place = number * 7919 % count
        yield Message(b"%d" % place, deliver_at=due + timedelta(milliseconds=place // 10))


def main() -> None:
    """Measure and judge."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--messages", type=int, default=1_000_000)
    parser.add_argument("--crashes", type=int, default=3)
    arguments = parser.parse_args()
    total = arguments.messages
    console = Console()
    with tempfile.TemporaryDirectory(prefix="fila-due-") as directory:
        late_ms = [lateness_over_a_crash(Path(directory) / f"crash-{number}") for number in range(arguments.crashes)]
        console.print(f"delayed by a hook, over kill -9: {', '.join(f'{each:.0f}' for each in late_ms)} ms late")
        with OneCluster(Path(directory) / "million") as cluster, Client(cluster.endpoint, timeout=60) as client:
            client.create_queue("later")
            due = datetime.now(UTC) + timedelta(seconds=5 + total / 10_000)
            start = time.monotonic()
            client.enqueue_many("later", delayed(total, due))
            console.print(f"{total:,} delayed messages in at {total / (time.monotonic() - start):,.0f}/s")
            time.sleep(2)
            before, start = cluster.cpu_seconds()["worker"], time.monotonic()
            time.sleep(IDLE_S)
            share = (cluster.cpu_seconds()["worker"] - before) / (time.monotonic() - start)
            rss_mib = cluster.rss_bytes()["worker"] >> 20
            console.print(f"while none is due: {share:.1%} of a core, {rss_mib} MiB")
            time.sleep(max(0.0, (due - datetime.now(UTC)).total_seconds()))
            places, out_of_order = receive_all(client, total)
            console.print(f"{len(places):,} came, {out_of_order:,} of them before one that was due more than 1 s earlier")
    good = max(late_ms) <= LATE_MS_MAX and min(late_ms) >= -1 and share <= CPU_SHARE_MAX and out_of_order == 0
    console.print("within the limits" if good and len(set(places)) == total else "OVER THE LIMITS")
    raise SystemExit(0 if good and len(set(places)) == total else 1)


def receive_all(client: Client, total: int) -> tuple[list[int], int]:
    """Receive and ack everything in batches. Return how many messages came more than a second before one that was due earlier."""
    places: list[int] = []
    latest = out_of_order = 0
    while len(places) < total:
        deliveries = client.receive("later", 5000, wait=5)
        for delivery in deliveries:
            place = int(delivery.payload)
            out_of_order += place < latest - 10_000
            latest = max(latest, place)
            places.append(place)
        client.ack(deliveries)
    return places, out_of_order


if __name__ == "__main__":
    main()
