"""Measure the concurrency of throttle keys: how fast a freed place is used, and what limits cost.

Freed places: fifty keys have one place each, and messages of each wait in two queues on two workers. A consumer acks some
thousand messages a second. The time is that from the call of an ack until the next message of the key arrives, from the other
shard. Half must take at most 10 ms, and 99 % at most 50 ms.

Bulk: messages are enqueued and drained, all with a throttle key that has a concurrency, beside the same without throttle keys.
At least 0.7 of the rate must be left.

Tenants: a message for each of many throttle keys. All are leased together, then acked. The memory of the worker is measured
with a concurrency for the pattern of all keys, and without. A tenant whose messages wait may take 700 bytes more with it, and
one whose messages are leased 4,000: the shard and the place bank have an account of it.
"""

import asyncio
import time
from collections.abc import Sequence
from dataclasses import dataclass

from benchmarks.harness import clients
from benchmarks.harness.cluster import OneCluster
from benchmarks.harness.fila import WAYS, Fila, asyncio_client, blocking_client, one_queue_on_each
from benchmarks.harness.messages import Load
from benchmarks.harness.processes import Gate, together
from benchmarks.harness.report.histogram import Histogram
from benchmarks.harness.report.results import Verified
from benchmarks.harness.report.spread import ratios, spread
from benchmarks.harness.workload import Benchmark, Run, choice, number
from fila_cluster import AsyncDelivery, Client, Delivery, Message

QUEUE = "places"
KEYS, WORK_S, BACKLOG = 50, 0.045, 1.5
P50_MS_MAX, P99_MS_MAX = 10.0, 50.0
PLAIN, LIMITED = "no throttle key", "a key with a concurrency"
PLACES = 1_000_000
SHARE_MIN = 0.7
PART = 1000
WAITING_BYTES_MAX, WORKING_BYTES_MAX = 700, 4000
FREED, SETTLES, RATES, SHARES, MEMORY = (
    "Freed place → next message of the key, from another shard", "Settlements", "Bulk", "Share of the rate without throttle keys",
    "Memory of the worker for a tenant",
)  # fmt: skip


@dataclass(frozen=True)
class Scale:
    """The numbers of this benchmark."""

    seconds: float = number("Seconds in which places are freed.")
    messages: int = number("Messages of a round in bulk.")
    rounds: int = number("Rounds in bulk.")
    tenants: int = number("Throttle keys under one pattern.")
    way: str = choice("How clients reach the workers.", WAYS)


# --- freed places -----------------------------------------------------------------------------------------------------


async def work(gate: Gate, address: str, queues: Sequence[str], seconds: float) -> tuple[list[int], int]:
    """Work on what comes. Return the times from an ack to the next message of a key from another queue, ns, and all acks."""
    freed: dict[str, tuple[int, str]] = {}
    took, acks = list[int](), set[asyncio.Task[None]]()
    acked = 0

    async def settle(delivery: AsyncDelivery, queue: str) -> None:
        nonlocal acked
        await asyncio.sleep(WORK_S)
        freed[delivery.throttle_keys[0]] = time.monotonic_ns(), queue
        acked += 1
        await delivery.ack()

    async def consume(queue: str) -> None:
        async with client.consume(queue, prefetch=2 * KEYS) as deliveries:
            async for delivery in deliveries:
                now_ns = time.monotonic_ns()
                freed_ns, before = freed.pop(delivery.throttle_keys[0], (0, queue))
                if before != queue:
                    took.append(now_ns - freed_ns)
                task = asyncio.create_task(settle(delivery, queue))
                acks.add(task)
                task.add_done_callback(acks.discard)

    async with asyncio_client(address) as client:
        gate.wait()
        consumers = [asyncio.create_task(consume(queue)) for queue in queues]
        await asyncio.sleep(seconds)
        for consumer in consumers:
            consumer.cancel()
        await asyncio.gather(*consumers, *acks, return_exceptions=True)
    return took, acked


def freed_places(run: Run[Scale], system: Fila) -> None:
    """Measure and judge how fast a freed place is used."""
    seconds, workers = run.scale.seconds, Fila(workers=2, way=run.scale.way)
    with run.serving(workers) as cluster, blocking_client(cluster.address) as client:
        queues = one_queue_on_each(cluster.address, 2)
        client.set_throttle("freed:*", concurrency=1)
        keys = [f"freed:{place}" for place in range(KEYS)]
        messages = [Message(b"x", fairness_key=key, throttle_keys=[key]) for key in keys]
        for queue in queues:
            client.enqueue_many(queue, messages * int(BACKLOG * seconds / WORK_S / len(queues) + 1))
        ((took, acked),) = together((work, cluster.address, queues, seconds), env=system.environment())
    histogram = Histogram(took)
    p50_ms, p99_ms = histogram.ms(50), histogram.ms(99)
    run.histogram("freed place", histogram)
    run.figure(FREED, "p50", system.name, "ms", p50_ms)
    run.figure(FREED, "p99", system.name, "ms", p99_ms)
    run.figure(SETTLES, "acks", system.name, "/s", acked / seconds)
    run.promise(f"p50 of a freed place is {p50_ms:.1f} ms, at most {P50_MS_MAX:g}", p50_ms <= P50_MS_MAX)
    run.promise(f"p99 of a freed place is {p99_ms:.1f} ms, at most {P99_MS_MAX:g}", p99_ms <= P99_MS_MAX)


