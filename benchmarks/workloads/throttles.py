"""Measure whether the limit of a throttle key, shared by four queues on two workers, is held and used.

The key has 200 tokens a second and a burst of 20; four queues always have messages. There are four runs: undisturbed, with
one worker killed in the middle, with the other one killed, and with the rate doubled in the middle. Deliveries count at the
broker's time of the lease. No window may have more than burst + rate × its length, and the whole run must have at least 90 %
of that.
"""

import asyncio
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass

import psutil

from benchmarks.harness.cluster import OneCluster
from benchmarks.harness.fila import Fila, blocking_client, one_queue_on_each
from benchmarks.harness.processes import ClientProcess, Gate
from benchmarks.harness.workload import Benchmark, Run, number
from fila_cluster import Client, Message
from fila_cluster.errors import FilaError

RATE, BURST = 200, 20
WORKERS = 2
SHARE_MIN = 0.9
SLACK = 2
"""Deliveries that two workers' clocks, a few milliseconds apart, may seem to be over the limit in a short window."""
TABLES = ("Deliveries", "Share of burst + rate × time", "Deliveries over the limit in the worst window")

Disturbance = Callable[[OneCluster, Client], None]


@dataclass(frozen=True)
class Scale:
    """The numbers of this benchmark."""

    seconds: float = number("Seconds of each run.")


async def consume(gate: Gate, address: str, queues: list[str], seconds: float) -> list[float]:
    """Receive and ack from all queues for so long. Return the times of the leases in ms of the wall clock."""
    stop = threading.Event()
    times_ms: list[float] = []

    def take(queue: str) -> None:
        with blocking_client(address) as client:
            while not stop.is_set():
                with suppress(FilaError):
                    deliveries = client.receive(queue, 50, wait=0.2)
                    times_ms.extend(delivery.leased_at.timestamp() * 1000 for delivery in deliveries)
                    client.ack(deliveries)

    threads = [threading.Thread(target=take, args=(queue,)) for queue in queues]
    gate.wait()
    for thread in threads:
        thread.start()
    await asyncio.sleep(seconds)
    stop.set()
    for thread in threads:
        thread.join()
    return times_ms


def one_run(run: Run[Scale], in_the_middle: Disturbance) -> list[float]:
    """Run once on a fresh cluster. Return the times of its deliveries in order, ms since the first possible one."""
    seconds = run.scale.seconds
    with run.serving(Fila(workers=WORKERS)) as cluster, blocking_client(cluster.address) as client:
        queues = one_queue_on_each(cluster.address, WORKERS, "one") + one_queue_on_each(cluster.address, WORKERS, "two")
        client.set_config("throttle.provider", f"{RATE},{BURST}")
        for queue in queues:
            client.enqueue_many(queue, [Message(b"x", throttle_keys=["provider"])] * int(RATE * seconds * 2))
        consumer = ClientProcess(consume, cluster.address, queues, seconds)
        try:
            consumer.await_ready()
            start_ms = time.time() * 1000
            consumer.go()
            time.sleep(seconds / 2)
            in_the_middle(cluster, client)
            times_ms = consumer.result()
        finally:
            consumer.end()
    return sorted(time_ms - start_ms for time_ms in times_ms if time_ms <= start_ms + 1000 * seconds)


def worst_excess(times_ms: list[float], rate: float) -> float:
    """Return by how many deliveries the worst window exceeds burst + rate × its length (negative: none does)."""
    worst = float("-inf")
    lowest = float("inf")  # the smallest index - rate × time so far: where the worst window begins
    for index, time_ms in enumerate(times_ms):
        drift = index - rate * time_ms / 1000
        lowest = min(lowest, drift)
        worst = max(worst, drift - lowest + 1 - BURST)
    return worst


def kill_worker(index: int) -> Disturbance:
    """Kill one of the two workers; the supervisor brings it back."""

    def kill(cluster: OneCluster, _: Client) -> None:
        workers: list[psutil.Process] = cluster.processes()["worker"]
        workers[index].kill()

    return kill


def double(_: OneCluster, client: Client) -> None:
    """Change the rate."""
    client.set_config("throttle:provider:rate", str(2 * RATE))


RUNS: dict[str, tuple[float, Disturbance]] = {
    "undisturbed": (1.0, lambda *_: None),
    "worker 0 killed": (1.0, kill_worker(0)),
    "worker 1 killed": (1.0, kill_worker(1)),
    "rate doubled": (1.5, double),
}


def measure(run: Run[Scale]) -> None:
    """Run and judge."""
    for name, (factor, disturbance) in RUNS.items():
        times_ms = one_run(run, disturbance)
        most = BURST + RATE * factor * run.scale.seconds
        rate = RATE * (2 if factor > 1 else 1)
        excess = worst_excess(times_ms, rate) if times_ms else 0.0
        share = len(times_ms) / most
        for table, value in zip(TABLES, (len(times_ms), share, max(0.0, excess)), strict=True):
            run.figure(table, name, "fila-cluster", "", value)
        held = len(times_ms) <= most + SLACK and excess <= SLACK
        run.promise(f"{name}: no window has more than burst + rate × its length", held)
        run.promise(f"{name}: {share:.1%} of the limit is used, at least {SHARE_MIN:.0%}", share >= SHARE_MIN)


BENCHMARK = Benchmark("throttles", measure, Scale(1.0), Scale(5.0), Scale(20.0))
