"""What being watched costs: throughput and CPU with and without an observer that is scraped, in turns.

    python benchmarks/metrics_cost.py [--messages 200000] [--rounds 7] [--queues 100] [--keys 1000] [--scrape-s 5]

One producer and one consumer at once on one queue with many keys, beside other queues that only lie there. In every other round the
observer is stopped (SIGSTOP), so that nobody asks for anything; else it asks every second, and a scraper reads its page. Less than
3 % of the throughput may go. The servers' CPU time is shown too, because it says the same on a noisy machine.
"""

import argparse
import asyncio
import statistics
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from threading import Event, Thread
from typing import NamedTuple
from urllib.request import urlopen

from cluster import OneCluster
from rich.console import Console
from rich.progress import track
from rich.table import Table

from fila_cluster import AsyncClient, Message

BATCH = 100
IN_FLIGHT = 8
PAYLOAD = b"x" * 1024
COST_MAX = 0.03


async def prepare(endpoint: str, queues: int, keys: int) -> None:
    """Queues that have something in them, for the observer to look at."""
    async with AsyncClient(endpoint, timeout=30) as client:
        await client.create_queue("busy")
        for index in range(queues):
            await client.create_queue(f"idle-{index}")
            messages = [Message(b"", fairness_key=f"tenant-{key}") for key in range(keys // 50)]
            await client.enqueue_many(f"idle-{index}", messages)


async def produce(client: AsyncClient, total: int, keys: int) -> None:
    """All messages, a few batches under way at a time."""
    slots = asyncio.Semaphore(IN_FLIGHT)

    async def send(number: int) -> None:
        async with slots:
            names = (f"tenant-{(number * BATCH + index) % keys}" for index in range(BATCH))
            await client.enqueue_many("busy", [Message(PAYLOAD, {"a": "1"}, fairness_key=name) for name in names])

    await asyncio.gather(*map(send, range(total // BATCH)))


async def consume(client: AsyncClient, total: int) -> None:
    """All messages, acked in the batches that they come in."""
    left = total
    while left:
        deliveries = await client.receive("busy", 500, wait=5)
        await client.ack(deliveries)
        left -= len(deliveries)


async def rate(endpoint: str, total: int, keys: int) -> float:
    """Messages a second, from the first enqueue to the last ack."""
    async with AsyncClient(endpoint, timeout=30) as producer, AsyncClient(endpoint, timeout=30) as consumer:
        start = time.perf_counter()
        await asyncio.gather(produce(producer, total, keys), consume(consumer, total))
        return total / (time.perf_counter() - start)


@contextmanager
def scraped(address: str, every_s: float) -> Iterator[None]:
    """Read the page now and then."""
    stop = Event()

    def scrape() -> None:
        while not stop.wait(every_s):
            with urlopen(f"{address}/metrics", timeout=60) as answer:
                answer.read()

    scraper = Thread(target=scrape)
    scraper.start()
    try:
        yield
    finally:
        stop.set()
        scraper.join()


class Round(NamedTuple):
    """``cpu_s``: of all servers, by kind, for 100,000 messages."""

    rate: float
    cpu_s: dict[str, float]


def one_round(cluster: OneCluster, total: int, keys: int) -> Round:
    before = cluster.cpu_seconds()
    messages_per_s = asyncio.run(rate(cluster.endpoint, total, keys))
    spent = cluster.cpu_seconds()
    return Round(messages_per_s, {kind: (spent[kind] - before[kind]) * 100_000 / total for kind in spent})


def measure(cluster: OneCluster, address: str, options: argparse.Namespace) -> tuple[list[Round], list[Round]]:
    """Rounds alone and watched, in turns; the first pair is for warming up."""
    (observer,) = cluster.processes()["observer"]
    alone, watched = [], []
    with scraped(address, options.scrape_s):
        for _ in track(range(options.rounds + 1), description="rounds"):
            observer.suspend()
            alone.append(one_round(cluster, options.messages, options.keys))
            observer.resume()
            watched.append(one_round(cluster, options.messages, options.keys))
    return alone[1:], watched[1:]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--messages", type=int, default=200_000, help="in each round")
    parser.add_argument("--rounds", type=int, default=7)
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
        alone, watched = measure(cluster, address, options)
        with urlopen(f"{address}/metrics") as answer:
            page_bytes = len(answer.read())
    report(alone, watched, page_bytes)


def report(alone: list[Round], watched: list[Round], page_bytes: int) -> None:
    table = Table("", "messages/s, median", "least", "most", "CPU s per 100,000: router", "worker", "observer")
    for name, rounds in (("alone", alone), ("watched and scraped", watched)):
        rates = [each.rate for each in rounds]
        spent = [statistics.median(each.cpu_s[kind] for each in rounds) for kind in ("router", "worker", "observer")]
        told = [f"{value:,.0f}" for value in (statistics.median(rates), min(rates), max(rates))]
        table.add_row(name, *told, *(f"{seconds:.3f}" for seconds in spent))
    costs = [1 - with_it.rate / without.rate for without, with_it in zip(alone, watched, strict=True)]
    console = Console(width=120)
    console.print(table)
    console.print(f"the page has {page_bytes:,} bytes; cost of each pair: {', '.join(f'{cost:.1%}' for cost in costs)}")
    console.print(f"cost, median of the pairs: {statistics.median(costs):.1%} (at most {COST_MAX:.0%})")


if __name__ == "__main__":
    main()
