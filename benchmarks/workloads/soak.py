"""Measure minutes at a share of the greatest rate: the longest turn of the worker, latencies over time, and memory.

First the greatest rate is measured: messages that are received while they are enqueued. Then batches of 100 are enqueued at fixed times, at
a share of that rate, and received. A message's time counts from the moment when it was to be sent to its arrival. Messages are made while
the clock runs, so the machine has more to do than that share. No turn of the worker may take longer than 100 ms.
"""

import asyncio
import time
from collections import deque
from dataclasses import dataclass
from itertools import groupby

from benchmarks.harness import clients
from benchmarks.harness.fila import WAYS, Fila, blocking_client
from benchmarks.harness.histogram import SHOWN, Histogram
from benchmarks.harness.messages import Check, Load, time_of
from benchmarks.harness.processes import Gate, together
from benchmarks.harness.results import Chart, Series, Verified
from benchmarks.harness.sampling import sampled
from benchmarks.harness.workload import Benchmark, Run, choice, number
from fila_proto_zmq.commands import GetMetrics

QUEUE = "soaked"
KEYS = 100
BATCH = 100
RECEIVED_AT_ONCE = 500
ACKS_IN_FLIGHT = 4
TURN_MS_MAX = 100
WINDOW_S = 10.0
TABLE = "At a share of the greatest rate"
TURNS = "Turns of the worker, by their time"


@dataclass(frozen=True)
class Scale:
    """The numbers of this benchmark."""

    minutes: float = number("Minutes.")
    capacity: int = number("Messages of the measurement of the greatest rate.")
    share: float = number("Share of the greatest rate.", 0.7)
    way: str = choice("How clients reach the workers.", WAYS)


@dataclass
class Taken:
    """What the consumer saw: all latencies, and p50 and p99 in ms by the seconds since the start."""

    verified: Verified
    histogram: str
    windows: list[tuple[float, float, float]]


