"""A consumer: takes what comes, checks every byte of it, and acknowledges in batches."""

import asyncio
import time
from collections import defaultdict

from fila_cluster import AsyncClient, AsyncConsumer, AsyncDelivery
from fila_cluster.run.bench.latencies import Latencies
from fila_cluster.run.bench.payloads import Payloads
from fila_cluster.run.bench.seen import Seen
from fila_cluster.run.bench.workload import PREFETCH, Consumed, Task


class Consumer:
    """One child's consumer. ``count``: deliveries so far, repeated ones too."""

    def __init__(self, task: Task) -> None:
        self.count = 0
        self._task = task
        self._payloads = Payloads(task.seed, task.workload.payload_bytes, task.workload.keys)
        self._seen: defaultdict[int, Seen] = defaultdict(Seen)
        self._latencies = Latencies()
        self._held: list[AsyncDelivery] = []
        self._times_ns: list[int] = []
        self._stopping = asyncio.Event()
        self._damaged = 0
        self._wrong = ""
        self._first_ns = self._last_ns = 0

    def stop(self) -> None:
        """End the run: what is held is acknowledged first."""
        self._stopping.set()

    async def run(self, client: AsyncClient, start_ns: int) -> Consumed:
        """Take messages until asked to stop. It begins at once: ``start_ns`` is for producers."""
        cpu_s = time.process_time()
        async with client.consume(self._task.queue, prefetch=PREFETCH) as deliveries, asyncio.TaskGroup() as group:
            closing = group.create_task(self._close(deliveries))
            async for delivery in deliveries:
                if not self._held:  # the loop runs this when no further delivery is here: then nothing waits for a full batch
                    asyncio.get_running_loop().call_soon(self._settle, group, client)
                self._take(delivery)
                if len(self._held) >= self._task.workload.batch:
                    self._settle(group, client)
            self._settle(group, client)
            await closing
        return self._result(time.process_time() - cpu_s)

    async def _close(self, deliveries: AsyncConsumer) -> None:
        await self._stopping.wait()
        await deliveries.close()

    def _take(self, delivery: AsyncDelivery) -> None:
        now_ns = time.monotonic_ns()
        self._first_ns = self._first_ns or now_ns
        self.count += 1
        self._held.append(delivery)
        stamp = self._payloads.check(delivery.payload, delivery.headers)
        if stamp is None:
            self._damaged += 1
            self._wrong = self._wrong or f"{delivery.id}: {len(delivery.payload)} bytes, headers {dict(delivery.headers)}"
            return
        self._times_ns.append(now_ns - stamp.intended_ns)
        self._seen[stamp.producer].add(stamp.number)

    def _settle(self, group: asyncio.TaskGroup, client: AsyncClient) -> None:
        if self._held:
            group.create_task(self._ack(client, self._held, self._times_ns))
            self._held, self._times_ns = [], []

    async def _ack(self, client: AsyncClient, held: list[AsyncDelivery], times_ns: list[int]) -> None:
        self._latencies.add([time_ns // 1000 for time_ns in times_ns])
        await client.ack(held)
        self._last_ns = time.monotonic_ns()

    def _result(self, cpu_s: float) -> Consumed:
        return Consumed(
            seen={producer: seen.to_bytes() for producer, seen in self._seen.items()},
            received=self.count,
            damaged=self._damaged,
            wrong=self._wrong,
            first_ns=self._first_ns,
            last_ns=self._last_ns,
            cpu_s=cpu_s,
            latencies=self._latencies.counts(),
        )
