"""Consumers of one queue in one process, each with a client of its own: asyncio clients in one loop, or blocking ones in
threads. So the order in which they get messages is known."""

import asyncio
import time
from array import array
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

from benchmarks.harness.clients import STALLED_S
from benchmarks.harness.fila import asyncio_client, blocking_client
from benchmarks.harness.messages import NUMBER_BYTES, Check, Load
from benchmarks.harness.processes import Gate, Spent
from benchmarks.harness.report.results import Verified
from fila_cluster import Delivery

LOOK_S = 0.2
"""How long a consumer waits until it looks whether all is over."""
KINDS = ("asyncio", "blocking")


@dataclass(frozen=True)
class Group:
    """How many consumers, their prefetch and their kind of client."""

    consumers: int
    prefetch: int
    kind: str

    async def work(self, address: str, queue: str, tasks: "Tasks") -> None:
        """Consume until the tasks are over."""
        consumers = range(self.consumers)
        if self.kind == "asyncio":
            await asyncio.gather(*(self._asyncio(address, queue, tasks, each) for each in consumers))
            return
        with ThreadPoolExecutor(self.consumers) as pool:
            for done in [pool.submit(self._blocking, address, queue, tasks, each) for each in consumers]:
                done.result()

    async def _asyncio(self, address: str, queue: str, tasks: "Tasks", consumer: int) -> None:
        async with asyncio_client(address) as client, client.consume(queue, prefetch=self.prefetch) as deliveries:
            while not tasks.over():
                if (delivery := await deliveries.take(LOOK_S)) is not None:
                    if work_s := tasks.begin(consumer, delivery):
                        await asyncio.sleep(work_s)
                    client.ack_soon([delivery])
                    tasks.end(consumer)

    def _blocking(self, address: str, queue: str, tasks: "Tasks", consumer: int) -> None:
        with blocking_client(address) as client, client.consume(queue, prefetch=self.prefetch) as deliveries:
            while not tasks.over():
                if (delivery := deliveries.take(LOOK_S)) is not None:
                    if work_s := tasks.begin(consumer, delivery):
                        time.sleep(work_s)
                    client.ack_soon([delivery])
                    tasks.end(consumer)


class Tasks:
    """What consumers do until all of a load came. Subclasses say how long a task takes, and note more of it."""

    def __init__(self, load: Load) -> None:
        self.heads: list[bytes] = []
        self._leased: list[tuple[float, int, int]] = []
        self._load = load
        self._stalled: tuple[int, float] = (-1, 0.0)

    def begin(self, consumer: int, delivery: Delivery) -> float:
        """Note a delivery; return how many seconds to work on it."""
        lease = delivery._lease  # its ids increase with each turn of a shard, of which a millisecond has several
        self._leased.append((delivery.leased_at.timestamp(), lease.id, delivery._index))
        self.heads.append(delivery.payload)
        return 0.0

    def end(self, consumer: int) -> None:
        """Note that a consumer has acked its delivery."""

    def over(self) -> bool:
        """Return whether all came; fail if nothing comes for long."""
        came = len(self.heads)
        if came >= self._load.count:
            return True
        if came != self._stalled[0]:
            self._stalled = came, time.monotonic()
        if time.monotonic() - self._stalled[1] > STALLED_S:
            raise TimeoutError(f"nothing came for {STALLED_S:.0f} s: {self.verified()}")
        return False

    def numbers(self) -> "array[int]":
        """Return the numbers of the messages, as they came."""
        return array("L", (int.from_bytes(head[:NUMBER_BYTES], "big") for head in self.heads))

    def leased(self, since: float = 0.0) -> "array[int]":
        """Return the numbers of the messages that were leased since a time, as the broker leased them. In a millisecond it is
        one shard after the other."""
        numbers = self.numbers()
        return array(
            "L",
            (
                numbers[place]
                for place in sorted(range(len(numbers)), key=self._leased.__getitem__)
                if self._leased[place][0] >= since
            ),
        )

    def verified(self) -> Verified:
        """Return what came of the load."""
        check = Check(self._load)
        check.note(self.heads)
        return check.verified()


@dataclass
class Taken:
    """What a group took: the numbers of the messages as they came, and as the broker leased them."""

    spent: Spent
    verified: Verified
    order: Sequence[int]
    leased: Sequence[int]


async def take(gate: Gate, address: str, queue: str, load: Load, group: Group) -> Taken:
    """Take and ack a load as fast as it comes."""
    tasks = Tasks(load)
    gate.wait()
    await group.work(address, queue, tasks)
    return Taken(gate.spent(), tasks.verified(), tasks.numbers(), tasks.leased())