async def send_batches(gate: Gate, system: Fila, address: str, load: Load, per_second: float) -> None:
    """Enqueue a batch at each of its times. Needs a precise event loop."""
    under_way = set[asyncio.Task[None]]()
    places = asyncio.Semaphore(clients.UNSENT_MAX // BATCH)

    async with system.connect(address) as connection:

        async def send(part: Load, at_ns: int) -> None:
            try:
                timed = Load(part.count, part.payload_bytes, part.keys, part.first, part.headers, at_ns)
                await connection.send_all(QUEUE, connection.prepare(timed))
            finally:
                places.release()

        gate.wait()
        first_ns = time.monotonic_ns()
        for part in load.parts(BATCH):
            at_ns = first_ns + int(part.first * 1e9 / per_second)
            while (early_ns := at_ns - time.monotonic_ns()) > 0:
                await asyncio.sleep(early_ns / 1e9)
            await places.acquire()
            task = asyncio.create_task(send(part, at_ns))
            under_way.add(task)
            task.add_done_callback(under_way.discard)
        await asyncio.gather(*under_way)


async def receive_batches(gate: Gate, system: Fila, address: str, load: Load) -> Taken:
    """Receive and ack, and note the latencies by window."""
    check, whole, window, windows = Check(load), Histogram(), Histogram(), list[tuple[float, float, float]]()
    acks: deque[asyncio.Task[None]] = deque()
    async with system.connect(address) as connection:
        gate.wait()
        start = window_began = time.monotonic()
        while check.left > 0:
            deliveries = await connection.client.receive(QUEUE, RECEIVED_AT_ONCE, wait=30)
            now_ns = time.monotonic_ns()
            payloads = [delivery.payload for delivery in deliveries]
            for at_ns, group in groupby(map(time_of, payloads)):
                times = len(list(group))
                whole.record(now_ns - at_ns, times)
                window.record(now_ns - at_ns, times)
            check.note(payloads)
            acks.append(asyncio.create_task(connection.client.ack(deliveries)))
            if len(acks) == ACKS_IN_FLIGHT:
                await acks.popleft()
            if time.monotonic() - window_began > WINDOW_S:
                windows.append((time.monotonic() - start, window.ms(50), window.ms(99)))
                window, window_began = Histogram(), time.monotonic()
        await asyncio.gather(*acks)
    return Taken(check.verified(), whole.encoded(), windows)


def greatest_rate(run: Run[Scale], system: Fila) -> float:
    """Return the messages a second from the first enqueue to the last ack."""
    load = Load(run.scale.capacity, keys=KEYS)
    with run.serving(system) as server:
        clients.create(system, server, QUEUE)
        sent, taken = together(
            (clients.produce, system, server.address, QUEUE, load),
            (clients.consume, system, server.address, QUEUE, load),
            env=system.environment(),
        )
    run.verify(taken.verified)
    rate: float = load.count / (taken.spent.ended - sent.spent.began)
    return rate


def turns(address: str) -> list[tuple[int, int]]:
    """Return how many turns the workers made so far, by the bound of their time in ns; 0: above all bounds."""
    with blocking_client(address) as client:
        histograms = [worker.turn_ns for worker in client.request(GetMetrics()).workers]
    counts = [sum(each.counts[place] for each in histograms) for place in range(len(histograms[0].counts))]
    return list(zip([*histograms[0].bounds, 0], counts, strict=True))


def measure(run: Run[Scale]) -> None:
    """Measure this broker."""
    system = Fila(way=run.scale.way)
    rate = greatest_rate(run, system)
    run.figure(TABLE, "greatest rate", system.name, "/s", rate)
    paced = run.scale.share * rate
    load = Load(max(BATCH, int(paced * run.scale.minutes * 60)), keys=KEYS)
    with run.serving(system) as server:
        clients.create(system, server, QUEUE)
        before = turns(server.address)
        with sampled(lambda: sum(server.rss_bytes().values()) / (1 << 20)) as memory:
            _, taken = together(
                (send_batches, system, server.address, load, paced),
                (receive_batches, system, server.address, load),
                env=system.environment(),
                precise=[0],
            )
        after = turns(server.address)
    run.verify(taken.verified)
    _report(run, system, paced, taken)
    run.figure(TABLE, "most memory of router and worker", system.name, "MiB", memory.most)
    run.chart(Chart("Memory of router and worker", "seconds", "MiB", [memory.series(system.name)]))
    _judge(run, system, before, after)


def _report(run: Run[Scale], system: Fila, paced: float, taken: Taken) -> None:
    whole = Histogram()
    whole.merge(taken.histogram)
    run.figure(TABLE, "rate", system.name, "/s", paced)
    for percentile in SHOWN:
        run.figure(TABLE, f"enqueue → consumer, p{percentile:g}", system.name, "ms", whole.ms(percentile))
    run.figure(TABLE, "enqueue → consumer, longest", system.name, "ms", whole.max_ms)
    run.histogram(f"{run.scale.share:.0%} of the greatest rate", whole)
    times = [window[0] for window in taken.windows]
    series = [Series(name, times, [window[place] for window in taken.windows]) for place, name in ((1, "p50"), (2, "p99"))]
    if times:
        run.chart(Chart(f"Latency in windows of {WINDOW_S:g} s", "seconds", "ms", series, y_log=True))


def _judge(run: Run[Scale], system: Fila, before: list[tuple[int, int]], after: list[tuple[int, int]]) -> None:
    made = {bound: count - earlier for (bound, count), (_, earlier) in zip(after, before, strict=True)}
    longest = max((bound or 10**12 for bound, count in made.items() if count), default=0)
    for bound, count in made.items():
        if count:
            run.figure(TURNS, f"up to {bound / 1e6:g} ms" if bound else "longer", system.name, "", count)
    over = sum(count for bound, count in made.items() if not bound or bound > TURN_MS_MAX * 1e6)
    text = f"{over} of {sum(made.values()):,} turns took longer than {TURN_MS_MAX} ms, none may; all took at most {longest / 1e6:g} ms"
    run.promise(text, over == 0)


BENCHMARK = Benchmark("soak", measure, Scale(0.02, 2_000), Scale(1.0, 100_000), Scale(10.0, 400_000))
