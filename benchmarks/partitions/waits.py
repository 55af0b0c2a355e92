"""Measure how long the first message of a quiet tenant waits while all partitions of its queue are busy.

A hundred busy fairness keys have a backlog in all partitions. Eight consumers take it, each with a client of its own, and work
on each message for some milliseconds, so each of them has something to do at any time. Again and again a tenant that has
nothing in the queue enqueues one message. The time counts from the enqueue to the arrival at a consumer. That finishes its task
first, and with a prefetch those that it holds: so a queue without partitions is measured beside, in the same cluster.
"""

import asyncio
import time
from contextlib import suppress
from dataclasses import dataclass

from benchmarks.harness.clients import Work
from benchmarks.harness.fila import WAYS, Fila, asyncio_client, blocking_client
from benchmarks.harness.messages import HEAD_BYTES, Load, time_of
from benchmarks.harness.processes import Gate, together
from benchmarks.harness.report.histogram import SHOWN, Histogram, numbers
from benchmarks.harness.systems import Server
from benchmarks.harness.workload import Benchmark, Run, choice, number
from benchmarks.partitions.group import Group, Tasks
from fila_cluster import Delivery, Message
from fila_cluster.errors import QueueExistsError

KEYS = 100
WARM_UP_S = 0.5
P99_MS_MAX = 50.0
"""Of consumers whose messages in hand take less than a third of that."""
ARRIVED = "From the enqueue of a quiet tenant's first message to a consumer"
RATES = "Messages a second"


@dataclass(frozen=True)
class Scale:
    """The numbers of this benchmark."""

    quiet: int = number("Quiet tenants.")
    busy: int = number("Messages of the busy keys; at least as many as are taken meanwhile.")
    groups: str = number("Prefetch and milliseconds of work of each group of consumers.", "1:0,1:2,10:0,10:1")
    consumers: int = number("Consumers.", 8)
    partitions: str = number("Numbers of partitions, divided by commas.", "1,8")
    pause_ms: float = number("Milliseconds between two quiet tenants.", 20.0)
    workers: int = number("Workers.", 2)
    way: str = choice("How clients reach the workers.", WAYS)


class _Busy(Tasks):
    """Tasks until all of a load came. The others, whose payloads have no time, are work."""

    def __init__(self, load: Load, work_s: float) -> None:
        super().__init__(load)
        self._work_s = work_s
        self.latencies_ns = numbers()
        self.others = 0

    def begin(self, consumer: int, delivery: Delivery) -> float:
        if began := time_of(delivery.payload):
            self.latencies_ns.append(time.monotonic_ns() - began)
            super().begin(consumer, delivery)
        else:
            self.others += 1
        return self._work_s


async def _consume(gate: Gate, address: str, queue: str, load: Load, group: Group, work_s: float) -> tuple[Work, int]:
    tasks = _Busy(load, work_s)
    gate.wait()
    await group.work(address, queue, tasks)
    return Work(gate.spent(), tasks.verified(), latencies_ns=tasks.latencies_ns), tasks.others


async def _enqueue(gate: Gate, address: str, queue: str, load: Load, pause_s: float) -> None:
    async with asyncio_client(address) as client:
        await client.cluster_status()
        gate.wait()
        await asyncio.sleep(WARM_UP_S)
        for number in range(load.first, load.first + load.count):
            await asyncio.sleep(pause_s)
            payload = load.payload(number, time.monotonic_ns())
            await client.enqueue(queue, payload, fairness_key=f"quiet-{number}")


def measure(run: Run[Scale]) -> None:
    """Measure each group on each number of partitions."""
    scale = run.scale
    system = Fila(workers=scale.workers, way=scale.way)
    partitions = [int(each) for each in scale.partitions.split(",")]
    with run.serving(system) as server:
        for number, each in enumerate(
            run.rounds(1, [(group, each) for group in scale.groups.split(",") for each in partitions])
        ):
            _measure(run, system, server, *each, first=1 + number * scale.quiet)


def _measure(run: Run[Scale], system: Fila, server: Server, group: str, partitions: int, *, first: int) -> None:
    scale, queue = run.scale, f"busy-{partitions}"
    prefetch, work_ms = (int(each) for each in group.split(":"))
    load = Load(scale.quiet, HEAD_BYTES, first=first)
    _fill(server.address, queue, scale.busy, partitions)
    (work, taken), _ = together(
        (_consume, server.address, queue, load, Group(scale.consumers, prefetch, "asyncio"), work_ms / 1000),
        (_enqueue, server.address, queue, load, scale.pause_ms / 1000),
        env=system.environment(),
        precise=[1],
    )
    with blocking_client(server.address) as client:
        left = len([key for key in client.queue_stats(queue).keys if key.pending])
    assert left >= KEYS, f"only {left} of {KEYS} busy keys have a backlog in the end: let busy be more"
    run.verify(work.verified)
    found = Histogram(work.latencies_ns)
    row = f"prefetch {prefetch}, {work_ms:g} ms of work"
    column = f"{partitions} partition{'s' if partitions > 1 else ''}"
    for percentile in SHOWN[:3]:
        run.figure(ARRIVED, f"{row}, p{percentile:g}", column, "ms", found.ms(percentile))
    run.figure(ARRIVED, f"{row}, longest", column, "ms", found.max_ms)
    run.figure(RATES, row, column, "/s", taken / work.spent.seconds)
    p99 = found.ms(99)
    run.promise(f"{row}, {column}: p99 is {p99:.1f} ms, at most {P99_MS_MAX:g}", p99 <= P99_MS_MAX)


def _fill(address: str, queue: str, count: int, partitions: int) -> None:
    """Create the queue if it is not there, and let the busy keys have so many messages."""
    with blocking_client(address) as client:
        with suppress(QueueExistsError):
            client.create_queue(queue, partitions=partitions)
        missing = count - client.queue_stats(queue).pending
        payload = Load(1, HEAD_BYTES).payload(0)
        client.enqueue_many(queue, (Message(payload, fairness_key=f"busy-{each % KEYS}") for each in range(missing)))


BENCHMARK = Benchmark(
    "partition_waits", measure, tiny=Scale(20, 10_000, "1:2,10:1", 4), small=Scale(250, 300_000), full=Scale(1000, 1_500_000)
)
