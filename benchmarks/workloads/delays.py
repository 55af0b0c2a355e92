"""Measure how late delayed messages come, also over a kill -9, and what a million delayed messages cost while none is due.

On an idle machine a message must come within 100 ms of its due time, also one that an ``on_failure`` hook has delayed and
whose broker was killed meanwhile. A million messages that are not due must cost no CPU time; then they must come in the order
of their times.
"""

import os
import signal
import time
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path

from benchmarks.harness.fila import Fila, blocking_client
from benchmarks.harness.report.results import Verified
from benchmarks.harness.workload import Benchmark, Run, number
from fila_cluster import Client, Message

LATE_MS_MAX = 100
CPU_SHARE_MAX = 0.02
"""Of one core: for pulses and the supervisor's checks."""
AHEAD_MS = 1000
"""A message must not come before one that was due so much earlier."""
QUEUE = "later"
TABLE = "Delayed messages"


@dataclass(frozen=True)
class Scale:
    """The numbers of this benchmark."""

    messages: int = number("Delayed messages.")
    crashes: int = number("Kills of all processes.")
    idle_s: float = number("Seconds in which the CPU time of waiting is measured.", 5.0)


def lateness_over_a_crash(directory: Path, system: Fila) -> float:
    """Return how many milliseconds after its due time a message comes that a hook delayed by 3 s, when all processes are
    killed meanwhile."""
    hook = "function on_failure(msg) return {action = 'retry', delay_ms = 3000} end"
    with system.serve(directory) as cluster, blocking_client(cluster.address) as client:
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
    step = next(each for each in (7919, 7927, 7933) if count % each)
    for number_ in range(count):
        place = number_ * step % count
        yield Message(b"%d" % place, deliver_at=due + timedelta(milliseconds=place // 10))


def receive_all(client: Client, total: int) -> tuple[Verified, int]:
    """Receive and ack everything. Return how many messages came more than a second before one that was due earlier, too."""
    places: list[int] = []
    latest = out_of_order = 0
    while len(places) < total:
        deliveries = client.receive(QUEUE, 5000, wait=5)
        if not deliveries:
            break
        for delivery in deliveries:
            place = int(delivery.payload)
            out_of_order += place < latest - 10 * AHEAD_MS
            latest = max(latest, place)
            places.append(place)
        client.ack(deliveries)
    different = len(set(places))
    return Verified(total, len(places), total - different, len(places) - different, 0), out_of_order


def measure(run: Run[Scale]) -> None:
    """Measure and judge."""
    system = Fila()
    with run.directory() as directory:
        late = [lateness_over_a_crash(directory / str(number_), system) for number_ in range(run.scale.crashes)]
    run.figure(TABLE, "delayed by a hook, over kill -9: late by", system.name, "ms", *late)
    run.promise(
        f"over kill -9 a message is {max(late):.0f} ms late, at most {LATE_MS_MAX}",
        -1 <= min(late) <= max(late) <= LATE_MS_MAX,
    )
    _many(run, system)


def _many(run: Run[Scale], system: Fila) -> None:
    total = run.scale.messages
    with run.serving(system) as cluster, blocking_client(cluster.address) as client:
        client.create_queue(QUEUE)
        due = datetime.now(UTC) + timedelta(seconds=5 + run.scale.idle_s + total / 10_000)
        start = time.monotonic()
        client.enqueue_many(QUEUE, delayed(total, due))
        run.figure(TABLE, "enqueued", system.name, "/s", total / (time.monotonic() - start))
        time.sleep(min(2.0, run.scale.idle_s))
        before, start = cluster.cpu_seconds()["worker"], time.monotonic()
        time.sleep(run.scale.idle_s)
        share = (cluster.cpu_seconds()["worker"] - before) / (time.monotonic() - start)
        run.figure(TABLE, "CPU time while none is due", system.name, "% of a core", 100 * share)
        run.figure(TABLE, "memory of the worker", system.name, "MiB", cluster.rss_bytes()["worker"] >> 20)
        time.sleep(max(0.0, (due - datetime.now(UTC)).total_seconds()))
        verified, out_of_order = receive_all(client, total)
    run.figure(TABLE, "out of order by more than a second", system.name, "", out_of_order)
    run.verify(verified)
    run.promise(
        f"{total:,} messages that wait take {share:.1%} of a core, at most {CPU_SHARE_MAX:.0%}", share <= CPU_SHARE_MAX
    )
    run.promise(
        f"{out_of_order} messages came before one that was due more than a second earlier, none may", out_of_order == 0
    )


BENCHMARK = Benchmark("delays", measure, Scale(2_000, 1, 0.5), Scale(100_000, 3), Scale(1_000_000, 5))
