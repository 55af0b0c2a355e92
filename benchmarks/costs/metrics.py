"""Measure what monitoring costs: throughput and CPU with and without an observer that is scraped, in turns.

    python benchmarks/metrics_cost.py [--pairs 30] [--window-s 3] [--queues 100] [--keys 1000] [--scrape-s 5]

One producer and one consumer work at once on one queue with many keys, beside idle queues with messages. The flow never stops; it is
measured in windows. In every other window the observer is stopped (SIGSTOP), so that no process asks for numbers; else it asks every
second, and a scraper reads its page now and then. The cost must be less than 3 % of the throughput.

Machines are noisy, and 3 % is little. So windows are short and come in pairs, with and without, without and with: a slow drift is in
both. Each pair has a ratio. The program prints the median of the ratios and its interval of 95 % confidence (by order statistics,
which assume nothing about the distribution of the noise), and the same for the CPU time that router and workers spend on a message. It
also prints what a question costs each process on an idle cluster, where no noise hides it.
"""

import argparse
import asyncio
import os
import statistics
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from math import comb
from pathlib import Path
from threading import Event, Thread
from typing import NamedTuple
from urllib.request import urlopen

import psutil
from cluster import OneCluster
from rich.console import Console
from rich.progress import track
from rich.table import Table

from fila_cluster import AsyncClient, Message

BATCH = 100
IN_FLIGHT = 8
AHEAD_MAX = 20_000
"""Messages that the producer may be ahead of the consumer."""
PAYLOAD = b"x" * 1024
COST_MAX = 0.03
CONFIDENCE = 0.95
SETTLING_S = 0.3
"""How long to wait after a change before measuring."""
PER = 100_000
KINDS = ("router", "worker", "observer")
TRICKLE_S = 0.1
IDLE_PAIRS = 5


async def prepare(endpoint: str, queues: int, keys: int) -> None:
    """Make queues with messages, for the observer to report."""
    async with AsyncClient(endpoint, timeout=30) as client:
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


async def measure(cluster: OneCluster, scraping: Event, options: argparse.Namespace) -> list[tuple[Window, Window]]:
    """Return pairs of windows, without and with the observer. The first pair is for warming up."""
    flow, pairs = Flow(), []
    watched = Watched(cluster, flow, scraping)
    async with AsyncClient(cluster.endpoint, timeout=30) as producer, AsyncClient(cluster.endpoint, timeout=30) as consumer:
        work = [asyncio.ensure_future(produce(producer, flow, options.keys)) for _ in range(IN_FLIGHT)]
        work.append(asyncio.ensure_future(consume(consumer, flow)))
        try:
            for number in track(range(options.pairs + 1), description="pairs of windows"):
                first = bool(number % 2)
                windows = [await watched.window(options.window_s, observed=observed) for observed in (first, not first)]
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


async def asking_alone(cluster: OneCluster, scraping: Event, options: argparse.Namespace) -> dict[str, float]:
    """Return what each process spends more with the observer, in ms a second."""
    watched = Watched(cluster, Flow(), scraping)
    windows: dict[bool, list[Window]] = {False: [], True: []}
    async with AsyncClient(cluster.endpoint, timeout=30) as client:
        work = asyncio.ensure_future(trickle(client, options.keys))
        try:
            for _ in track(range(IDLE_PAIRS), description="pairs of idle windows"):
                for observed, seen in windows.items():
                    seen.append(await watched.window(options.window_s, observed=observed))
        finally:
            scraping.clear()
            work.cancel()
            await asyncio.gather(work, return_exceptions=True)
    return {kind: _ms_per_s(kind, windows[True]) - _ms_per_s(kind, windows[False]) for kind in KINDS}


def _ms_per_s(kind: str, windows: list[Window]) -> float:
    """Add up all windows, because the CPU clocks tick every 10 ms."""
    return 1000 * sum(each.cpu_s[kind] for each in windows) / sum(each.seconds for each in windows)


