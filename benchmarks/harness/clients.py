"""The work of client processes, for any system: to be run with :func:`benchmarks.harness.processes.together`.

Each of them opens a client, prepares, waits for the others at the gate, and returns what it measured and what it checked.
"""

import asyncio
import time
from array import array
from collections.abc import Coroutine, Sequence
from contextlib import aclosing
from dataclasses import dataclass, field
from typing import Any

from benchmarks.harness.messages import Check, Load, time_of
from benchmarks.harness.processes import Gate, Spent
from benchmarks.harness.report.histogram import numbers
from benchmarks.harness.report.results import Verified
from benchmarks.harness.systems import Connection, Pushed, Server, System

STALLED_S = 60.0
"""A consumer that gets nothing for so long fails, with the count of what it misses."""
WARM_UP = 50
UNSENT_MAX = 10_000
"""Messages that a paced producer has in flight at most. Their time counts from when they were to be sent."""


@dataclass
class Work:
    """What a client process did."""

    spent: Spent
    verified: Verified = field(default_factory=Verified)
    ids: int = 0
    latencies_ns: "array[int]" = field(default_factory=numbers)
    steps_s: list[float] = field(default_factory=list)
    """How long each part of a load took."""


def create(system: System, server: Server, *queues: str) -> None:
    """Make queues, from this process."""
    asyncio.run(_create(system, server.address, queues))


async def _create(system: System, address: str, queues: tuple[str, ...]) -> None:
    async with system.connect(address) as connection:
        for queue in queues:
            await connection.create(queue)


async def produce(gate: Gate, system: System, address: str, queue: str, load: Load) -> Work:
    """Send a load in bulk."""
    async with system.connect(address) as connection:
        prepared = connection.prepare(load)
        gate.wait()
        ids = await connection.send_all(queue, prepared)
        spent = gate.spent()
    return Work(spent, ids=_distinct(ids, load.count))


async def produce_parts(gate: Gate, system: System, address: str, queue: str, load: Load, part: int) -> Work:
    """Send a load in bulk, part by part: for loads that do not fit into memory. A part is prepared while no clock runs."""
    async with system.connect(address) as connection:
        gate.wait()
        work = Work(gate.spent())
        for each in load.parts(part):
            prepared = connection.prepare(each)
            began = time.monotonic()
            work.ids += _distinct(await connection.send_all(queue, prepared), each.count)
            work.steps_s.append(time.monotonic() - began)
        work.spent = gate.spent()
    return work


async def consume(gate: Gate, system: System, address: str, queue: str, load: Load) -> Work:
    """Receive and ack a load in bulk."""
    check = Check(load)
    async with system.connect(address) as connection:
        gate.wait()
        await moving(connection.drain(queue, check), check)
        spent = gate.spent()
    return Work(spent, check.verified())


async def _warm_up(connection: Connection, queue: str, load: Load) -> None:
    """Send some messages to a queue of their own, so that what a first call costs is not measured."""
    await connection.create(f"{queue}-warm-up")
    for number in range(WARM_UP):
        await connection.send(f"{queue}-warm-up", load.payload(number), load.headers)


async def send_one_by_one(gate: Gate, system: System, address: str, queue: str, load: Load, pause_s: float = 0.0) -> Work:
    """Send each message after the confirmation of the one before, and a pause. The latencies are those of the calls."""
    took = numbers()
    async with system.connect(address) as connection:
        await _warm_up(connection, queue, load)
        gate.wait()
        for number in range(load.first, load.first + load.count):
            began = time.monotonic_ns()
            await connection.send(queue, load.payload(number, began), load.headers)
            took.append(time.monotonic_ns() - began)
            if pause_s:
                await asyncio.sleep(pause_s)
        spent = gate.spent()
    return Work(spent, latencies_ns=took)


async def send_at_rate(gate: Gate, system: System, address: str, queue: str, load: Load, per_second: float) -> Work:
    """Send messages at fixed times, whatever the system does (an open loop). Needs a precise event loop.

    The latencies are from the moment when a message was to be sent to its confirmation, and its payload has this moment. So a
    system that stops for a second makes all messages of this second late, and not only the one that it stopped at.
    """
    took, under_way = numbers(), set[asyncio.Task[None]]()
    places = asyncio.Semaphore(UNSENT_MAX)

    async def send(number: int, at_ns: int) -> None:
        try:
            await connection.send(queue, load.payload(number, at_ns), load.headers)
            took.append(time.monotonic_ns() - at_ns)
        finally:
            places.release()

    async with system.connect(address) as connection:
        await _warm_up(connection, queue, load)
        gate.wait()
        first_ns = time.monotonic_ns() + 10_000_000
        for number in range(load.count):
            at_ns = first_ns + int(number * 1e9 / per_second)
            while (early_ns := at_ns - time.monotonic_ns()) > 0:
                await asyncio.sleep(early_ns / 1e9)
            await places.acquire()
            task = asyncio.create_task(send(load.first + number, at_ns))
            under_way.add(task)
            task.add_done_callback(under_way.discard)
        await asyncio.gather(*under_way)
        spent = gate.spent()
    assert len(took) == load.count, "messages were not confirmed"
    return Work(spent, latencies_ns=took)


async def follow(gate: Gate, system: System, address: str, queue: str, load: Load, ahead: int) -> Work:
    """Take messages as they are pushed, and ack each. The latencies are from the moment in the payload to the arrival."""
    check, took = Check(load), numbers()
    async with system.connect(address) as connection:
        gate.wait()
        await moving(_follow(connection.follow(queue, ahead), check, took), check)
        spent = gate.spent()
    return Work(spent, check.verified(), latencies_ns=took)


async def _follow(pushed: Pushed, check: Check, took: "array[int]") -> None:
    acks = set[asyncio.Future[None]]()
    async with aclosing(pushed):
        async for payload, ack in pushed:
            took.append(time.monotonic_ns() - time_of(payload))
            check.note([payload])
            task = asyncio.ensure_future(ack())
            acks.add(task)
            task.add_done_callback(acks.discard)
            if not check.left:
                break
        await asyncio.gather(*acks)


async def moving(work: Coroutine[Any, Any, None], check: Check) -> None:
    """Await the work of a consumer, but fail if nothing comes for long."""
    task = asyncio.create_task(work)
    received = -1
    while not task.done():
        if check.received == received:
            task.cancel()
            raise TimeoutError(f"nothing came for {STALLED_S:.0f} s: {check.verified()}")
        received = check.received
        await asyncio.wait([task], timeout=STALLED_S)
    await task


def _distinct(ids: Sequence[object], count: int) -> int:
    """Return how many ids a system gave, and fail if they are not one for each message. Systems without ids give none."""
    if ids and (len(ids) != count or len(set(ids)) != count):
        raise ValueError(f"{count} messages got {len(ids)} ids, {len(set(ids))} of them different")
    return len(ids)
