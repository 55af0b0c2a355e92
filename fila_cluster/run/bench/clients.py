"""The producer and the consumer of a child process."""

import asyncio
import time
from collections import defaultdict
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Final

from fila_cluster import AsyncClient, AsyncConsumer, AsyncDelivery, Message
from fila_cluster.run.bench.latencies import Latencies, Seen
from fila_cluster.run.bench.workload import PREFETCH, Consumed, Payloads, Produced, Task

_NS: Final = 1_000_000_000
_NAP_S_MAX: Final = 0.5
"""Then it checks whether to stop."""


class BenchProducer:
    """Sends its share of a workload, and measures from the time when each message was due. ``count``: messages confirmed so
    far.

    With a rate the loop is open: a message is due at a time that does not depend on earlier answers, so a late broker delays
    the messages behind, too (no coordinated omission). Without a rate a message is due when there is room for its request.
    """

    def __init__(self, task: Task) -> None:
        self.count = 0
        self._task = task
        self._workload = task.workload
        self._payloads = Payloads(task.seed, task.workload.payload_bytes, task.workload.keys)
        self._latencies = Latencies()
        self._room = asyncio.Semaphore(task.workload.in_flight)
        self._pacer = ThreadPoolExecutor(1)  # event loops sleep in whole milliseconds
        self._last_ns = 0
        self._stopping = False

    def stop(self) -> None:
        """Send no further message."""
        self._stopping = True

    async def run(self, client: AsyncClient, start_ns: int) -> Produced:
        """Send everything from ``start_ns`` on, and wait for the answers."""
        cpu_s = time.process_time()
        await self._wait_until(start_ns)
        with self._pacer:
            async with asyncio.TaskGroup() as group:
                for numbers in self._batches():
                    if not await self._is_time_for(numbers, start_ns) or self._stopping:
                        break
                    group.create_task(self._send(client, *self._messages(numbers, start_ns)))
        return Produced(
            sent=self.count,
            first_ns=start_ns,
            last_ns=self._last_ns,
            cpu_s=time.process_time() - cpu_s,
            latencies=self._latencies.counts(),
        )

    def _batches(self) -> Iterator[range]:
        share = self._workload.share_of(self._task.number)
        for first in range(0, share, self._workload.batch):
            yield range(first, min(first + self._workload.batch, share))

    async def _is_time_for(self, numbers: range, start_ns: int) -> bool:
        """Wait until a batch's last message is due and there is room for a request; False if the time is over before."""
        end_ns = None if self._workload.duration_s is None else start_ns + round(self._workload.duration_s * _NS)
        due_ns = self._due_ns(numbers[-1], start_ns)
        if due_ns is not None:
            if end_ns is not None and due_ns > end_ns:
                return False
            await self._wait_until(due_ns)
        await self._room.acquire()
        return end_ns is None or due_ns is not None or time.monotonic_ns() < end_ns

    def _due_ns(self, number: int, start_ns: int) -> int | None:
        """Return when a message is due: the producers take turns. None without a rate."""
        if self._workload.rate_s is None:
            return None
        return start_ns + round((number * self._workload.producers + self._task.number) * _NS / self._workload.rate_s)

    async def _wait_until(self, due_ns: int) -> None:
        while (wait_ns := due_ns - time.monotonic_ns()) > 0 and not self._stopping:
            await asyncio.get_running_loop().run_in_executor(self._pacer, time.sleep, min(_NAP_S_MAX, wait_ns / _NS))

    def _messages(self, numbers: range, start_ns: int) -> tuple[list[Message], list[int]]:
        """Return messages and when they were to be sent."""
        now_ns = time.monotonic_ns()
        payloads, producer = self._payloads, self._task.number
        intended = [now_ns if (due := self._due_ns(number, start_ns)) is None else due for number in numbers]
        messages = [
            Message(payloads.make(producer, number, due_ns), payloads.headers(number), fairness_key=payloads.key(number))
            for number, due_ns in zip(numbers, intended, strict=True)
        ]
        return messages, intended

    async def _send(self, client: AsyncClient, messages: list[Message], intended_ns: list[int]) -> None:
        if len(messages) == 1:
            (message,) = messages
            await client.enqueue(self._task.queue, message.payload, message.headers, fairness_key=message.fairness_key)
        else:
            await client.enqueue_many(self._task.queue, messages)
        self._last_ns = time.monotonic_ns()
        self.count += len(messages)
        self._latencies.add([(self._last_ns - due_ns) // 1000 for due_ns in intended_ns])
        self._room.release()


class BenchConsumer:
    """Receives messages, checks every byte, and acks in batches. ``count``: deliveries so far, repeated ones too."""

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
