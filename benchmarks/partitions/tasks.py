"""Measure whether all consumers of a queue with 8 partitions are busy, and none holds a message that another could work on.

Eight consumers with a prefetch of 1 work on tasks of a second. In the first case all partitions have a backlog, in the second
one a single partition has it all, and in the third one a message comes to a random partition just before one is needed, so
most partitions are empty at any time. A consumer is busy while it works on a task; it should be for 95 % of the time. It holds
two messages if the broker leased one to it before it had acked the other one: that may never be.
"""

import asyncio
import random
import time
from dataclasses import dataclass
from typing import Any

from benchmarks.harness.fila import WAYS, Fila, asyncio_client, blocking_client
from benchmarks.harness.messages import HEAD_BYTES, Load
from benchmarks.harness.processes import Gate, together
from benchmarks.harness.report.results import Verified
from benchmarks.harness.systems import Server
from benchmarks.harness.workload import Benchmark, Run, choice, number
from benchmarks.partitions.group import KINDS, Group, Tasks
from fila_cluster import Delivery, Message

CASES = ("all partitions have a backlog", "one partition has all", "messages come one by one")
AHEAD = 2
"""Messages that wait at the beginning when they come one by one, beside one for each consumer."""
BUSY_MIN = 0.95
CLOCK_S = 0.02
"""How old the time of a lease may be: a turn of a shard has one time."""
BUSY, HELD = "Time in which consumers are busy", "Messages that were leased to a consumer with an unsettled one"


@dataclass(frozen=True)
class Scale:
    """The numbers of this benchmark."""

    tasks: int = number("Tasks of each consumer.")
    task_s: float = number("Seconds of a task.", 1.0)
    consumers: int = number("Consumers.", 8)
    partitions: int = number("Partitions.", 8)
    clients: str = number("Kinds of clients, divided by commas.", ",".join(KINDS))
    workers: int = number("Workers.", 2)
    way: str = choice("How clients reach the workers.", WAYS)


@dataclass
class _Worked:
    """What a group did. ``busy``: the share of its time; ``held``: messages that came too early."""

    verified: Verified
    busy: float
    held: int


class _Timed(Tasks):
    """Tasks of one length, whose consumers note when they acked."""

    def __init__(self, load: Load, task_s: float) -> None:
        super().__init__(load)
        self._task_s = task_s
        self._acked_at: dict[int, float] = {}
        self.held, self.began, self.ended = 0, 0.0, 0.0

    def begin(self, consumer: int, delivery: Delivery) -> float:
        self.began = self.began or time.monotonic()
        self.held += delivery.leased_at.timestamp() < self._acked_at.get(consumer, 0.0) - CLOCK_S
        super().begin(consumer, delivery)
        return self._task_s

    def end(self, consumer: int) -> None:
        self._acked_at[consumer] = time.time()
        self.ended = time.monotonic()


async def _consume(gate: Gate, address: str, queue: str, load: Load, group: Group, task_s: float) -> _Worked:
    tasks = _Timed(load, task_s)
    gate.wait()
    await group.work(address, queue, tasks)
    busy = load.count * task_s / (group.consumers * (tasks.ended - tasks.began))
    return _Worked(tasks.verified(), busy, tasks.held)


async def _enqueue(gate: Gate, address: str, queue: str, load: Load, first: int, pause_s: float) -> None:
    """Enqueue messages under keys of random partitions: some at once, and then one by one."""
    async with asyncio_client(address) as client:
        await client.cluster_status()
        gate.wait()
        for number, payload in enumerate(load.payloads()):
            await client.enqueue(queue, payload, fairness_key=_key(number))
            if number >= first:
                await asyncio.sleep(pause_s)


def _key(number: int) -> str:
    return f"tenant-{random.Random(number).randrange(1000)}"


def measure(run: Run[Scale]) -> None:
    """Measure each case with each kind of client."""
    scale = run.scale
    system = Fila(workers=scale.workers, way=scale.way)
    variants = [(case, kind) for case in CASES for kind in scale.clients.split(",")]
    with run.serving(system) as server:
        for number, (case, kind) in enumerate(run.rounds(1, variants, "tasks")):
            worked = _work(run.scale, system, server, f"tasks-{number}", case, kind)
            run.verify(worked.verified)
            run.figure(BUSY, case, kind, "%", 100 * worked.busy)
            run.figure(HELD, case, kind, "", worked.held)
            run.promise(
                f"{case}, {kind}: busy for {100 * worked.busy:.1f} % of the time, at least 95", worked.busy >= BUSY_MIN
            )
            run.promise(f"{case}, {kind}: {worked.held} messages beside an unsettled one, none may be", worked.held == 0)


def _work(scale: Scale, system: Fila, server: Server, queue: str, case: str, kind: str) -> _Worked:
    load = Load(scale.tasks * scale.consumers, HEAD_BYTES)
    with blocking_client(server.address) as client:
        client.create_queue(queue, partitions=scale.partitions)
        if case != CASES[2]:
            keys = ("tenant" if case == CASES[1] else _key(number) for number in range(load.count))
            pairs = zip(load.payloads(), keys, strict=True)
            client.enqueue_many(queue, [Message(payload, fairness_key=key) for payload, key in pairs])
    group = Group(scale.consumers, 1, kind)
    works: list[tuple[Any, ...]] = [(_consume, server.address, queue, load, group, scale.task_s)]
    if case == CASES[2]:
        works += [(_enqueue, server.address, queue, load, scale.consumers + AHEAD, scale.task_s / scale.consumers)]
    worked: _Worked = together(*works, env=system.environment())[0]
    return worked


BENCHMARK = Benchmark("partition_tasks", measure, tiny=Scale(4, 0.1), small=Scale(8), full=Scale(60))
