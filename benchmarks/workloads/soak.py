"""Measure minutes at a share of the greatest rate: the longest turn of the worker, latencies over time, and memory.

Batches of 100 messages, one for each of 100 fairness keys, are made, enqueued and received. First each batch follows as soon
as there is room for it: the greatest rate. Then the same programs send at fixed times, at a share of that rate. A message's
time counts from the moment when it was to be sent to its arrival. No turn of the worker may take longer than 100 ms.
"""

import asyncio
import math
import time
from collections import deque
from dataclasses import dataclass
from itertools import groupby

from benchmarks.harness import clients
from benchmarks.harness.fila import WAYS, Fila, blocking_client
from benchmarks.harness.messages import Check, Load, time_of
from benchmarks.harness.processes import Gate, Spent, together
from benchmarks.harness.report.histogram import SHOWN, Histogram
from benchmarks.harness.report.results import Chart, Series, Verified
from benchmarks.harness.sampling import sampled
from benchmarks.harness.workload import Benchmark, Run, choice, number
from fila_cluster import AsyncClient
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

    spent: Spent
    verified: Verified
    histogram: str
    windows: list[tuple[float, float, float]]


async def send_batches(gate: Gate, system: Fila, address: str, load: Load, per_second: float) -> Spent:
    """Enqueue a batch at each of its times; ``inf``: as soon as there is room. Needs a precise event loop."""
    places = asyncio.Semaphore(clients.UNSENT_MAX // BATCH)

    async with system.connect(address) as connection:

        async def send(part: Load, at_ns: int) -> None:
            timed = Load(part.count, part.payload_bytes, part.keys, part.first, part.headers, at_ns)
            await connection.send_all(QUEUE, connection.prepare(timed))
            places.release()

        gate.wait()
        first_ns = time.monotonic_ns()
        async with asyncio.TaskGroup() as under_way:
            for part in load.parts(BATCH):
                at_ns = first_ns + int(part.first * 1e9 / per_second)
                while (early_ns := at_ns - time.monotonic_ns()) > 0:
                    await asyncio.sleep(early_ns / 1e9)
                await places.acquire()
                under_way.create_task(send(part, at_ns))
        return gate.spent()


async def receive_batches(gate: Gate, system: Fila, address: str, load: Load) -> Taken:
    """Receive and ack, and note the latencies by window."""
    check, taken = Check(load), Latencies()
    async with system.connect(address) as connection:
        gate.wait()
        await clients.moving(_receive_all(connection.client, check, taken), check)
        spent = gate.spent()
    return Taken(spent, check.verified(), taken.whole.encoded(), taken.windows)


class Latencies:
    """Latencies of all messages, and their p50 and p99 by the seconds since the start."""

    def __init__(self) -> None:
        self.whole = Histogram()
        self.windows: list[tuple[float, float, float]] = []
        self._window = Histogram()
        self._start = self._window_began = time.monotonic()

    def note(self, payloads: list[bytes]) -> None:
        """Note messages that came just now."""
        now_ns = time.monotonic_ns()
        for at_ns, group in groupby(map(time_of, payloads)):
            times = len(list(group))
            self.whole.record(now_ns - at_ns, times)
            self._window.record(now_ns - at_ns, times)
        if now_ns / 1e9 - self._window_began > WINDOW_S:
            self.windows.append((now_ns / 1e9 - self._start, self._window.ms(50), self._window.ms(99)))
            self._window, self._window_began = Histogram(), now_ns / 1e9


async def _receive_all(client: AsyncClient, check: Check, latencies: Latencies) -> None:
    acks: deque[asyncio.Task[None]] = deque()
    while check.left > 0:
        deliveries = await client.receive(QUEUE, RECEIVED_AT_ONCE, wait=30)
        payloads = [delivery.payload for delivery in deliveries]
        latencies.note(payloads)
        check.note(payloads)
        acks.append(asyncio.create_task(client.ack(deliveries)))
        if len(acks) == ACKS_IN_FLIGHT:
            await acks.popleft()
    await asyncio.gather(*acks)


def sent_and_taken(run: Run[Scale], system: Fila, address: str, count: int, per_second: float) -> tuple[Spent, Taken]:
    """Send and receive messages at a rate."""
    load = Load(count, keys=KEYS)
    sent, taken = together(
        (send_batches, system, address, load, per_second),
        (receive_batches, system, address, load),
        env=system.environment(),
        precise=[0],
    )
    run.verify(taken.verified)
    return sent, taken


def greatest_rate(run: Run[Scale], system: Fila) -> float:
    """Return the messages a second from the first enqueue to the last ack."""
    with run.serving(system) as server:
        clients.create(system, server, QUEUE)
        sent, taken = sent_and_taken(run, system, server.address, run.scale.capacity, math.inf)
    rate: float = run.scale.capacity / (taken.spent.ended - sent.began)
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
    count = max(BATCH, int(paced * run.scale.minutes * 60))
    with run.serving(system) as server:
        clients.create(system, server, QUEUE)
        before = turns(server.address)
        with sampled(lambda: sum(server.rss_bytes().values()) / (1 << 20)) as memory:
            _, taken = sent_and_taken(run, system, server.address, count, paced)
        after = turns(server.address)
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
    text = f"{over} of {sum(made.values()):,} turns took longer than {TURN_MS_MAX} ms, none may"
    text += f"; all took at most {longest / 1e6:g} ms"
    run.promise(text, over == 0)


BENCHMARK = Benchmark("soak", measure, Scale(0.02, 2_000), Scale(1.0, 100_000), Scale(10.0, 1_000_000))
