"""Measure what monitoring costs: throughput and CPU time with and without an observer that is scraped, in turns.

One producer and one consumer work at once on one queue with many keys, beside idle queues with messages. The flow never
stops; it is measured in windows. In every other window the observer is stopped (SIGSTOP), so that no process asks for
numbers; else it asks every second, and a scraper reads its page now and then. The cost must be less than 3 % of the
throughput.

Machines are noisy, and 3 % is little. So windows are short and come in pairs, with and without, without and with: a slow
drift is in both. Each pair has a ratio. The result is the median of the ratios and its interval of 95 % confidence, and the
same for the CPU time that router and workers spend on a message, and what a question costs each process on an idle cluster,
where no noise hides it.
"""

import asyncio
import os
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from threading import Event, Thread
from typing import NamedTuple
from urllib.request import urlopen

import psutil

from benchmarks.harness.cluster import OneCluster
from benchmarks.harness.fila import Fila, asyncio_client
from benchmarks.harness.report.spread import Spread, interval
from benchmarks.harness.workload import Benchmark, Run, number
from fila_cluster import AsyncClient, Message

BATCH = 100
IN_FLIGHT = 8
AHEAD_MAX = 20_000
"""Messages that the producer may be ahead of the consumer."""
PAYLOAD = b"x" * 1024
COST_MAX = 0.03
SETTLING_S = 0.3
"""How long to wait after a change before measuring."""
PER = 100_000
KINDS = ("router", "worker", "observer")
TRICKLE_S = 0.1
COLUMN_ALONE, COLUMN_WATCHED = "alone", "watched and scraped"


@dataclass(frozen=True)
class Scale:
    """The numbers of this benchmark."""

    pairs: int = number("Pairs of windows.")
    window_s: float = number("Seconds that are measured of each.")
    idle_pairs: int = number("Pairs of windows of an idle cluster.", 5)
    queues: int = number("Other queues.", 100)
    keys: int = number("Fairness keys of the busy queue.", 1000)
    scrape_s: float = number("Seconds between two scrapes.", 5.0)