# --- bulk -------------------------------------------------------------------------------------------------------------


async def enqueue(gate: Gate, system: Fila, address: str, load: Load, throttle_keys: list[str]) -> clients.Work:
    """Enqueue a load in bulk. The messages are made before the clock starts."""
    messages = [Message(payload, load.headers, throttle_keys=throttle_keys) for payload in load.payloads()]
    async with system.connect(address) as connection:
        gate.wait()
        await connection.client.enqueue_many(QUEUE, messages)
        return clients.Work(gate.spent())


def bulk_round(run: Run[Scale], system: Fila, cluster: OneCluster, kind: str) -> None:
    """Enqueue and drain once."""
    load = Load(run.scale.messages, 100)
    with blocking_client(cluster.address) as client:
        client.create_queue(QUEUE)
    keys = ["bulk"] if kind == LIMITED else []
    (sent,) = together((enqueue, system, cluster.address, load, keys), env=system.environment())
    (taken,) = together((clients.consume, system, cluster.address, QUEUE, load), env=system.environment())
    with blocking_client(cluster.address) as client:
        client.delete_queue(QUEUE, force=True)
    run.verify(taken.verified)
    run.figure(RATES, f"{kind}: enqueued", system.name, "/s", load.count / sent.spent.seconds)
    run.figure(RATES, f"{kind}: delivered and acked", system.name, "/s", load.count / taken.spent.seconds)
    run.figure(RATES, kind, system.name, "/s", load.count / (sent.spent.seconds + taken.spent.seconds))


def bulk(run: Run[Scale], system: Fila) -> None:
    """Measure and judge what a concurrency costs in bulk."""
    with run.serving(system) as cluster, blocking_client(cluster.address) as client:
        client.set_throttle("bulk", concurrency=PLACES)
        for kind in run.rounds(run.scale.rounds, (PLAIN, LIMITED), "places"):
            bulk_round(run, system, cluster, kind)
    run.figure(
        SHARES, LIMITED, system.name, "", *ratios(*(run.values(RATES, kind, system.name) for kind in (LIMITED, PLAIN)))
    )
    share = spread(run.values(SHARES, LIMITED, system.name)).median
    run.promise(f"a concurrency leaves {share:.2f} of the rate in bulk, at least {SHARE_MIN}", share >= SHARE_MIN)


# --- tenants ----------------------------------------------------------------------------------------------------------


def leased_together(client: Client, tenants: int) -> list[Delivery]:
    """Receive a message of each tenant."""
    deliveries: list[Delivery] = []
    while len(deliveries) < tenants and (got := client.receive(QUEUE, min(PART, tenants - len(deliveries)), wait=5)):
        deliveries += got
    return deliveries


def tenants_round(run: Run[Scale], system: Fila, *, limited: bool) -> tuple[float, float]:
    """Return the worker's bytes for a tenant that waits, and for one that works."""
    tenants, column = run.scale.tenants, "with a concurrency" if limited else "without"
    with run.serving(system) as cluster, blocking_client(cluster.address) as client:
        client.create_queue(QUEUE)
        if limited:
            client.set_throttle("tenant:*", concurrency=2)
        empty = cluster.rss_bytes()["worker"]
        for first in range(0, tenants, PART):
            names = [f"tenant:{tenant}" for tenant in range(first, min(tenants, first + PART))]
            client.enqueue_many(QUEUE, [Message(b"x", throttle_keys=[name]) for name in names])
        waiting = (cluster.rss_bytes()["worker"] - empty) / tenants
        deliveries = leased_together(client, tenants)
        working = (cluster.rss_bytes()["worker"] - empty) / tenants
        client.ack(deliveries)
    seen = {delivery.throttle_keys[0] for delivery in deliveries}
    run.verified.add(Verified(tenants, len(deliveries), tenants - len(seen), len(deliveries) - len(seen)))
    run.figure(MEMORY, "that waits", column, "bytes", waiting)
    run.figure(MEMORY, "that works", column, "bytes", working)
    return waiting, working


def many_tenants(run: Run[Scale], system: Fila) -> None:
    """Measure and judge the memory of tenants under one pattern."""
    without, limited = (tenants_round(run, system, limited=limited) for limited in (False, True))
    for name, most, before, after in zip(
        ("waits", "works"), (WAITING_BYTES_MAX, WORKING_BYTES_MAX), without, limited, strict=True
    ):
        more = max(0.0, after - before)
        run.promise(f"a tenant that {name} takes {more:.0f} bytes more with a concurrency, at most {most:,}", more <= most)


def measure(run: Run[Scale]) -> None:
    """Measure all of it."""
    system = Fila(way=run.scale.way)
    freed_places(run, system)
    bulk(run, system)
    many_tenants(run, system)


BENCHMARK = Benchmark(
    "places", measure, Scale(0.5, 1_000, 1, 1_000), Scale(10, 50_000, 3, 100_000), Scale(30, 200_000, 7, 100_000)
)