# --- the verdict ------------------------------------------------------------------------------------------------------


class Estimate(NamedTuple):
    """A median, and the ends of its interval."""

    median: float
    low: float
    high: float

    def __str__(self) -> str:
        return f"{self.median:+.1%} ({self.low:+.1%} to {self.high:+.1%} with {CONFIDENCE:.0%} confidence)"


def median_of(values: Sequence[float]) -> Estimate:
    """Return the median with its interval: the closest pair of order statistics with the median between them often enough."""
    ordered, total = sorted(values), len(values)
    outside, cut = 0.0, 0
    while cut < total // 2 and outside + 2 * comb(total, cut) / 2**total <= 1 - CONFIDENCE:
        outside += 2 * comb(total, cut) / 2**total
        cut += 1
    return Estimate(statistics.median(ordered), ordered[max(0, cut - 1)], ordered[total - max(1, cut)])


def verdict(cost: Estimate) -> str:
    """Return what the interval says of the limit."""
    if cost.high <= COST_MAX:
        return f"below {COST_MAX:.0%}"
    return f"above {COST_MAX:.0%}" if cost.low > COST_MAX else f"around {COST_MAX:.0%}: more pairs, or less noise, would tell"


def report(pairs: list[tuple[Window, Window]], asking_ms: dict[str, float], page_bytes: int) -> None:
    """Print the tables and the verdict."""
    table = Table("", "messages/s, median", "least", "most", *(f"{kind}, CPU s per 100,000" for kind in KINDS))
    for name, windows in (
        ("alone", [alone for alone, _ in pairs]),
        ("watched and scraped", [watched for _, watched in pairs]),
    ):
        rates = [each.rate for each in windows]
        spent = [statistics.median(each.cpu_of(kind) for each in windows) for kind in KINDS]
        shown = [f"{value:,.0f}" for value in (statistics.median(rates), min(rates), max(rates))]
        table.add_row(name, *shown, *(f"{seconds:.3f}" for seconds in spent))
    cost = median_of([1 - watched.rate / alone.rate for alone, watched in pairs])
    brokers = "router", "worker"
    computed = median_of([watched.cpu_of(*brokers) / alone.cpu_of(*brokers) - 1 for alone, watched in pairs])
    console = Console(width=140)
    console.print(table)
    console.print(f"{len(pairs)} pairs; the page has {page_bytes:,} bytes")
    spent_ms = ", ".join(f"{kind} {asking_ms[kind]:.1f}" for kind in KINDS)
    share = sum(asking_ms.values()) / 1000 / (os.cpu_count() or 1)
    console.print(f"what asking costs by itself, CPU ms a second: {spent_ms}: {share:.1%} of this machine")
    console.print(f"CPU that router and workers spend on a message, more than alone: {computed}")
    console.print(f"throughput lost, median of the pairs: {cost}: {verdict(cost)}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--pairs", type=int, default=30)
    parser.add_argument("--window-s", type=float, default=3, help="seconds measured of each")
    parser.add_argument("--queues", type=int, default=100, help="others")
    parser.add_argument("--keys", type=int, default=1000, help="of the busy queue")
    parser.add_argument("--scrape-s", type=float, default=5, help="seconds between two scrapes")
    options = parser.parse_args()
    with (
        tempfile.TemporaryDirectory() as directory,
        OneCluster(Path(directory) / "data", "--dashboard", "127.0.0.1:0") as cluster,
    ):
        address = cluster.ready_line.split(" ")[4]
        asyncio.run(prepare(cluster.endpoint, options.queues, options.keys))
        with scraped(address, options.scrape_s) as scraping:
            pairs = asyncio.run(measure(cluster, scraping, options))
            asking_ms = asyncio.run(asking_alone(cluster, scraping, options))
        for observer in cluster.processes()["observer"]:
            observer.resume()
        with urlopen(f"{address}/metrics") as answer:
            page_bytes = len(answer.read())
    report(pairs, asking_ms, page_bytes)


if __name__ == "__main__":
    main()