async def prepare(endpoint: str, queues: int, keys: int) -> None:
    """Make queues with messages, for the observer to report."""
    async with asyncio_client(endpoint) as client:
        await client.create_queue("busy")
        for index in range(queues):
            await client.create_queue(f"idle-{index}")
            messages = [Message(b"", fairness_key=f"tenant-{key}") for key in range(max(1, keys // 50))]
            await client.enqueue_many(f"idle-{index}", messages)


# --- the flow ---------------------------------------------------------------------------------------------------------


@dataclass
class Flow:
    """How many messages were sent and acked so far."""

    sent: int = 0
    acked: int = 0


async def produce(client: AsyncClient, flow: Flow, keys: int) -> None:
    """Enqueue without end, one batch after the other."""
    while True:
        if flow.sent - flow.acked > AHEAD_MAX:
            await asyncio.sleep(0.005)
            continue
        start, flow.sent = flow.sent, flow.sent + BATCH
        names = (f"tenant-{number % keys}" for number in range(start, start + BATCH))
        await client.enqueue_many("busy", [Message(PAYLOAD, {"a": "1"}, fairness_key=name) for name in names])


async def consume(client: AsyncClient, flow: Flow) -> None:
    """Receive without end, and ack the batches as they come."""
    while True:
        deliveries = await client.receive("busy", 500, wait=5)
        await client.ack(deliveries)
        flow.acked += len(deliveries)


@contextmanager
def scraped(address: str, every_s: float) -> Iterator[Event]:
    """Read the page now and then, while the event is set."""
    wanted, stop = Event(), Event()

    def scrape() -> None:
        while not stop.wait(every_s):
            if wanted.is_set():
                with urlopen(f"{address}/metrics", timeout=60) as answer:
                    answer.read()

    scraper = Thread(target=scrape)
    scraper.start()
    try:
        yield wanted
    finally:
        stop.set()
        scraper.join()


# --- windows ----------------------------------------------------------------------------------------------------------


class Window(NamedTuple):
    """``cpu_s``: of all servers, by kind."""

    seconds: float
    messages: int
    cpu_s: dict[str, float]

    @property
    def rate(self) -> float:
        """Return messages a second."""
        return self.messages / self.seconds

    def cpu_of(self, *kinds: str) -> float:
        """Return the CPU seconds that processes spend on 100,000 messages."""
        return sum(self.cpu_s[kind] for kind in kinds) * PER / max(1, self.messages)


class Watched:
    """A cluster whose observer is stopped and continued."""

    def __init__(self, cluster: OneCluster, flow: Flow, scraping: Event) -> None:
        self._cluster = cluster
        self._flow = flow
        self._scraping = scraping
        (self._observer,) = cluster.processes()["observer"]

    async def window(self, seconds: float, *, observed: bool) -> Window:
        """Measure for a while, with the observer or without."""
        self._let(observed)
        await asyncio.sleep(SETTLING_S)
        acked, spent, start = self._flow.acked, self._cluster.cpu_seconds(), time.perf_counter()
        await asyncio.sleep(seconds)
        elapsed, now = time.perf_counter() - start, self._cluster.cpu_seconds()
        return Window(elapsed, self._flow.acked - acked, {kind: now[kind] - spent[kind] for kind in KINDS})

    def _let(self, observed: bool) -> None:
        if observed:
            self._observer.resume()
            self._scraping.set()
        elif self._observer.status() != psutil.STATUS_STOPPED:
            self._scraping.clear()
            self._observer.suspend()


async def measured(cluster: OneCluster, scraping: Event, scale: Scale) -> list[tuple[Window, Window]]:
    """Return pairs of windows, without and with the observer. The first pair is for warming up."""
    flow, pairs = Flow(), []
    watched = Watched(cluster, flow, scraping)
    async with asyncio_client(cluster.address) as producer, asyncio_client(cluster.address) as consumer:
        work = [asyncio.ensure_future(produce(producer, flow, scale.keys)) for _ in range(IN_FLIGHT)]
        work.append(asyncio.ensure_future(consume(consumer, flow)))
        try:
            for number in range(scale.pairs + 1):
                first = bool(number % 2)
                windows = [await watched.window(scale.window_s, observed=observed) for observed in (first, not first)]
                pairs.append((windows[first], windows[not first]))
                for task in work:
                    if task.done():
                        task.result()
        finally:
            scraping.clear()
            for task in work:
                task.cancel()
            await asyncio.gather(*work, return_exceptions=True)
    return pairs[1:]


async def trickle(client: AsyncClient, keys: int) -> None:
    """Enqueue a message now and then beside a backlog of all keys, so that there is something new to report."""
    await client.enqueue_many("busy", [Message(PAYLOAD, fairness_key=f"tenant-{key}") for key in range(keys)])
    while True:
        await client.enqueue("busy", PAYLOAD)
        await asyncio.sleep(TRICKLE_S)


async def asking_alone(cluster: OneCluster, scraping: Event, scale: Scale) -> dict[str, float]:
    """Return what each process spends more with the observer, in ms a second."""
    watched = Watched(cluster, Flow(), scraping)
    windows: dict[bool, list[Window]] = {False: [], True: []}
    async with asyncio_client(cluster.address) as client:
        work = asyncio.ensure_future(trickle(client, scale.keys))
        try:
            for _ in range(scale.idle_pairs):
                for observed, seen in windows.items():
                    seen.append(await watched.window(scale.window_s, observed=observed))
        finally:
            scraping.clear()
            work.cancel()
            await asyncio.gather(work, return_exceptions=True)
    return {kind: _ms_per_s(kind, windows[True]) - _ms_per_s(kind, windows[False]) for kind in KINDS}


def _ms_per_s(kind: str, windows: list[Window]) -> float:
    """Add up all windows, because the CPU clocks tick every 10 ms."""
    return 1000 * sum(each.cpu_s[kind] for each in windows) / sum(each.seconds for each in windows)


# --- the verdict ------------------------------------------------------------------------------------------------------


def measure(run: Run[Scale]) -> None:
    """Measure and judge."""
    scale = run.scale
    with run.serving(Fila(options=("--dashboard", "127.0.0.1:0"))) as cluster:
        asyncio.run(prepare(cluster.address, scale.queues, scale.keys))
        with scraped(cluster.dashboard, scale.scrape_s) as scraping:
            pairs = asyncio.run(measured(cluster, scraping, scale))
            asking_ms = asyncio.run(asking_alone(cluster, scraping, scale))
        for observer in cluster.processes()["observer"]:
            observer.resume()
        with urlopen(f"{cluster.dashboard}/metrics") as answer:
            page_bytes = len(answer.read())
    report(run, pairs, asking_ms, page_bytes)


def report(run: Run[Scale], pairs: list[tuple[Window, Window]], asking_ms: dict[str, float], page_bytes: int) -> None:
    """Add the tables and the verdict."""
    for place, column in enumerate((COLUMN_ALONE, COLUMN_WATCHED)):
        windows = [pair[place] for pair in pairs]
        run.figure("Messages a second, with monitoring", "both at once", column, "/s", *(each.rate for each in windows))
        for kind in KINDS:
            spent = [each.cpu_of(kind) for each in windows]
            run.figure("CPU seconds for 100,000 messages", kind, column, "s", *spent)
    for kind, spent_ms in asking_ms.items():
        run.figure("CPU time of questions to an idle cluster, a second", kind, "more than alone", "ms", spent_ms)
    cost = interval([1 - watched.rate / max(1e-9, alone.rate) for alone, watched in pairs])
    brokers = "router", "worker"
    computed = interval([watched.cpu_of(*brokers) / max(1e-9, alone.cpu_of(*brokers)) - 1 for alone, watched in pairs])
    share = sum(asking_ms.values()) / 1000 / (os.cpu_count() or 1)
    run.note(f"{len(pairs)} pairs; the page has {page_bytes:,} bytes; questions take {share:.1%} of this machine.")
    run.note(f"CPU time that router and workers spend on a message, more than alone: {_text(computed)}.")
    run.promise(f"throughput lost: {_text(cost)}, at most {COST_MAX:.0%}", cost.low <= COST_MAX)


def _text(found: Spread) -> str:
    return f"{found.median:+.1%} ({found.low:+.1%} to {found.high:+.1%} with 95 % confidence)"


BENCHMARK = Benchmark("metrics", measure, Scale(2, 0.3, 1, 3, 20, 0.2), Scale(10, 2.0), Scale(30, 3.0))
