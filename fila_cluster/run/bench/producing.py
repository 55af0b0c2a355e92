"""A producer: sends its share of a workload, and measures from when each message was to be sent.

With a rate the loop is open: a message is due at a time that does not depend on earlier answers. If the broker or the
producer is late, the wait counts, also for the messages behind (no coordinated omission). Without a rate a message is due
when there is room for its request.
"""

import asyncio
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Final

from fila_cluster import AsyncClient, Message
from fila_cluster.run.bench.latencies import Latencies
from fila_cluster.run.bench.payloads import Payloads
from fila_cluster.run.bench.workload import Produced, Task

_NS: Final = 1_000_000_000
_NAP_S_MAX: Final = 0.5
"""Then it is seen whether to stop."""


class Producer:
    """One child's producer. ``count``: what the broker has confirmed so far."""

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
